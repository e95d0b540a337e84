//! Every command in a control group of its budget and a twentieth, page cache and all: never killed, never over.
//!
//! `cargo xtask memory` makes the models and runs these as root; without it they say so and pass.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{fixture, forerun, listening};

const MIB: u64 = 1 << 20;

/// A control group whose memory is bounded.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// Of `budget` bytes and a twentieth.
    fn new(name: &str, budget: u64) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) = if v1.join("memory.limit_in_bytes").exists() {
            (v1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let folder = root.join(format!("forerun-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(limit), (budget + budget / 20).to_string()).unwrap();
        Self { folder }
    }

    /// The program with `args`, which joins the group before it begins.
    fn command(&self, args: &[&str]) -> Command {
        let plain = forerun(args);
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        command.arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// What it says to `input`. It must end well; whoever the system kills doesn't.
    #[track_caller]
    fn output(&self, args: &[&str], input: &str) -> Output {
        let mut command = self.command(args);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().unwrap();
        let _ = writer.join();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {}: {words}", output.status);
        output
    }

    /// The object that it prints; where that has a peak, it is within `budget`.
    #[track_caller]
    fn json(&self, args: &[&str], budget: u64) -> Value {
        let value: Value = serde_json::from_slice(&self.output(args, "").stdout).unwrap();
        if let Some(peak) = value["memory"]["peak"].as_u64() {
            eprintln!("{}: {:.1} of {} MiB", args[0], peak as f64 / MIB as f64, budget / MIB);
            assert!(peak <= budget, "{args:?}: peak {peak}");
        }
        value
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The folder with the models, if the chore runs this.
fn models() -> Option<PathBuf> {
    let models = std::env::var_os("FORERUN_MEMORY_MODELS").map(PathBuf::from);
    if models.is_none() {
        eprintln!("left out: `cargo xtask memory` makes the models that this needs");
    }
    models
}

/// A text of the script that synthetic models were made to predict.
fn script(n_tokens: usize) -> String {
    (0..n_tokens).fold(String::new(), |mut text, i| {
        write!(text, "<|s{:04}|>", i % 1000).unwrap();
        text
    })
}

#[test]
#[ignore = "needs root and models that `cargo xtask memory` makes"]
fn every_command_stays_inside() {
    let Some(models) = models() else { return };
    let folder = tempfile::tempdir_in(&models).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let wide = models.join("wide.gguf").to_str().unwrap().to_owned();
    let (text, out) = (path("text.txt"), path("out"));
    let whole = fs::read_to_string(fixture("heldout.txt")).unwrap();
    fs::write(&text, &whole[..1500]).unwrap();
    let budget = 1300 * MIB;
    let group = Group::new("commands", budget);
    let model = ["-m", &wide, "--ctx", "256", "--memory", "1300MiB", "-q"];
    let with = |command: &str, rest: &[&str]| -> Value {
        group.json(&[&[command], &model[..], rest, &["--json"]].concat(), budget)
    };
    for rest in [&["--io", "uring"][..], &["--io", "pread"], &["--io", "cached"], &["--touch-slots"]] {
        let answer = with("run", &[&["--raw", "-n", "24", "-p", &script(64)], rest].concat());
        assert!(answer["bytes_demand"].as_u64().unwrap() > 0, "{rest:?}: it must stream");
    }
    with("perplexity", &[&text]);
    with("imatrix", &["--chunks", "2", &text, "-o", &out]);
    with("bench", &["--prompt", "128", "--tokens", "8", "--repeat", "1"]);
    with("trace", &["--tokens", "64", &text, "-o", &path("trace")]);
    // It has no chat template; chats have a test of their own.
    serve(&group, &model);

    // These have no budget of their own: some megabytes, whatever the size of the file, and the page cache.
    let small = Group::new("copies", 256 * MIB);
    small.output(&["inspect", &wide], "");
    small.output(&["probe", &wide], "");
    small.output(&["pack", "-q", &wide, &path("packed.gguf")], "");
    small.output(&["verify", "-q", &path("packed.gguf"), "--against", &wide], "");
    small.output(&["unpack", "-q", &path("packed.gguf"), &path("again.gguf")], "");
    small.output(&["plan", "-m", &wide, "--ctx", "256", "--disk", "2GB/s"], "");
    let tiny = fixture("tiny-a-f32.gguf").to_str().unwrap().to_owned();
    small.output(&["quantize", "-q", &tiny, &path("small.gguf"), "--recipe", "les"], "");
}

/// Starts a server in `group`, has it answer four clients at once, and stops it.
fn serve(group: &Group, model: &[&str]) {
    let mut command = group.command(&[&["serve", "--port", "0"], &model[..model.len() - 1]].concat());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let (address, _) = listening(&mut stderr);
    // Nobody would read it.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    let ask = |question: usize| {
        let body = format!(r#"{{"prompt": "{question} and more", "max_tokens": 16}}"#);
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        write!(
            stream,
            "{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    };
    std::thread::scope(|scope| {
        for question in 0..4 {
            scope.spawn(move || ask(question));
        }
    });
    // Whoever the system had killed couldn't be asked any more.
    ask(4);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "needs root and models that `cargo xtask memory` makes"]
fn a_context_of_32_thousand_stays_inside() {
    let Some(models) = models() else { return };
    let long = models.join("long.gguf").to_str().unwrap().to_owned();
    let prompt = models.join("prompt.txt");
    fs::write(&prompt, script(32_000)).unwrap();
    let budget = 128 * MIB;
    let group = Group::new("context", budget);
    let flags =
        ["run", "-m", &long, "--ctx", "32768", "--memory", "128MiB", "-q", "--json", "--raw", "-n", "32"];
    let output = group.output(&flags, &fs::read_to_string(&prompt).unwrap());
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["prompt_tokens"], 32_000);
    let peak = answer["memory"]["peak"].as_u64().unwrap();
    eprintln!("32,000 tokens: {:.1} of {} MiB", peak as f64 / MIB as f64, budget / MIB);
    assert!(peak <= budget, "peak {peak}");
}

#[test]
#[ignore = "needs root and models that `cargo xtask memory` makes"]
fn a_thousand_turns_stay_inside() {
    if models().is_none() {
        return;
    }
    let model = fixture("pico-q4_k_m.gguf").to_str().unwrap().to_owned();
    let budget = 32 * MIB;
    let group = Group::new("turns", budget);
    let turns = (0..1000).fold(String::new(), |mut text, i| {
        writeln!(text, "Spell the word number {i}.").unwrap();
        text
    });
    let flags = ["chat", "-m", &model, "--ctx", "512", "--memory", "32MiB", "-n", "16"];
    let output = group.output(&flags, &turns);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("oldest messages were dropped"), "old turns must make room: {words}");
    assert_eq!(words.matches(" prompt tokens in ").count(), 1000, "an answer a turn");
}
