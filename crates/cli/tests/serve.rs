//! `serve` as a user starts and stops it. What it answers is tested in the server's own crate.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{failure, fixture, forerun, listening};

/// A server in a process of its own.
struct Serving {
    child: Child,
    #[cfg_attr(not(unix), expect(dead_code, reason = "read only where a server can be interrupted"))]
    stderr: BufReader<ChildStderr>,
    address: String,
    /// What it said before it listened.
    words: String,
}

impl Serving {
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (address, words) = listening(&mut stderr);
        Self { child, stderr, address, words }
    }

    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_embedded_model_is_served_and_decisions_are_said() {
    let server = Serving::start(forerun(&["serve", "--port", "0"]));
    assert!(server.words.contains("forerun: thinking: off ("), "{}", server.words);
    assert_eq!(server.get("/v1/models")["data"][0]["id"], "pico");
    assert_eq!(server.get("/health")["status"], "ok");
}

#[test]
fn flags_count_before_variables_and_those_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    std::fs::write(&file, "port = 0\nalias = 'of the file'\nqueue = 5\nctx = 100\nquiet = true\n").unwrap();
    let mut command = forerun(&["serve", "--ctx", "120"]);
    command.env("FORERUN_CONFIG", &file).env("FORERUN_QUEUE", "6").env("FORERUN_CTX", "110");
    let server = Serving::start(command);
    assert_eq!(server.words, "", "quiet");
    let model = &server.get("/v1/models")["data"][0];
    assert_eq!((model["id"].as_str(), model["context_length"].as_u64()), (Some("of the file"), Some(120)));
    assert_eq!(server.get("/health")["queue_max"], 6);
}

#[test]
fn a_file_of_flags_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    let path = file.to_str().unwrap();
    for (text, words) in
        [("prot = 1", "`prot`, which is no flag"), ("port = 'x'", "--port"), ("=", "is not TOML")]
    {
        std::fs::write(&file, text).unwrap();
        let (code, error) = failure(&["serve", "--config", path]);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(words) && error.contains("serve.toml"), "{error}");
    }
    let (code, error) = failure(&["serve", "--config", "nowhere.toml"]);
    assert!(code == 2 && error.contains("can't read the configuration nowhere.toml"), "{error}");
}

#[test]
fn what_cannot_be_is_said_before_it_listens() {
    let (code, error) = failure(&["serve", "-q", "--host", "0.0.0.0", "--port", "0"]);
    assert!(code == 1 && error.contains("an --api-key is needed"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, error) = failure(&["serve", "-q", "--port", &port]);
    assert!(code == 1 && error.contains(&format!("port {port} of 127.0.0.1 is in use")), "{error}");
    let model = fixture("tiny-a-f32.gguf");
    let (code, error) = failure(&["serve", "-m", model.to_str().unwrap(), "--memory", "1MiB", "--port", "0"]);
    assert!(
        code == 1 && error.contains("memory budget of 1.00MiB is too small") && error.contains("dense"),
        "{error}"
    );
    let (code, error) = failure(&["serve", "--ctx", "0"]);
    assert!(code == 2 && error.contains("--ctx"), "{error}");
}

#[test]
fn an_upstream_that_cannot_be_is_said_before_anything_is_loaded() {
    const URL: &str = "http://localhost:1/v1";
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = folder.path().join(format!("{}.txt", text.len()));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (two_keys, no_roots) = (file("a\n# b\nc\n"), file("none"));
    for (args, code, words) in [
        (&["--upstream", "ftp://a"][..], 2, "`ftp://a` is neither http nor https"),
        (&["--upstream", "http:///v1"], 2, "names no host"),
        (&["--upstream", "http://a:b@c"], 2, "goes into --upstream-key"),
        (&["--upstream", URL, "--upstream-when", "queue>1,load>2"], 2, "`load>2` is no rule"),
        (&["--upstream", URL], 1, "http://localhost:1/v1 is asked; write --upstream-when"),
        (&["--upstream", URL, "--upstream-when", "queue>64"], 1, "--upstream-when queue>64 never holds"),
        (&["--upstream-when", "queue>1"], 1, "--upstream-when says how"),
        (&["--upstream-key", "k"], 1, "--upstream-key says how"),
        (&["--upstream-key-file", "k"], 1, "--upstream-key-file says how"),
        (&["--upstream-model", "m"], 1, "--upstream-model says how"),
        (&["--upstream-ca", "c"], 1, "--upstream-ca says how"),
        (&["--upstream", URL, "--upstream-when", "ctx>1", "--upstream-key", "a b"], 1, "upstream's key"),
        (&["--upstream", URL, "--upstream-when", "ctx>1", "--upstream-key-file", &two_keys], 1, "but has 2"),
        (
            &["--upstream", URL, "--upstream-when", "ctx>1", "--upstream-key-file", "nowhere"],
            1,
            "can't read nowhere",
        ),
        (
            &[
                "--upstream",
                URL,
                "--upstream-when",
                "ctx>1",
                "--upstream-key",
                "a",
                "--upstream-key-file",
                "b",
            ],
            1,
            "write one of them",
        ),
        (
            &["--upstream", "https://a", "--upstream-when", "ctx>1", "--upstream-ca", &no_roots],
            1,
            "certificates for the upstream can't be used",
        ),
    ] {
        let (found, error) = failure(&[&["serve", "-q", "--port", "0"], args].concat());
        assert!(found == code && error.contains(words), "{args:?}: {found} {error}");
    }
}

#[test]
fn that_prompts_leave_the_machine_is_said_even_to_the_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    std::fs::write(
        &file,
        "upstream = 'http://cluster.example:8000'\nupstream-when = ['queue>2', 'ctx>30']\n",
    )
    .unwrap();
    let mut command = forerun(&["serve", "-q", "--port", "0", "--config", file.to_str().unwrap()]);
    command.env("FORERUN_UPSTREAM_KEY", "secret");
    let server = Serving::start(command);
    let expect = "forerun: warning: prompts leave this machine, unencrypted, to http://cluster.example:8000/v1 when \
                  queue>2 or ctx>30\n";
    assert_eq!(server.words, expect);
}

#[cfg(unix)]
#[test]
fn a_request_to_end_leaves_with_0() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut server = Serving::start(forerun(&["serve", "-q", "--port", "0"]));
        kill(Pid::from_raw(server.child.id().try_into().unwrap()), signal).unwrap();
        let status = server.child.wait().unwrap();
        let mut rest = String::new();
        server.stderr.read_to_string(&mut rest).unwrap();
        assert_eq!(status.code(), Some(0), "{signal}: {rest}");
    }
}
