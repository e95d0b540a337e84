//! `imatrix` and `perplexity --kl-base` as a user meets them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use forerun_quantize::Imatrix;
use support::{failure, fixture, json};

fn path(name: &str) -> String {
    fixture(name).to_str().unwrap().to_owned()
}

/// The arguments for the small model and its text, with windows of 128.
fn args<'a>(out: &'a str, more: &[&'a str], model: &'a str, text: &'a str) -> Vec<&'a str> {
    [&["imatrix", "--json", "-q", "--ctx", "128", "-o", out][..], more, &[model, text]].concat()
}

fn out(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_text_becomes_an_importance_matrix_inside_a_budget() {
    let (model, text) = (path("pico-q4_k_m.gguf"), path("heldout.txt"));
    let folder = tempfile::tempdir().unwrap();
    let (plain, small) = (out(&folder, "plain.gguf"), out(&folder, "small.gguf"));
    let said = json(&args(&plain, &["--chunks", "6"], &model, &text));
    assert_eq!((&said["windows"], &said["tokens"]), (&6.into(), &(6 * 128).into()));
    let found = Imatrix::open(Path::new(&plain)).unwrap();
    assert_eq!(said["entries"].as_u64().unwrap(), found.len() as u64);
    assert_eq!((found.about.chunk_count, found.about.chunk_size), (6, 128));
    assert_eq!((&found.about.datasets[..], &found.about.partial), (&["heldout.txt".to_owned()][..], &None));
    let [gate, up] = ["gate", "up"].map(|name| found.get(&format!("blk.0.ffn_{name}_exps.weight")).unwrap());
    assert_eq!(gate, up);
    assert_eq!((gate.n_matrices(), gate.n_cols()), (32, 256));
    let unseen = (0..8).flat_map(|layer| {
        let of = found.get(&format!("blk.{layer}.ffn_down_exps.weight")).unwrap();
        (0..32).map(|i| u64::from(of.count(i) < 0.5)).collect::<Vec<_>>()
    });
    assert_eq!(said["experts_unseen"].as_u64().unwrap(), unseen.sum::<u64>());
    let budget = ["--chunks", "6", "--io", "pread", "--memory", "22MiB", "--threads", "1"];
    let tight = json(&args(&small, &budget, &model, &text));
    assert!(tight["experts_again"].as_u64().unwrap() > 0, "it must stream");
    assert!(tight["memory"]["sums"].as_u64().unwrap() > 0);
    if let Some(peak) = tight["memory"]["peak"].as_u64() {
        assert!(peak <= 22 << 20, "{peak}");
    }
    assert_eq!(std::fs::read(&plain).unwrap(), std::fs::read(&small).unwrap(), "not a bit differs");
}

#[test]
fn a_run_that_was_ended_goes_on() {
    let (model, text) = (path("pico-q4_k_m.gguf"), path("heldout.txt"));
    let folder = tempfile::tempdir().unwrap();
    let (whole, parted) = (out(&folder, "whole.gguf"), out(&folder, "parted.gguf"));
    json(&args(&whole, &["--chunks", "5"], &model, &text));
    // What an earlier run would have left: the first two windows, in a file that says so.
    json(&args(&parted, &["--chunks", "2"], &model, &text));
    let part = format!("{parted}.forerun-part");
    let mut first = Imatrix::open(Path::new(&parted)).unwrap();
    std::fs::remove_file(&parted).unwrap();
    // One of something else isn't gone on with.
    let partial = forerun_quantize::imatrix::Partial { source: "another text".into(), windows: 2 };
    first.about.partial = Some(partial);
    first.write(Path::new(&part)).unwrap();
    let (code, said) = failure(&args(&parted, &["--chunks", "5"], &model, &text));
    assert!(code == 1 && said.contains("--force replaces it") && Path::new(&part).exists(), "{said}");
    let anew = json(&args(&parted, &["--chunks", "5", "--force"], &model, &text));
    assert_eq!((&anew["windows_resumed"], Path::new(&part).exists()), (&0.into(), false));
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&parted).unwrap());
    let (code, said) = failure(&args(&parted, &["--chunks", "5"], &model, &text));
    assert!(code == 1 && said.contains("exists; --force replaces it"), "{said}");
    json(&args(&parted, &["--chunks", "5", "--force"], &model, &text));
    std::fs::write(&part, b"no importance matrix").unwrap();
    let (code, said) = failure(&args(&parted, &["--chunks", "5", "--force"], &model, &text));
    assert!(code == 1 && said.contains(".forerun-part"), "{said}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_its_windows_and_no_file() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let (model, text) = (path("pico-q4_k_m.gguf"), path("heldout.txt"));
    let folder = tempfile::tempdir().unwrap();
    let (whole, parted) = (out(&folder, "whole.gguf"), out(&folder, "parted.gguf"));
    let common = ["imatrix", "--ctx", "64", "--threads", "1"];
    assert!(support::output(&[&common[..], &["-o", &whole, &model, &text]].concat()).status.success());
    let mut child = support::forerun(&[&common[..], &["-o", &parted, &model, &text]].concat())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("1 of ") && line.contains("windows, about")).unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let rest: Vec<_> = lines.collect();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("the same command goes on")), "{rest:?}");
    assert!(!Path::new(&parted).exists() && Path::new(&format!("{parted}.forerun-part")).exists());
    let said = support::output(&[&common[..], &["-o", &parted, &model, &text]].concat());
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && words.contains("going on after "), "{words}");
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&parted).unwrap(), "not a bit differs");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no part is left");
}

#[test]
fn a_model_is_no_distance_from_itself() {
    let (model, text) = (path("pico-q4_k_m.gguf"), path("heldout.txt"));
    let args = ["perplexity", "--json", "-q", "--ctx", "128", &model, &text];
    let alone = json(&args);
    let both = json(
        &[&args[..5], &["--io", "pread", "--memory", "48MiB", "--kl-base", &model], &args[5..]].concat(),
    );
    for key in ["perplexity", "stderr", "tokens", "windows"] {
        assert_eq!(both[key], alone[key], "{key}");
    }
    assert_eq!(both["base_perplexity"], both["perplexity"]);
    for key in ["kl", "kl_ci95", "kl_max", "log_probability_difference", "top1_agreement_ci95"] {
        assert_eq!(both[key].as_f64(), Some(0.0), "{key}");
    }
    assert_eq!(both["top1_agreement"].as_f64(), Some(1.0));
    let budgets = [&both["memory"], &both["base"]["memory"]].map(|memory| memory["budget"].as_u64().unwrap());
    assert_eq!(budgets.iter().sum::<u64>(), 48 << 20);
    if let Some(peak) = both["memory"]["peak"].as_u64() {
        assert!(peak <= 48 << 20, "{peak}");
    }
}

#[test]
fn models_that_cannot_be_compared_are_named() {
    let (model, text) = (path("pico-q4_k_m.gguf"), path("heldout.txt"));
    let other = path("tiny-b-q3_k_m.gguf");
    for (more, words) in [
        (&["--kl-base", &other][..], "don't have the same vocabulary"),
        (&["--kl-base", "no-such.gguf"], "can't open the base no-such.gguf"),
        (&["--kl-base", &model, "--memory", "8MiB"], "too small for two models at once"),
    ] {
        let (code, said) = failure(&[&["perplexity", "-q", "--ctx", "64"], more, &[&model, &text]].concat());
        assert!(code == 1 && said.contains(words), "{more:?}: {said}");
    }
}
