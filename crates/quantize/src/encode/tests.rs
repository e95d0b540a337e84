//! Rows, with and without knowledge of them.

use forerun_storage::gguf::Dims;
use proptest::prelude::*;

use super::*;
use crate::{Importance, Permissions, Recipe};

const NAME: &str = "blk.0.ffn_up_exps.weight";
const FACTS: Facts = Facts { n_layers: 1, n_experts: 3, top_k: 2 };

fn tensor(quant: QuantType) -> TensorInfo {
    let dims = Dims::new(&[256, 8, 3]).unwrap();
    TensorInfo { name: NAME.into(), quant, dims, file: 0, offset_bytes: 0, len_bytes: 0 }
}

/// Two experts that saw something, one that didn't.
fn imatrix() -> Imatrix {
    let mut imatrix = Imatrix::default();
    let sums = (0..3 * 256).map(|i| (i * 7 % 31) as f32).collect();
    imatrix.insert(NAME.into(), Importance::new(NAME, 256, sums, vec![4.0, 0.0, 2.0]).unwrap());
    imatrix
}

/// The same, with moments of what the router sees: columns that are much alike.
fn imatrix_with_moments() -> Imatrix {
    let mut imatrix = imatrix();
    let name = "blk.0.ffn_gate_inp.weight";
    let moments = (0..256).flat_map(|i| (0..=i).map(move |j| if i == j { 1.0 } else { 0.9 }));
    let router = Importance::new(name, 256, vec![1.0; 256], vec![8.0]).unwrap();
    imatrix.insert(name.into(), router.with_moments(name, moments.collect()).unwrap());
    imatrix
}

/// All rows of the tensor, encoded in pieces of `n` rows.
fn encode(values: &[f32], quant: &str, n: usize, n_threads: usize) -> Result<Vec<u8>, String> {
    encode_with(&imatrix(), values, quant, n, n_threads)
}

fn encode_with(
    imatrix: &Imatrix,
    values: &[f32],
    quant: &str,
    n: usize,
    n_threads: usize,
) -> Result<Vec<u8>, String> {
    let tensor = tensor(QuantType::F32);
    let recipe = Recipe::parse("test", &format!("default = \"{quant}\"")).unwrap();
    let tensors = [tensor.clone()];
    let plan = Plan::new(&tensors, FACTS, &recipe, Some(imatrix), Permissions::default()).unwrap();
    let encoder = Encoder::new(&plan, FACTS, Some(imatrix), n_threads);
    let to = encoder.target(&tensor);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut out = vec![0; 24 * row_bytes(to, 256)];
    let mut all = Vec::new();
    for (matrix, (bytes, out)) in
        bytes.chunks_exact(8 * 1024).zip(out.chunks_exact_mut(8 * row_bytes(to, 256))).enumerate()
    {
        let pieces = bytes.chunks(n * 1024).zip(out.chunks_mut(n * row_bytes(to, 256)));
        for (i, (bytes, out)) in pieces.enumerate() {
            all.push(Rows { tensor: &tensor, matrix, first_row: i * n, to, bytes, out });
        }
    }
    encoder.recode(all).map_err(|error| error.to_string())?;
    Ok(out)
}

fn values(seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..24 * 256).map(next).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn neither_threads_nor_pieces_change_a_byte(seed in any::<u32>(), n in 1_usize..9, n_threads in 1_usize..5) {
        let values = values(seed);
        for quant in ["Q2_K", "Q4_K", "Q6_K", "Q5_0", "BF16"] {
            for imatrix in [imatrix(), imatrix_with_moments()] {
                let encode = |n, n_threads| encode_with(&imatrix, &values, quant, n, n_threads);
                prop_assert_eq!(encode(n, n_threads), encode(8, 1), "{}", quant);
            }
        }
    }
}

#[test]
fn each_expert_has_its_own_importance_and_an_unseen_one_none() {
    let values = values(3);
    let found = encode(&values, "Q3_K", 8, 2).unwrap();
    let imatrix = imatrix();
    let entry = imatrix.get(NAME).unwrap();
    let weights = [entry.mean_squares(0).unwrap(), vec![1.0; 256], entry.mean_squares(2).unwrap()];
    let mut out = [0; 110];
    for (row, found) in found.chunks_exact(110).enumerate() {
        quantise::quantise(QuantType::Q3_K, &values[row * 256..][..256], Some(&weights[row / 8]), &mut out);
        assert!(found == out, "row {row}");
    }
}

#[test]
fn experts_errors_are_carried_where_the_layers_moments_are_known() {
    let values = values(4);
    let (with, without) = (imatrix_with_moments(), imatrix());
    let found = encode_with(&with, &values, "Q3_K", 8, 2).unwrap();
    let plain = encode_with(&without, &values, "Q3_K", 8, 2).unwrap();
    let expert = |bytes: &[u8], e: usize| bytes[e * 8 * 110..][..8 * 110].to_vec();
    assert!(expert(&found, 1) == expert(&plain, 1), "of an unseen expert nothing is known");
    let lookup = Lookup { imatrix: &with, n_experts: 3 };
    let feedback = Feedback::new(256, lookup.moments(&tensor(QuantType::F32)).unwrap().1).unwrap();
    let means = with.get(NAME).unwrap().mean_squares(0).unwrap();
    let cost = |bytes: &[u8]| -> f64 {
        let mut errors = vec![0.0; 8 * 256];
        dequant::dequantise(QuantType::Q3_K, &expert(bytes, 0), &mut errors);
        errors.iter_mut().zip(&values).for_each(|(error, value)| *error -= value);
        errors.chunks(256).map(|errors| feedback.of(&means).cost(errors)).sum()
    };
    assert!(cost(&found) < 0.5 * cost(&plain), "{} of {}", cost(&found), cost(&plain));
}

#[test]
fn values_that_no_type_holds_are_named() {
    for (bad, quant) in [
        (f32::NAN, "Q4_K"),
        (f32::NEG_INFINITY, "BF16"),
        (f32::MAX, "BF16"),
        (70_000.0, "Q6_K"),
        (1e30, "F16"),
    ] {
        let mut values = values(1);
        (values[13 * 256 + 7], values[20 * 256]) = (bad, bad);
        for (n_threads, imatrix) in [(1, imatrix()), (4, imatrix()), (2, imatrix_with_moments())] {
            let error = encode_with(&imatrix, &values, quant, 8, n_threads).unwrap_err();
            let words = format!("row 5 of matrix 1 of {NAME} holds {bad}; {quant} takes numbers up to ");
            assert!(error.starts_with(&words), "{error}");
        }
    }
    let mut values = values(1);
    values[0] = 70_000.0;
    encode(&values, "BF16", 8, 1).unwrap();
}
