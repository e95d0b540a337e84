//! What blocks keep of the values that they stand for.

mod rows;

use std::ops::Range;

use forerun_compute::kernels::Isa;
use forerun_compute::quantise::{ENCODABLE, all_finite, is_encodable, quantise, quantise_on};
use forerun_model::QuantType;
use proptest::prelude::*;
use rows::{KINDS, Kind, ROW, decoded, encoded, error, weights};

/// Every type of blocks, with the largest relative error on Gaussian rows: one percent above what is left now.
const BLOCKS: [(QuantType, f64); 13] = [
    (QuantType::Q8_0, 2.36e-05),
    (QuantType::Q4_0, 6.44e-03),
    (QuantType::Q4_1, 4.66e-03),
    (QuantType::Q5_0, 1.57e-03),
    (QuantType::Q5_1, 1.09e-03),
    (QuantType::IQ4_NL, 5.32e-03),
    (QuantType::MXFP4, 1.24e-02),
    (QuantType::Q2_K, 6.64e-02),
    (QuantType::Q3_K, 2.03e-02),
    (QuantType::Q4_K, 4.70e-03),
    (QuantType::Q5_K, 1.14e-03),
    (QuantType::Q6_K, 2.72e-04),
    (QuantType::IQ4_XS, 5.39e-03),
];

fn types() -> impl Iterator<Item = QuantType> {
    BLOCKS.iter().map(|block| block.0)
}

#[test]
fn the_types_that_are_said_to_be_encodable_are() {
    let names: Vec<_> = ENCODABLE.split(' ').collect();
    for quant in QuantType::all() {
        assert_eq!(is_encodable(quant), names.contains(&quant.name()), "{quant}");
    }
    assert_eq!(names.len(), BLOCKS.len() + 3);
}

#[test]
fn errors_stay_below_their_bounds() {
    let values = rows::rows(Kind::Gaussian, 64);
    for (quant, bound) in BLOCKS {
        let found = decoded(quant, &encoded(quant, &values, None));
        let left = error(&values, &found, None);
        assert!(left < bound, "{quant}: {left:.4e} of the values' squares is lost, the bound is {bound:e}");
        assert!(left > bound / 1.05, "{quant}: {left:.4e} is far better than {bound:e}: lower the bound");
    }
}

#[test]
fn weights_move_the_error_to_where_it_counts_less() {
    let weights = weights();
    for kind in KINDS {
        let values = rows::rows(kind, 16);
        // MXFP4 has few scales to choose from.
        for quant in types().filter(|quant| *quant != QuantType::MXFP4) {
            let left = |w| error(&values, &decoded(quant, &encoded(quant, &values, w)), Some(&weights));
            let (with, without) = (left(Some(&weights)), left(None));
            assert!(with < without, "{quant} of {kind:?}: {with:e} with weights, {without:e} without");
        }
    }
}

