//! `perplexity` and `bench` as a user meets them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{failure, fixture, json, output};

fn path(name: &str) -> String {
    fixture(name).to_str().unwrap().to_owned()
}

#[test]
fn a_text_is_scored_inside_a_budget() {
    let (model, text) = (path("pico-q4_k_m.gguf"), path("heldout.txt"));
    let plain = json(&["perplexity", "--json", "-q", "--ctx", "128", &model, &text]);
    let perplexity = plain["perplexity"].as_f64().unwrap();
    assert!((2.0..50.0).contains(&perplexity), "{perplexity}");
    assert!((0.0..perplexity / 4.0).contains(&plain["stderr"].as_f64().unwrap()));
    let windows = plain["windows"].as_u64().unwrap();
    assert_eq!((&plain["ctx"], &plain["windows_total"]), (&128.into(), &windows.into()));
    assert_eq!(plain["tokens"].as_u64().unwrap(), windows * 63);
    assert!(!plain["decisions"].as_array().unwrap().is_empty());
    let args = ["perplexity", "--json", "-q", "--ctx", "128", "--io", "pread", "--memory", "22MiB"];
    let small = json(&[&args[..], &["-m", &model, &text]].concat());
    assert_eq!((&small["perplexity"], &small["stderr"]), (&plain["perplexity"], &plain["stderr"]));
    assert!(small["experts_again"].as_u64().unwrap() > 0, "it must stream");
    if let Some(peak) = small["memory"]["peak"].as_u64() {
        assert!(peak <= 22 << 20, "{peak}");
    }
}

#[test]
fn the_result_goes_to_stdout_and_the_rest_to_stderr() {
    let said = output(&["perplexity", "--ctx", "64", &path("heldout.txt")]);
    let (stdout, stderr) = (String::from_utf8(said.stdout).unwrap(), String::from_utf8(said.stderr).unwrap());
    assert!(said.status.success(), "{stderr}");
    assert!(stdout.starts_with("perplexity ") && stdout.ends_with(" windows of 64\n"), "{stdout}");
    assert_eq!(stdout.lines().count(), 1);
    assert!(stderr.contains("forerun: 16 of ") && stderr.contains("windows: perplexity "), "{stderr}");
    let quiet = output(&["perplexity", "-q", "--ctx", "64", &path("heldout.txt")]);
    assert_eq!((String::from_utf8(quiet.stdout).unwrap(), &*quiet.stderr), (stdout, &b""[..]));
}

