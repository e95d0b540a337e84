//! The scalar twin: plain loops that define what every other kernel must give.

use forerun_model::QuantType;

use super::{BlockSum, Columns, Isa, Kernels, LANES, check_sizes, fold};
use crate::activation::{ActivationRow, Operand, Q8Row, SUM_LEN};
use crate::dequant::{dequantise, half_at, min_sum_k4, scale_min_k4, scales_q3_k};
use crate::tensor::Matrix;

/// Plain loops; runs on every CPU.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

impl Kernels for Scalar {
    fn name(&self) -> &'static str {
        "scalar"
    }

    fn isa(&self) -> Isa {
        Isa::BASELINE
    }

    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
        check_sizes(matrix, x, out);
        row_by_row(matrix, x, out, dot);
    }
}

/// The product of a row of weights and a row of activations.
fn dot(quant: QuantType, weights: &[u8], row: ActivationRow<'_>) -> f32 {
    match (quant, row) {
        (QuantType::Q3_K, ActivationRow::Q8(x)) => blocks::<110>(weights, x, q3_k),
        (QuantType::Q4_K, ActivationRow::Q8(x)) => blocks::<144>(weights, x, q4_k),
        (QuantType::Q5_K, ActivationRow::Q8(x)) => blocks::<176>(weights, x, q5_k),
        (QuantType::Q6_K, ActivationRow::Q8(x)) => blocks::<210>(weights, x, q6_k),
        (QuantType::Q8_0, ActivationRow::Q8(x)) => q8_0(weights, x),
        (_, ActivationRow::F32(x)) => lanes(quant, weights, x),
        (_, ActivationRow::Q8(_)) => panic!("{quant} has no product with 8-bit activations"),
    }
}

/// Sums the blocks of a row from first to last.
fn blocks<const BYTES: usize>(
    weights: &[u8],
    x: Q8Row<'_>,
    block: fn(&[u8; BYTES], &[i8; 256], &[i16; 16]) -> BlockSum,
) -> f32 {
    let (weights, rest) = weights.as_chunks::<BYTES>();
    let (codes, sums) = (x.codes.as_chunks::<256>().0, x.sums.as_chunks::<16>().0);
    assert!(rest.is_empty() && weights.len() == codes.len(), "weights and activations of one length");
    assert!(sums.len() == codes.len() && x.scales.len() == codes.len(), "sums and scales of every block");
    let mut acc = 0.0;
    for (i, weights) in weights.iter().enumerate() {
        acc = block(weights, &codes[i], &sums[i]).add_to(acc, x.scales[i]);
    }
    acc
}

fn product(codes: impl Iterator<Item = u8>, x: &[i8]) -> i32 {
    codes.zip(x).map(|(w, &x)| i32::from(w) * i32::from(x)).sum()
}

fn q3_k(w: &[u8; 110], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let scales = scales_q3_k(&w[96..108]);
    let mut sum = 0;
    for (group, x) in x.as_chunks::<SUM_LEN>().0.iter().enumerate() {
        let (start, shift) = (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2);
        let code = |i: usize| {
            let high = w[start % 32 + i] >> (group / 2) & 1;
            (w[32 + start + i] >> shift & 3) | (high << 2)
        };
        let dot = product((0..SUM_LEN).map(code), x) - 4 * i32::from(sums[group]);
        sum += i32::from(scales[group]) * dot;
    }
    BlockSum { d: half_at(w, 108), dmin: 0.0, sum, min_sum: 0 }
}

fn q4_k(w: &[u8; 144], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let min_sum = min_sum_k4(&w[4..16], sums);
    let mut out = BlockSum { d: half_at(w, 0), dmin: half_at(w, 2), sum: 0, min_sum };
    for (group, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let (scale, _) = scale_min_k4(&w[4..16], group);
        let codes = w[16 + group / 2 * 32..][..32].iter().map(|q| q >> (group % 2 * 4) & 15);
        out.sum += i32::from(scale) * product(codes, x);
    }
    out
}

