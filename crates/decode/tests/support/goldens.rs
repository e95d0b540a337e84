//! A backend against a file of goldens.

use forerun_compute::Rounding;
use forerun_decode::{BackendChoice, Engine};
use serde_json::Value;

use super::tolerance::Tolerance;
use super::{argmax, config, difference, fixture, floats, ids, logits_of_all, logits_of_last};

/// Decoded weights and plain products.
pub(crate) const EXACT: BackendChoice = BackendChoice::Reference(Rounding::None);

/// Every case of `expected` against the exact logits of `model`, one token at a time and in chunks.
pub(crate) fn check_cases(model: &str, expected: &Value, bound: f32) {
    check_cases_of(EXACT, model, expected, bound, Some(Tolerance::Bits));
}

/// The same of any backend; in chunks where they are to change a result by no more than `chunked` says. The largest logit is another one only
/// where the two are nearer to each other than the bound allows, which the exact reference may not claim.
pub(crate) fn check_cases_of(
    backend: BackendChoice,
    model: &str,
    expected: &Value,
    bound: f32,
    chunked: Option<Tolerance>,
) {
    let slack = if backend == EXACT { 0.0 } else { 2.0 * bound };
    let mut engine = Engine::open(&config(&fixture(model), backend)).unwrap();
    for case in expected["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let tokens = ids(&case["ids"]);
        let all = logits_of_all(&mut engine, &tokens);
        for (i, (found, want)) in all.iter().zip(case["logits_first64"].as_array().unwrap()).enumerate() {
            let off = difference(&found[..64], &floats(want));
            assert!(off < bound, "{model} {name}: position {i} is off by {off}");
            let best = usize::try_from(case["argmax"][i].as_u64().unwrap()).unwrap();
            let lead = found[argmax(found)] - found[best];
            assert!(lead <= slack, "{model} {name} {i}: another logit is larger by {lead}");
        }
        let last = floats(&case["logits_last_full"]);
        let off = difference(all.last().unwrap(), &last);
        assert!(off < bound, "{model} {name}: the last row is off by {off}");
        let Some(tolerance) = chunked else { continue };
        for chunk in [7, 64, tokens.len()] {
            let found = logits_of_last(&mut engine, &tokens, chunk);
            tolerance.same(&found, all.last().unwrap(), format!("{model} {name}: chunks of {chunk}"));
        }
    }
}
