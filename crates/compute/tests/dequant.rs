//! Every decoder against the values of the `gguf` package, bit for bit.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use forerun_compute::dequant::{dequantise, is_supported};
use forerun_model::QuantType;
use serde_json::Value;

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn every_type_decodes_to_the_gguf_packages_values() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/dequant.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert_eq!(cases.len(), QuantType::all().filter(|&q| is_supported(q)).count());
    for case in cases {
        let name = case["type"].as_str().unwrap();
        let quant = QuantType::all().find(|q| q.name() == name).unwrap();
        let want: Vec<f32> = bytes(&case["values"])
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let mut found = vec![f32::NAN; want.len()];
        let blocks = bytes(&case["blocks"]);
        dequantise(quant, &blocks, &mut found);
        // Wherever they lie: blocks of 18 and 34 bytes are seldom aligned to more than two.
        for offset in [0, 2, 4, 18, 34] {
            let (moved, mut again) = ([vec![0xA5; offset], blocks.clone()].concat(), vec![0.0; want.len()]);
            dequantise(quant, &moved[offset..], &mut again);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&again), bits(&found), "{name} at byte {offset}");
        }
        for (i, (found, want)) in found.iter().zip(&want).enumerate() {
            // The sign of a zero may differ where a package computes q*d + m in another order.
            let same = found.to_bits() == want.to_bits() || (*found == 0.0 && *want == 0.0);
            assert!(same, "{name} value {i}: {found:e}, want {want:e}");
        }
    }
}
