//! `trace` as a user meets it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use forerun_sim::routing_stats::{mean, recall};
use forerun_sim::{Guesses, Trace};
use support::{failure, fixture, json};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn read(out: &Path) -> Trace {
    let bytes = |ending| std::fs::read(out.with_extension(ending)).unwrap();
    Trace::parse(&bytes("json"), &bytes("bin")).unwrap()
}

/// Mean recall of as many guesses as a token uses experts, and of all, over all layers but the first.
fn recalls(trace: &Trace, guesses: &Guesses) -> [f64; 2] {
    [trace.top_k, guesses.n_each()]
        .map(|n| mean(trace.layers().skip(1), |layer| recall(trace, guesses, layer, n)))
}

#[track_caller]
fn assert_near(found: [f64; 2], expected: [f64; 2], by: f64) {
    let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= by);
    assert!(near, "{found:?}, not {expected:?}");
}

/// The expected figures were measured on pico before it was quantised, over 50,000 tokens.
#[test]
fn a_recorded_text_shows_the_recall_that_was_measured_in_training() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("heldout");
    let (model, book) = (fixture("pico-q4_k_m.gguf"), fixture("heldout.txt"));
    let args = ["trace", "--json", "-q", "--tokens", "600", "--ctx", "400", "--memory", "24MiB"];
    let said = json(&[&args[..], &["-m", text(&model), "-o", text(&out), text(&book)]].concat());
    let trace = read(&out);
    assert_eq!((trace.n_tokens, trace.n_layers, trace.n_experts, trace.top_k), (600, 8, 32, 4));
    let documents: Vec<_> = trace.documents.iter().map(|document| (document.first, document.count)).collect();
    assert_eq!(documents, [(0, 400), (400, 200)], "windows of the context");
    for (key, guesses, expected) in
        [("prev_mid", &trace.prev_mid, [0.753, 0.920]), ("prev_out", &trace.prev_out, [0.804, 0.953])]
    {
        let found = recalls(&trace, guesses.as_ref().unwrap());
        assert_near(found, expected, 0.03);
        let said = ["recall_top_k", "recall_predicted"].map(|name| said[key][name].as_f64().unwrap());
        assert_near(said, found, 1e-6);
    }
    // What is recorded is what is computed, whatever the budget.
    let args = ["trace", "--force", "-q", "--tokens", "600", "--ctx", "400"];
    silent(&[&args[..], &["-m", text(&model), "-o", text(&out), text(&book)]].concat());
    assert_eq!(read(&out), trace);
}

/// Runs a command that prints nothing.
fn silent(args: &[&str]) {
    let said = support::output(args);
    assert!(said.status.success() && said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
}

#[test]
fn an_answer_is_recorded_without_its_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("answer.json");
    let said = json(&["trace", "--json", "-q", "--tokens", "20", "-o", text(&out), "-p", "What is a sea?"]);
    let trace = read(&out);
    assert_eq!(said["tokens"], trace.n_tokens);
    assert!((5..=20).contains(&trace.n_tokens), "{}", trace.n_tokens);
    assert_eq!(trace.documents.len(), 1);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing is left over: {names:?}");
}

#[test]
fn what_cannot_be_recorded_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (there, out) = (folder.path().join("there.bin"), folder.path().join("out"));
    std::fs::write(&there, "precious").unwrap();
    let empty = folder.path().join("empty.txt");
    std::fs::write(&empty, "").unwrap();
    let nowhere = folder.path().join("no/such/folder");
    let book = fixture("heldout.txt");
    for (args, words) in [
        (["-o", text(&there), text(&book)], "--force"),
        (["-o", text(&out), text(&empty)], "nothing was recorded"),
        (["-o", text(&out), "missing.txt"], "missing.txt"),
        (["-o", text(&nowhere), text(&book)], "folder.bin"),
    ] {
        let (code, said) = failure(&[&["trace", "-q", "--tokens", "3"], &args[..]].concat());
        assert!(code == 1 && said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "precious");
    for args in [&["trace"][..], &["trace", "-p", "a", text(&book)], &["trace", "--tokens", "0", "-p", "a"]] {
        assert_eq!(failure(args).0, 2, "{args:?}");
    }
}