fn q5_k(w: &[u8; 176], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let min_sum = min_sum_k4(&w[4..16], sums);
    let mut out = BlockSum { d: half_at(w, 0), dmin: half_at(w, 2), sum: 0, min_sum };
    for (group, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let (scale, _) = scale_min_k4(&w[4..16], group);
        let low = w[48 + group / 2 * 32..][..32].iter().map(|q| q >> (group % 2 * 4) & 15);
        let codes = low.zip(&w[16..48]).map(|(low, fifth)| low | (fifth >> group & 1) << 4);
        out.sum += i32::from(scale) * product(codes, x);
    }
    out
}

fn q6_k(w: &[u8; 210], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let mut sum = 0;
    for (group, x) in x.as_chunks::<SUM_LEN>().0.iter().enumerate() {
        let (half, quarter, odd) = (group / 8, group % 8 / 2, group % 2 * 16);
        let low = &w[half * 64 + quarter % 2 * 32 + odd..][..16];
        let high = &w[128 + half * 32 + odd..][..16];
        let codes = low.iter().zip(high).map(|(low, high)| {
            let pair = high >> (quarter * 2) & 3;
            (low >> (quarter / 2 * 4) & 15) | (pair << 4)
        });
        let dot = product(codes, x) - 32 * i32::from(sums[group]);
        sum += i32::from(w[192 + group].cast_signed()) * dot;
    }
    BlockSum { d: half_at(w, 208), dmin: 0.0, sum, min_sum: 0 }
}

#[expect(clippy::cast_precision_loss, reason = "the sum is below 2^24")]
fn q8_0(weights: &[u8], x: Q8Row<'_>) -> f32 {
    let (weights, rest) = weights.as_chunks::<34>();
    let codes = x.codes.as_chunks::<32>().0;
    assert!(rest.is_empty() && weights.len() == codes.len(), "weights and activations of one length");
    assert_eq!(x.scales.len(), codes.len(), "a scale for every block");
    let mut acc = 0.0;
    for ((w, codes), scale) in weights.iter().zip(codes).zip(x.scales) {
        let products = w[2..].iter().zip(codes).map(|(w, &x)| i32::from(w.cast_signed()) * i32::from(x));
        acc += (half_at(w, 0) * scale) * products.sum::<i32>() as f32;
    }
    acc
}

fn lanes(quant: QuantType, weights: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    decoded(quant, weights, x.len(), |w, at| {
        for (w, x) in w.chunks(LANES).zip(x[at..].chunks(LANES)) {
            for ((lane, w), x) in lanes.iter_mut().zip(w).zip(x) {
                *lane += w * x;
            }
        }
    });
    fold(lanes)
}

/// A whole product by the product of one row with one row.
#[inline(always)]
fn row_by_row(
    matrix: Matrix<'_>,
    x: Operand<'_>,
    out: &mut Columns<'_>,
    dot: impl Fn(QuantType, &[u8], ActivationRow<'_>) -> f32,
) {
    for r in 0..matrix.layout.n_rows {
        let weights = matrix.row(r);
        for i in 0..x.len() {
            out.row(i)[r] = dot(matrix.layout.quant, weights, x.row(i));
        }
    }
}

/// Walks a row of any decodable type in pieces of up to 256 values: `add` sees their f32 values and where they begin.
#[inline(always)]
fn decoded(quant: QuantType, weights: &[u8], n_cols: usize, mut add: impl FnMut(&[f32], usize)) {
    const PIECE: usize = 256;
    let bytes = PIECE / quant.block_len() * quant.block_bytes();
    assert_eq!(quant.row_bytes(n_cols), Some(weights.len()), "weights and activations of one length");
    let mut values = [0.0; PIECE];
    for (i, weights) in weights.chunks(bytes).enumerate() {
        let values = &mut values[..PIECE.min(n_cols - i * PIECE)];
        dequantise(quant, weights, values);
        add(values, i * PIECE);
    }
}
