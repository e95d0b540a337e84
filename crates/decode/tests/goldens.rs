//! The reference against values of independent implementations.

mod support;

use forerun_decode::{Engine, Logits, Session};
use support::goldens::{EXACT, check_cases};
use support::{argmax, config, difference, extra, floats, ids, json};

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
    let (Some(model), Some(golden)) = (extra("models/pico/pico-bf16.gguf"), extra("models/pico/golden.json"))
    else {
        return;
    };
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let mut engine = Engine::open(&config(&model, EXACT)).unwrap();
    let (mut steps, mut left_out) = (0, 0);
    for case in golden["cases"].as_array().unwrap() {
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
