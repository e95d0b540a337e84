//! The memory budget is a promise: measured from outside, and by the program itself.
//!
//! The only test of its file, so that the high-water mark of this process's children is the program's.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs::File;
use std::io::Read;

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
        let flags = ["run", "-m", model, "--ctx", "512", "--json", "-q", prompt, "--memory", memory];
        json(&[&flags[..], &["--io"], &io.split(' ').collect::<Vec<_>>()].concat())
    };

    // The smallest budgets first: the outer measure only knows the largest child.
    let least = ["run", "-m", model, "--io", "pread", "--ctx", "512", "--memory", "2MiB", prompt];
    let (code, words) = failure(&least);
    assert_eq!(code, 1, "{words}");
    for line in ["2.00MiB is too small", "dense weights", "KV cache", "expert slots", "total"] {
        assert!(words.contains(line), "{words}");
    }
    let smallest = words.split("smallest that works here is ").nth(1).unwrap();
    let smallest = smallest.split_whitespace().next().unwrap();

    let mut texts = Vec::new();
    for (io, memory) in
        [("pread", smallest), ("pread", "20MiB"), ("mmap", "20MiB"), ("pread --touch-slots", "28MiB")]
    {
        let answer = run(io, memory);
        let budget = answer["memory"]["budget"].as_u64().unwrap();
        let peak = answer["memory"]["peak"].as_u64().unwrap();
        assert!(peak <= budget, "{io} {memory}: peak {:.2} MiB", peak as f64 / MIB);
        assert!(answer["experts_again"].as_u64().unwrap() > 0, "{io} {memory}: it must stream");
        let outside = children_peak_bytes();
        assert!(
            outside <= budget + text_bytes(),
            "{io} {memory}: {:.2} MiB from outside",
            outside as f64 / MIB
        );
        texts.push(answer["text"].as_str().unwrap().to_owned());
    }
    // Holds all experts, which are then used where they are mapped.
    let answer = run("mmap", "60MiB");
    let (budget, mapped) = (answer["memory"]["budget"].as_u64(), answer["memory"]["mapped"].as_u64());
    assert!(mapped.unwrap() > 0 && answer["reads"] == 0, "{}", answer["memory"]);
    assert!(answer["memory"]["peak"].as_u64() <= budget, "{}", answer["memory"]);
    assert!(children_peak_bytes() <= budget.unwrap() + text_bytes(), "from outside");
    texts.push(answer["text"].as_str().unwrap().to_owned());
    let unlimited = json(&["run", "-m", model, "--ctx", "512", "--json", "-q", prompt]);
    let unlimited = unlimited["text"].as_str().unwrap();
    assert!(texts.iter().all(|text| text == unlimited), "{texts:?} {unlimited:?}");
}

/// Bytes of the program's executable segments, by its ELF header.
fn text_bytes() -> u64 {
    const EXECUTABLE: u8 = 1;
    // Only its head: a child's high-water mark begins with that of the process which starts it.
    let mut file = [0; 4096];
    File::open(env!("CARGO_BIN_EXE_forerun")).unwrap().read_exact(&mut file).unwrap();
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let half = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    let (table, entry, n) = (usize::try_from(word(32)).unwrap(), half(54), half(56));
    let segments = (0..n).map(|i| table + i * entry);
    segments.filter(|&at| file[at + 4] & EXECUTABLE != 0).map(|at| word(at + 32)).sum()
}
