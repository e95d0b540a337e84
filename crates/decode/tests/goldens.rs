//! The reference against values of independent implementations.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_compute::Rounding;
use forerun_decode::{BackendChoice, Engine, Logits, Session};
use serde_json::Value;
use support::{argmax, config, difference, extra, fixture, floats, ids, json, logits_of_all, logits_of_last};

const EXACT: BackendChoice = BackendChoice::Reference(Rounding::None);

/// Every case of `expected` against the exact logits of `model`, one token at a time and in chunks.
fn check_cases(model: &str, expected: &Value, bound: f32) {
    let mut engine = Engine::open(&config(&fixture(model), EXACT)).unwrap();
    for case in expected["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let tokens = ids(&case["ids"]);
        let all = logits_of_all(&mut engine, &tokens);
        for (i, (found, want)) in all.iter().zip(case["logits_first64"].as_array().unwrap()).enumerate() {
            let off = difference(&found[..64], &floats(want));
            assert!(off < bound, "{model} {name}: position {i} is off by {off}");
            assert_eq!(argmax(found) as u64, case["argmax"][i].as_u64().unwrap(), "{model} {name} {i}");
        }
        let last = floats(&case["logits_last_full"]);
        let off = difference(all.last().unwrap(), &last);
        assert!(off < bound, "{model} {name}: the last row is off by {off}");
        for chunk in [7, 64, tokens.len()] {
            let chunked = logits_of_last(&mut engine, &tokens, chunk);
            assert_eq!(&chunked, all.last().unwrap(), "{model} {name}: chunks of {chunk} change a bit");
        }
    }
}

#[test]
fn tiny_a_logits() {
    check_cases("tiny-a-f32.gguf", &json("tiny-random/tiny-a-f32.expected.json"), 1e-4);
}

#[test]
fn tiny_b_q3_k_m_logits() {
    check_cases("tiny-b-q3_k_m.gguf", &json("tiny-random/tiny-b-q3_k_m.expected.json"), 1e-4);
}

#[test]
fn tiny_b_q4_k_m_logits() {
    let (Some(model), Some(expected)) = (
        extra("fixtures/tiny-random/tiny-b-q4_k_m.gguf"),
        extra("fixtures/tiny-random/tiny-b-q4_k_m.expected.json"),
    ) else {
        return;
    };
    let expected = serde_json::from_str(&std::fs::read_to_string(expected).unwrap()).unwrap();
    check_cases(model.to_str().unwrap(), &expected, 1e-4);
}

/// Last-position logits within 1e-3, and greedy continuations token by token. A step whose margin between the two
/// best is below 2e-3 may go either way; such steps end a comparison and must be rare.
#[test]
fn pico_bf16_logits_and_greedy_continuations() {
    let Some(model) = extra("models/pico/pico-bf16.gguf") else { return };
    let mut engine = Engine::open(&config(&model, EXACT)).unwrap();
    let (mut steps, mut left_out) = (0, 0);
    for case in json("pico-golden.json")["cases"].as_array().unwrap() {
        let mut session = Session::new();
        let logits = session.extend(&mut engine, &ids(&case["prompt_ids"]), Logits::Last).unwrap().unwrap();
        let off = difference(logits, &floats(&case["last_logits"]));
        assert!(off < 1e-3, "the last row is off by {off}");
        let mut next = argmax(logits);
        for (want, margin) in ids(&case["greedy_ids"]).iter().zip(floats(&case["greedy_margins"])) {
            steps += 1;
            if margin <= 2e-3 {
                left_out += 1;
            } else {
                assert_eq!(next, want.idx(), "step {steps}, margin {margin}");
            }
            next = argmax(session.extend(&mut engine, &[*want], Logits::Last).unwrap().unwrap());
        }
    }
    assert!(left_out * 50 <= steps, "{left_out} of {steps} steps were too close to call");
}