#[test]
fn what_was_decoded_is_encoded_again_with_almost_no_loss() {
    for kind in KINDS {
        let values = rows::rows(kind, 16);
        for quant in types() {
            let once = decoded(quant, &encoded(quant, &values, None));
            let twice = decoded(quant, &encoded(quant, &once, None));
            let (first, second) = (error(&values, &once, None), error(&once, &twice, None));
            // Where a few large values leave the others one or two codes, the search may find other scales.
            assert!(second <= first * 0.3, "{quant} of {kind:?}: {first:e}, then {second:e}");
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for quant in types() {
        for w in [None, Some(&[0.0; ROW][..]), Some(&weights()[..])] {
            assert!(decoded(quant, &encoded(quant, &[0.0; ROW], w)).iter().all(|v| *v == 0.0), "{quant}");
        }
    }
}

#[test]
fn equal_values_stay_equal_and_near() {
    for quant in types() {
        for value in [3.7e-3f32, -3.7e-3, 1.0, -90.0, 1e4] {
            for found in decoded(quant, &encoded(quant, &[value; ROW], None)) {
                // Half a step of MXFP4 between 4 and 6 is the coarsest.
                let far = if quant == QuantType::MXFP4 { 0.21 } else { 0.01 };
                assert!((found - value).abs() <= far * value.abs(), "{quant}: {value} became {found}");
            }
        }
    }
}

#[test]
fn no_value_and_no_weight_makes_a_block_that_is_not_finite() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, 1e30, 1e-40, -1e-45, -0.0];
    let mut noise = rows::Noise::new(3);
    for quant in types() {
        for a in odd {
            for every in [1, 3, 40, ROW] {
                let mut row: Vec<f32> = (0..ROW).map(|_| noise.gaussian()).collect();
                row.iter_mut().step_by(every).for_each(|v| *v = a);
                for w in [None, Some(a), Some(-1.0)] {
                    let w = w.map(|w| {
                        weights().iter().enumerate().map(|(i, v)| if i % 5 == 0 { w } else { *v }).collect()
                    });
                    let w: Option<Vec<f32>> = w;
                    let bytes = encoded(quant, &row, w.as_deref());
                    assert!(
                        all_finite(&decoded(quant, &bytes)),
                        "{quant} of {a} every {every}, weights {w:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn values_that_a_half_float_can_not_scale_become_the_nearest_that_it_can() {
    for quant in types() {
        let row: Vec<f32> = (0..ROW).map(|i| if i % 2 == 0 { 1e30 } else { -1e30 }).collect();
        let found = decoded(quant, &encoded(quant, &row, None));
        for (value, found) in row.iter().zip(found) {
            assert!(found * value.signum() >= 65504.0, "{quant}: {value} became {found}");
        }
    }
}

#[test]
fn weights_count_relative_to_each_other() {
    let values = rows::rows(Kind::Gaussian, 1);
    let weights = weights();
    let times = |by: f32| -> Vec<f32> { weights.iter().map(|w| w * by).collect() };
    for quant in types() {
        let want = encoded(quant, &values, Some(&weights));
        for by in [2f32.powi(-90), 2f32.powi(90)] {
            assert!(encoded(quant, &values, Some(&times(by))) == want, "{quant} times {by:e}");
        }
        let even = encoded(quant, &values, None);
        for alike in [0.0, -1.0, f32::NAN, 3.0, 1e-42] {
            assert!(encoded(quant, &values, Some(&[alike; ROW])) == even, "{quant}, all {alike:e}");
        }
    }
}

#[test]
fn a_run_without_weights_is_encoded_as_if_all_counted_alike() {
    let values = rows::rows(Kind::Gaussian, 16);
    let mut some = weights();
    some[64..96].fill(0.0);
    let lost = |found: &[f32]| -> f64 {
        let runs = values.chunks(ROW).zip(found.chunks(ROW));
        runs.map(|(v, f)| error(&v[64..96], &f[64..96], None)).sum()
    };
    for quant in types() {
        let even = lost(&decoded(quant, &encoded(quant, &values, None)));
        let without = lost(&decoded(quant, &encoded(quant, &values, Some(&some))));
        assert!(without < 1.3 * even, "{quant}: {without:e}, {even:e} if all count alike");
    }
}

#[test]
fn finite_is_every_value_or_not() {
    let mut row = vec![1.0; 5000];
    assert!(all_finite(&row) && all_finite(&[]));
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        row[4321] = odd;
        assert!(!all_finite(&row), "{odd}");
    }
}

#[test]
#[should_panic(expected = "ask is_encodable first")]
fn a_type_that_has_no_encoder_is_refused() {
    quantise(QuantType::IQ2_XXS, &[0.0; 256], None, &mut [0; 66]);
}

/// Rows of up to five blocks of 256, one value in nine times a power of two, with weights of which some are zero.
fn hard_rows(exponents: Range<i32>) -> impl Strategy<Value = (Vec<f32>, Option<Vec<f32>>)> {
    let value =
        (-1f32..1f32, prop_oneof![8 => Just(0i32), 1 => exponents]).prop_map(|(v, e)| v * 2f32.powi(e));
    let weight = prop_oneof![4 => 0f32..1f32, 1 => Just(0f32), 1 => 0f32..1e4f32];
    (1usize..=5).prop_flat_map(move |blocks| {
        let weights = prop::collection::vec(weight.clone(), blocks * 256);
        (prop::collection::vec(value.clone(), blocks * 256), prop::option::of(weights))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_instruction_set_gives_the_same_bytes((row, weights) in hard_rows(-30..30)) {
        for quant in types() {
            let encode = |isa| {
                let mut out = vec![0; quant.row_bytes(row.len()).unwrap()];
                quantise_on(isa, quant, &row, weights.as_deref(), &mut out);
                out
            };
            let want = encode(Isa::BASELINE);
            for isa in Isa::all() {
                prop_assert!(encode(isa) == want, "{} on {:?}", quant, isa);
            }
        }
    }

    #[test]
    fn a_block_is_the_same_in_a_row_and_alone((row, weights) in hard_rows(-30..30)) {
        for quant in types() {
            let mut whole = vec![0; quant.row_bytes(row.len()).unwrap()];
            quantise(quant, &row, weights.as_deref(), &mut whole);
            let (len, bytes) = (quant.block_len(), quant.block_bytes());
            for (i, want) in whole.chunks(bytes).enumerate() {
                let mut out = vec![0; bytes];
                let weights = weights.as_deref().map(|w| &w[i * len..][..len]);
                quantise(quant, &row[i * len..][..len], weights, &mut out);
                prop_assert!(out == want, "{}, block {}", quant, i);
            }
        }
    }

    #[test]
    fn blocks_are_better_than_zeros((row, weights) in hard_rows(-8..8)) {
        for quant in types() {
            let mut out = vec![0; quant.row_bytes(row.len()).unwrap()];
            quantise(quant, &row, weights.as_deref(), &mut out);
            let left = error(&row, &decoded(quant, &out), weights.as_deref());
            prop_assert!(left <= 1.0 + 1e-4, "{}: {}", quant, left);
        }
    }
}
