//! What the shipped cache policy is worth, on recorded routings: between least recently used and knowing the future.
//!
//! Its constants were chosen on `trace-gen`, `pico-gen` and the first half of `trace-docs`, one of them with a look at
//! `trace-chat`. The bounds are the measured
//! figures, rounded down: a change that costs a point fails.

#![cfg(test)]

use std::path::PathBuf;

use forerun_scheduler::PolicyName;
use forerun_sim::Trace;
use forerun_sim::hits::hits;
use forerun_sim::routing_stats::{belady_hits, lru_hits, mean, percent_of_gap};

fn load(name: &str) -> Trace {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", "traces"].iter().collect();
    let read = |extension| std::fs::read(folder.join(name).with_extension(extension)).unwrap();
    Trace::parse(&read("json"), &read("bin")).unwrap()
}

fn shipped(trace: &Trace, slots_per_layer: usize, from: usize) -> f64 {
    hits(trace, PolicyName::default(), slots_per_layer * trace.n_layers, from).unwrap()
}

/// For each number of slots per layer: of the way from LRU to Belady, both with as many slots in every layer, the
/// shipped policy goes at least so many percent over the tokens from `from` on.
#[track_caller]
fn check(trace: &Trace, from: usize, percent_min: &[(usize, f64)]) {
    let percent = |&(slots, _): &(usize, f64)| {
        let lru = mean(trace.layers(), |layer| lru_hits(trace, layer, slots, from));
        let belady = mean(trace.layers(), |layer| belady_hits(trace, layer, slots, from));
        percent_of_gap(lru, shipped(trace, slots, from), belady)
    };
    let found: Vec<f64> = percent_min.iter().map(percent).collect();
    let is_enough = found.iter().zip(percent_min).all(|(found, (_, min))| found >= min);
    assert!(is_enough, "{found:.1?} percent of the gap, not (slots, percent) {percent_min:?}");
}

#[test]
fn text_it_was_chosen_on() {
    check(&load("trace-gen"), 0, &[(16, 80.0), (32, 48.0), (64, 39.5), (128, 34.5)]);
}

#[test]
fn more_of_the_same_text() {
    let trace = load("trace-docs");
    check(&trace, trace.n_tokens / 2, &[(16, 61.0), (32, 50.0), (64, 45.0), (128, 38.0)]);
}

#[test]
fn another_kind_of_text() {
    check(&load("trace-chat"), 0, &[(16, 50.0), (32, 40.0), (64, 34.0), (128, 32.0)]);
}

#[test]
fn another_model() {
    check(&load("pico-docs"), 0, &[(8, 45.0), (16, 48.0), (24, 75.0)]);
    check(&load("pico-chat"), 0, &[(8, 34.0), (16, 30.0), (24, 42.0)]);
}

/// Where a pool that gives up the longest unused hits nothing at all.
#[test]
fn a_cache_below_the_working_set_still_hits() {
    for name in ["pico-chat", "pico-docs"] {
        let trace = load(name);
        for slots in 1..trace.top_k {
            let lru = hits(&trace, PolicyName::Lru, slots * trace.n_layers, 0).unwrap();
            let shipped = shipped(&trace, slots, 0);
            assert!(lru < 0.01 && shipped > 0.05, "{name}, {slots} slots per layer: {lru:.3}, {shipped:.3}");
        }
    }
}
