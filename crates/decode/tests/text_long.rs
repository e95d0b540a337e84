//! Long texts of one class of characters: no overflow, and time that grows with the length.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod text_common;

use std::time::{Duration, Instant};

use text_common::pico;

/// One of each class that a pre-tokenizer runs over, and what follows itself in Unicode's normal forms.
const UNITS: [&str; 16] = [
    "a",
    "A",
    "ä",
    "a\u{308}",
    "7",
    " ",
    "\n",
    "\r\n",
    "\t",
    "!",
    "'s",
    "中",
    "ไม่",
    "🦙",
    "\u{301}",
    "👨\u{200d}👩",
];

fn seconds(text: &str) -> Duration {
    let tokenizer = pico().tokenizer;
    let start = Instant::now();
    let ids = tokenizer.encode_plain(text).unwrap();
    let time = start.elapsed();
    assert!(!ids.is_empty());
    time
}

#[test]
fn a_run_of_one_class_is_read_in_linear_time() {
    for unit in UNITS {
        let n_units = |n_chars: usize| n_chars / unit.chars().count();
        let short = seconds(&unit.repeat(n_units(26_000)));
        let long = seconds(&unit.repeat(n_units(1_000_000)));
        println!("{unit:?}: {short:?} for 26,000 characters, {long:?} for 1,000,000");
        // 38 times the text; a quadratic reader would need 1,400 times as long.
        let bound = short.max(Duration::from_millis(2)) * 38 * 8;
        assert!(long < bound, "{unit:?}: {long:?} after {short:?}");
    }
}

#[test]
fn long_text_comes_back() {
    let tokenizer = pico().tokenizer;
    for unit in UNITS.iter().filter(|unit| **unit != "a\u{308}") {
        let text = unit.repeat(26_000);
        assert_eq!(tokenizer.decode(&tokenizer.encode_plain(&text).unwrap()), text);
    }
}
