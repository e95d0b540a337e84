//! Rounding that carries errors from column to column: what it wins, and what doesn't change it.

#[expect(dead_code, reason = "rows have more to offer than is wanted here")]
mod rows;

use forerun_compute::dequant::dequantise;
use forerun_compute::kernels::Isa;
use forerun_compute::moments;
use forerun_compute::quantise::{
    Feedback, all_finite, is_encodable, quantise, quantise_rows, quantise_rows_on,
};
use forerun_model::QuantType;
use proptest::prelude::*;
use rows::{Kind, Noise, ROW};

/// Types with scales, which are all that have something to carry.
fn types() -> impl Iterator<Item = QuantType> {
    let has_scales = |quant: &QuantType| is_encodable(*quant) && quant.block_len() > 1;
    QuantType::all().filter(has_scales)
}

/// Moments of `n_cols` columns, each some of four common causes and some noise of its own, and their means.
fn moments_of(n_cols: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    const TOKENS: usize = 600;
    let mut noise = Noise::new(seed);
    let mix: Vec<f32> = (0..4 * n_cols).map(|_| noise.gaussian()).collect();
    let size: Vec<f32> = (0..n_cols).map(|_| (0.7 * noise.gaussian()).exp()).collect();
    let mut sums = vec![0.0; moments::len(n_cols)];
    for _ in 0..TOKENS {
        let causes: [f32; 4] = std::array::from_fn(|_| noise.gaussian());
        let value = |c: usize| {
            let common: f32 = causes.iter().zip(&mix[4 * c..]).map(|(cause, mix)| cause * mix).sum();
            size[c] * (common + noise.gaussian())
        };
        let x: Vec<f32> = (0..n_cols).map(value).collect();
        for (cols, at) in moments::blocks(n_cols) {
            for r in 0..cols.len() {
                for j in 0..=r {
                    sums[at.start + moments::triangle(r) + j] += x[cols.start + r] * x[cols.start + j];
                }
            }
        }
    }
    let means = moments::squares(n_cols, &sums).iter().map(|square| square / TOKENS as f32).collect();
    (sums, means)
}

/// Mean squares of columns that have no moments but those.
fn diagonal(means: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0; moments::len(means.len())];
    for (cols, at) in moments::blocks(means.len()) {
        for r in 0..cols.len() {
            sums[at.start + moments::triangle(r) + r] = means[cols.start + r];
        }
    }
    sums
}

fn plain(quant: QuantType, values: &[f32], means: &[f32]) -> Vec<u8> {
    let row_bytes = quant.row_bytes(means.len()).expect("whole blocks");
    let mut out = vec![0; values.len() / means.len() * row_bytes];
    for (row, out) in values.chunks(means.len()).zip(out.chunks_mut(row_bytes)) {
        quantise(quant, row, Some(means), out);
    }
    out
}

fn carried(isa: Isa, quant: QuantType, values: &[f32], means: &[f32], feedback: &Feedback) -> Vec<u8> {
    let row_bytes = quant.row_bytes(means.len()).expect("whole blocks");
    let mut out = vec![0; values.len() / means.len() * row_bytes];
    quantise_rows_on(isa, quant, values, means, &feedback.of(means), &mut out);
    out
}

#[test]
fn carrying_lowers_what_errors_cost() {
    let (sums, means) = moments_of(ROW, 5);
    let feedback = Feedback::new(ROW, &sums).expect("sums of products");
    let carry = feedback.of(&means);
    let values = rows::rows(Kind::Gaussian, 24);
    for quant in types() {
        let cost = |bytes: &[u8]| -> f64 {
            let mut found = vec![0.0; values.len()];
            dequantise(quant, bytes, &mut found);
            found.iter_mut().zip(&values).for_each(|(found, value)| *found -= value);
            found.chunks(ROW).map(|errors| carry.cost(errors)).sum()
        };
        let before = cost(&plain(quant, &values, &means));
        let after = cost(&carried(Isa::detect(), quant, &values, &means, &feedback));
        assert!(after < 0.6 * before, "{quant}: {after:e} after {before:e}");
    }
}

#[test]
fn where_columns_know_nothing_of_each_other_nothing_changes() {
    let (_, means) = moments_of(ROW, 6);
    let feedback = Feedback::new(ROW, &diagonal(&means)).expect("sums of squares");
    for kind in rows::KINDS {
        let values = rows::rows(kind, 18);
        for quant in types() {
            let found = carried(Isa::detect(), quant, &values, &means, &feedback);
            assert!(found == plain(quant, &values, &means), "{quant} of {kind:?}");
        }
    }
}

#[test]
fn moments_that_are_none_are_not_taken() {
    let good = [2.0, 1.0, 2.0];
    assert!(Feedback::new(2, &good).is_some());
    for (at, value) in [(0, f32::NAN), (1, f32::INFINITY), (2, -2.0), (1, 3.0), (1, -3.0)] {
        let mut bad = good;
        bad[at] = value;
        assert!(Feedback::new(2, &bad).is_none(), "{bad:?}");
    }
    assert!(Feedback::new(2, &good[..2]).is_none() && Feedback::new(3, &good).is_none());
}

#[test]
fn columns_that_saw_nothing_and_odd_numbers_give_finite_blocks() {
    let (mut sums, means) = moments_of(ROW, 7);
    // Column 3 was always zero.
    for r in 3..256 {
        sums[moments::triangle(r) + 3] = 0.0;
    }
    (0..=3).for_each(|j| sums[moments::triangle(3) + j] = 0.0);
    let feedback = Feedback::new(ROW, &sums).expect("sums of products");
    let values = rows::rows(Kind::Outliers, 3);
    for odd in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, 1e-40] {
        let mut some = means.clone();
        some.iter_mut().step_by(5).for_each(|mean| *mean = odd);
        for means in [&some[..], &[odd; ROW]] {
            for quant in types() {
                let bytes = carried(Isa::detect(), quant, &values, means, &feedback);
                let mut found = vec![f32::NAN; values.len()];
                dequantise(quant, &bytes, &mut found);
                assert!(all_finite(&found), "{quant}, {odd}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn neither_instructions_nor_neighbours_change_a_byte(
        seed: u64, n in 1_usize..40, n_cols in prop::sample::select(vec![256_usize, 320, 512, 768]),
    ) {
        let (sums, means) = moments_of(n_cols, seed);
        let feedback = Feedback::new(n_cols, &sums).expect("sums of products");
        let mut noise = Noise::new(seed ^ 1);
        let values: Vec<f32> = (0..n * n_cols).map(|_| noise.laplace()).collect();
        for quant in types().filter(|quant| n_cols % quant.block_len() == 0) {
            let want = carried(Isa::BASELINE, quant, &values, &means, &feedback);
            for isa in Isa::all() {
                prop_assert!(carried(isa, quant, &values, &means, &feedback) == want, "{} on {:?}", quant, isa);
            }
            let row_bytes = want.len() / n;
            for (row, want) in values.chunks(n_cols).zip(want.chunks(row_bytes)) {
                let mut out = vec![0; row_bytes];
                quantise_rows(quant, row, &means, &feedback.of(&means), &mut out);
                prop_assert!(out == want, "{}", quant);
            }
        }
    }
}
