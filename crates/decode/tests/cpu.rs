//! The `cpu` backend against a reference that rounds activations the same way: not a bit differs, since both follow
//! one order of sums, and the reference by decoding weights instead of the kernels' integers.

mod support;

use forerun_compute::Rounding;
use forerun_decode::{BackendChoice, Engine};
use support::{config, difference, fixture, ids, json, logits_of_all};

#[test]
fn cpu_has_the_bits_of_the_reference_that_rounds_alike() {
    let model = fixture("pico-q4_k_m.gguf");
    let like = BackendChoice::Reference(Rounding::LikeQuantised);
    let mut reference = Engine::open(&config(&model, like)).unwrap();
    let mut cpu = Engine::open(&config(&model, BackendChoice::Cpu)).unwrap();
    for case in json("pico-golden.json")["cases"].as_array().unwrap() {
        let mut tokens = ids(&case["prompt_ids"]);
        tokens.extend(&ids(&case["greedy_ids"])[..8]);
        let want = logits_of_all(&mut reference, &tokens);
        let found = logits_of_all(&mut cpu, &tokens);
        for (i, (found, want)) in found.iter().zip(&want).enumerate() {
            let same = found.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "position {i} is off by {}", difference(found, want));
        }
    }
}
