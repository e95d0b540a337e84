//! The exact reference against a file of goldens.

use forerun_compute::Rounding;
use forerun_decode::{BackendChoice, Engine};
use serde_json::Value;

use super::{argmax, config, difference, fixture, floats, ids, logits_of_all, logits_of_last};

/// Decoded weights and plain products.
pub(crate) const EXACT: BackendChoice = BackendChoice::Reference(Rounding::None);

/// Every case of `expected` against the exact logits of `model`, one token at a time and in chunks.
pub(crate) fn check_cases(model: &str, expected: &Value, bound: f32) {
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