#[test]
fn texts_that_cannot_be_scored_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = folder.path().join("missing.txt").to_str().unwrap().to_owned();
    for (text, name, words) in [
        (missing, "missing.txt", "reading the text"),
        (write("short.txt", b"too short"), "short.txt", "a window has 512"),
        (write("empty.txt", b""), "empty.txt", "has 0 tokens"),
        (write("latin.txt", b"caf\xe9 au lait"), "latin.txt", "not UTF-8 at byte 3"),
    ] {
        let (code, said) = failure(&["perplexity", "-q", &text]);
        assert!(code == 1 && said.contains(name) && said.contains(words), "{said}");
    }
    let text = path("heldout.txt");
    for (args, words) in [
        (&["--ctx", "4", &text][..], "at least 8"),
        (&["--ctx", "4096", &text], "1 to 2048"),
        (&["no-such.gguf", &text], "no-such.gguf"),
        (&["--memory", "4MiB", &text], "too small"),
    ] {
        let (code, said) = failure(&[&["perplexity", "-q"], args].concat());
        assert!(code == 1 && said.contains(words), "{args:?}: {said}");
    }
    for args in [&[][..], &["-m", "a.gguf", "b.gguf", "c.txt"], &["--ctx", "0", &text]] {
        let (code, said) = failure(&[&["perplexity"], args].concat());
        assert_eq!(code, 2, "{args:?}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_score_says_what_it_has() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long.txt");
    std::fs::write(&long, std::fs::read_to_string(fixture("heldout.txt")).unwrap().repeat(200)).unwrap();
    let args = ["perplexity", "--ctx", "64", long.to_str().unwrap()];
    let mut child = support::forerun(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut words = BufReader::new(child.stderr.take().unwrap()).lines();
    while !words.next().unwrap().unwrap().contains("windows: perplexity") {}
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let rest: Vec<_> = words.map(Result::unwrap).collect();
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(rest.iter().any(|line| line.contains("interrupted after")), "{rest:?}");
    assert!(stdout.starts_with("perplexity ") && stdout.contains(" of "), "{stdout}");
}

#[test]
fn a_bench_has_its_rates_and_the_telemetry_of_a_run() {
    let model = path("tiny-b-q3_k_m.gguf");
    let args = ["bench", "--json", "-q", "-m", &model, "--prompt", "40", "--tokens", "6", "--repeat", "2"];
    let report = json(&[&args[..], &["--ctx", "64"]].concat());
    for (phase, tokens) in [("prefill", 40), ("decode", 6)] {
        let rates = &report[phase];
        assert_eq!(rates["tokens"], tokens);
        let [min, median, max] =
            ["min", "tokens_per_second", "max"].map(|field| rates[field].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{rates}");
    }
    assert_eq!((&report["prompt_tokens"], &report["decode_tokens"]), (&80.into(), &12.into()));
    assert_eq!((&report["hit_rate"], &report["bytes_demand"]), (&1.0.into(), &0.into()));
    for field in ["warm_up_bytes", "token_bytes_dense", "token_bytes_experts", "weight_bytes_per_second"] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert!(report["memory_read"]["bytes_per_second"].as_f64().unwrap() > 0.0);
    assert!(report["memory"]["dense"].as_u64().unwrap() > 0);
    let decisions = report["decisions"].as_array().unwrap();
    assert!(decisions.iter().any(|decision| decision["choice"] == "seed 0"), "{decisions:?}");
}

#[test]
fn a_bench_streams_under_a_budget_and_prints_a_table() {
    let model = path("pico-q4_k_m.gguf");
    let args =
        ["bench", "-m", &model, "--memory", "22MiB", "--io", "pread", "--ctx", "128", "--prompt", "32"];
    let said = output(&[&args[..], &["--tokens", "4", "--repeat", "1"]].concat());
    let (stdout, stderr) = (String::from_utf8(said.stdout).unwrap(), String::from_utf8(said.stderr).unwrap());
    assert!(said.status.success(), "{stderr}");
    for words in
        ["prefill", "decode", "tok/s", "weights read per decoded token", "a plain read", "over 1 passes"]
    {
        assert!(stdout.contains(words), "{words} in {stdout}");
    }
    assert!(!stdout.contains(", 0 B read in 0 reads"), "{stdout}");
    for words in ["warmed up: ", "memory\n", "tokens: seed 0"] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
}

#[test]
fn wrong_arguments_of_a_bench_are_refused() {
    for (args, words) in [
        (["bench", "--prompt", "0"], "0"),
        (["bench", "--tokens", "-1"], "-1"),
        (["bench", "--repeat", "0"], "1..=1000"),
        (["bench", "--seed", "x"], "x"),
    ] {
        let (code, said) = failure(&args);
        assert!(code == 2 && said.contains(words), "{args:?}: {said}");
    }
    let (code, said) = failure(&["bench", "-q", "--ctx", "100"]);
    assert!(code == 1 && said.contains("576 together") && said.contains("holds 100"), "{said}");
    let most = u32::MAX.to_string();
    let (code, said) = failure(&["bench", "-q", "--prompt", &most, "--tokens", "1"]);
    assert!(code == 1 && said.contains("4294967296 together"), "{said}");
}

/// A pipe would be empty, or wait for ever, when it is read again.
#[cfg(unix)]
#[test]
fn a_text_that_is_no_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.txt");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for text in [pipe.as_path(), folder.path()] {
        let (code, said) = failure(&["perplexity", "-q", text.to_str().unwrap()]);
        let name = text.file_name().unwrap().to_str().unwrap();
        assert!(code == 1 && said.contains(name) && said.contains("isn't a regular file"), "{said}");
    }
}

#[test]
fn the_help_of_perplexity_has_its_own_default_context() {
    let help = |command| String::from_utf8(output(&[command, "--help"]).stdout).unwrap();
    assert!(help("perplexity").contains("default: 512") && !help("perplexity").contains("4096"));
    assert!(help("run").contains("at most 4096"));
}

#[test]
fn experts_used_where_they_are_mapped_are_said_to_be() {
    let model = path("tiny-b-q3_k_m.gguf");
    let args =
        ["bench", "-q", "-m", &model, "--prompt", "8", "--tokens", "2", "--repeat", "1", "--ctx", "16"];
    let lent = |io| json(&[&args[..], &["--json", "--io", io]].concat())["lent"].as_u64().unwrap();
    assert!(lent("mmap") > 0 && lent("memory") == 0);
    let last = |io| {
        let table = String::from_utf8(output(&[&args[..], &["--io", io]].concat()).stdout).unwrap();
        table.lines().last().unwrap().to_owned()
    };
    assert!(last("mmap").contains("used where they are mapped") && !last("memory").contains("mapped"));
}
