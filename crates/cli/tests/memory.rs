//! The memory budget is a promise: measured from outside, and by the program itself.
//!
//! The only test of its file, so that the high-water mark of this process's children is the program's.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use nix::sys::resource::{UsageWho, getrusage};
use support::{failure, fixture, json};

const MIB: f64 = 1024.0 * 1024.0;

/// The largest resident set of any child so far, in bytes; counts the program's text, which a budget doesn't.
fn children_peak_bytes() -> u64 {
    u64::try_from(getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss()).unwrap() * 1024
}

#[test]
fn a_budget_holds_and_changes_no_word() {
    let model = fixture("pico-q4_k_m.gguf");
    let model = model.to_str().unwrap();
    let prompt = "Tell me a short story about a fox.";
    let run = |io: &str, memory: &str| {
        json(&["run", "-m", model, "--io", io, "--ctx", "512", "--memory", memory, "--json", "-q", prompt])
    };

    // The smallest budgets first: the outer measure only knows the largest child.
    let (code, words) = failure(&["run", "-m", model, "--ctx", "512", "--memory", "2MiB", prompt]);
    assert_eq!(code, 1, "{words}");
    for line in ["2.00MiB is too small", "dense weights", "KV cache", "expert slots", "total"] {
        assert!(words.contains(line), "{words}");
    }
    let smallest = words.split("smallest that works here is ").nth(1).unwrap();
    let smallest = smallest.split_whitespace().next().unwrap();

    let mut texts = Vec::new();
    for (io, memory) in [("pread", smallest), ("pread", "20MiB"), ("mmap", "20MiB"), ("pread", "28MiB")] {
        let answer = run(io, memory);
        let budget = answer["memory"]["budget"].as_u64().unwrap();
        let peak = answer["memory"]["peak"].as_u64().unwrap();
        assert!(peak <= budget, "{io} {memory}: peak {:.2} MiB", peak as f64 / MIB);
        assert!(answer["experts_again"].as_u64().unwrap() > 0, "{io} {memory}: it must stream");
        let outside = children_peak_bytes();
        let text = TEXT_BYTES_MAX;
        assert!(outside <= budget + text, "{io} {memory}: {:.2} MiB from outside", outside as f64 / MIB);
        texts.push(answer["text"].as_str().unwrap().to_owned());
    }
    let unlimited = json(&["run", "-m", model, "--ctx", "512", "--json", "-q", prompt]);
    let unlimited = unlimited["text"].as_str().unwrap();
    assert!(texts.iter().all(|text| text == unlimited), "{texts:?} {unlimited:?}");
}

/// An upper bound of the program's own text and constants in any build profile.
const TEXT_BYTES_MAX: u64 = 12 << 20;
