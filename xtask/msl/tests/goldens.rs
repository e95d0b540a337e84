//! Whole models whose experts, recurrences and ends of layers run through the kernels, against what other programs make of them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::cast_possible_truncation, reason = "goldens are compared as f32")]
#![allow(clippy::print_stdout, reason = "the chore shows how far each model is off")]

#[path = "../../../crates/decode/tests/support/rig.rs"]
#[allow(dead_code, reason = "other tests run layers one by one")]
mod rig;
mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_compute::{Backend, Part, Reference, Rounding, SequenceIdx, Stack, Step};
use forerun_model::TokenId;
use rig::{CONFIG, Rig, rig, text_rows};
use serde_json::Value;
use xtask_msl::products::{Calls, KernelProducts};

use support::library;

/// How far a logit may be off: as far as the reference's own goldens.
const BOUND: f32 = 1e-4;

/// Cases that say no more of the kernels than `chunk65`: they are for recurrences that take rows in chunks.
const ALIKE: &[&str] = &["chunk63", "chunk64", "long150"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn argmax(row: &[f32]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, v)| if *v > row[best] { i } else { best })
}

/// The logits of `tokens`, fed in steps of `chunk` rows. Of every step but the last a row is given up and fed again, which replays
/// the recurrence without outputs.
fn logits(rig: &mut Rig, backend: &mut dyn Backend, tokens: &[TokenId], chunk: usize) -> Vec<f32> {
    let (mut past, mut all) = (0, Vec::new());
    while past < tokens.len() {
        let end = tokens.len().min(past + chunk);
        let given_up = usize::from(end < tokens.len() && end - past > 1);
        let sequence = SequenceIdx(0);
        let part = Part { sequence, past, n_rows: end - past, may_reject: given_up > 0 };
        let mut found = rig.run(backend, &Step::of(&part, &text_rows(past, &tokens[past..end])));
        let (kept, n_vocab) = (end - past - given_up, rig.output.n_vocab);
        backend.accept(0, kept).unwrap();
        found.truncate(kept * n_vocab);
        all.extend(found);
        past += kept;
    }
    all
}

fn check(model: &str, expected: &str, experts: &[&str]) {
    let Some(library) = library() else { return };
    let expected: Value = serde_json::from_slice(&std::fs::read(fixture(expected)).unwrap()).unwrap();
    let (mut rig, weights) = rig(model);
    let calls = Calls::default();
    let products = KernelProducts::new(Arc::new(library), calls.clone());
    let mut backend = Stack::new(weights, CONFIG, products);
    let (mut worst, mut rows) = (0.0_f32, 0);
    let says_more = |case: &&Value| !ALIKE.contains(&case["name"].as_str().unwrap());
    for case in expected["cases"].as_array().unwrap().iter().filter(says_more) {
        let ids = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
        let tokens: Vec<_> = ids.map(|id| TokenId(u32::try_from(id).unwrap())).collect();
        let all = logits(&mut rig, &mut backend, &tokens, tokens.len());
        let n_vocab = rig.output.n_vocab;
        for (i, (found, want)) in
            all.chunks(n_vocab).zip(case["logits_first64"].as_array().unwrap()).enumerate()
        {
            let off = difference(&found[..64], &floats(want));
            assert!(off < BOUND, "{model} {}: position {i} is off by {off}", case["name"]);
            assert_eq!(argmax(found) as u64, case["argmax"][i].as_u64().unwrap(), "{model} {i}");
            (worst, rows) = (worst.max(off), rows + 1);
        }
        let last = difference(&all[all.len() - n_vocab..], &floats(&case["logits_last_full"]));
        assert!(last < BOUND, "{model} {}: the last row is off by {last}", case["name"]);
        worst = worst.max(last);
        if tokens.len() < 40 {
            let in_steps = logits(&mut rig, &mut backend, &tokens, 7);
            assert!(all == in_steps, "{model} {}: steps of 7 rows change a bit", case["name"]);
        }
    }
    check_kernels(model, &calls, experts);
    let n_calls: usize = calls.counts().values().sum();
    println!("{model}: {rows} rows, {n_calls} calls of kernels, logits off by at most {worst:.2e}");
}

/// Those that every model of the fixtures needs, and these for its experts, have run; no others have.
fn check_kernels(model: &str, calls: &Calls, experts: &[&str]) {
    let found: Vec<_> = calls.counts().into_keys().collect();
    assert_eq!(found, [&MIXING, experts].concat(), "{model}");
}

/// The kernels of every delta-net, and of every layer.
const MIXING: [&str; 4] = ["close_layer", "delta_convolve", "delta_gate", "delta_step"];

#[test]
fn tiny_a() {
    let experts = ["expert_down_F32", "expert_inner_F32"];
    check("tiny-a-f32.gguf", "tiny-random/tiny-a-f32.expected.json", &experts);
}

#[test]
fn tiny_b() {
    let experts = ["expert_down_Q4_K", "expert_inner_Q3_K"];
    check("tiny-b-q3_k_m.gguf", "tiny-random/tiny-b-q3_k_m.expected.json", &experts);
}

/// Its value heads are grouped. Rows of its routed experts are no whole units, so that only the shared one has kernels.
#[test]
fn qwen3next() {
    check(
        "architectures/qwen3next-f32.gguf",
        "architectures/qwen3next.expected.json",
        &["expert_down_F32", "expert_inner_F32"],
    );
}

/// There are no goldens of its quantised weights, so it is held to the reference, which other goldens prove.
#[test]
fn pico_is_as_the_reference_has_it() {
    let Some(library) = library() else { return };
    let (model, tokens) = ("pico-q4_k_m.gguf", [1, 17, 300, 42, 511, 7, 1000, 64].map(TokenId));
    let (mut with_kernels, weights) = rig(model);
    let calls = Calls::default();
    let mut backend = Stack::new(weights, CONFIG, KernelProducts::new(Arc::new(library), calls.clone()));
    let found = logits(&mut with_kernels, &mut backend, &tokens, tokens.len());
    let (mut exact, weights) = rig(model);
    let mut reference = Reference::reference(weights, CONFIG, Rounding::None);
    let want = logits(&mut exact, &mut reference, &tokens, tokens.len());
    let off = difference(&found, &want);
    assert!(off < BOUND * 10.0, "off by {off}");
    check_kernels(model, &calls, &["expert_down_Q4_K", "expert_down_Q6_K", "expert_inner_Q4_K"]);
    println!("{model}: {} rows, logits off by at most {off:.2e}", tokens.len());
}
