//! AVX2: products with f32 activations. Weights are loaded, or decoded, once for several rows of activations.

use std::arch::x86_64::__m256;

use forerun_model::QuantType;

use super::avx2_ops::Avx2;
use super::{Columns, LANES, fold};
use crate::activation::Operand;
use crate::dequant::dequantise;
use crate::tensor::Matrix;

/// Rows of activations whose lanes fit the registers.
const PAIR: usize = 2;
/// Matrix rows that stay in a cache near the core while all rows of activations pass.
const CACHED_ROWS: usize = 16;
/// Rows of activations that a decoded piece is multiplied with before the next is decoded.
const DECODED_ROWS: usize = 8;
/// Weights that are decoded at a time: whole blocks of every type.
const PIECE: usize = 256;

/// Four registers of eight lanes are the 32 lanes of the contract.
type Lanes = [__m256; LANES / 8];

/// A whole product of weights of any decodable type.
#[inline(always)]
pub(super) fn multiply_f32(v: Avx2, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    match matrix.layout.quant {
        QuantType::F32 => words(v, load_f32, matrix, x, out),
        QuantType::F16 => words(v, load_f16, matrix, x, out),
        QuantType::BF16 => words(v, load_bf16, matrix, x, out),
        _ => decoded(v, matrix, x, out),
    }
}

#[inline(always)]
fn load_f32(v: Avx2, bytes: &[u8; 32]) -> __m256 {
    v.bits_f32(v.load(bytes))
}

#[inline(always)]
fn load_f16(v: Avx2, bytes: &[u8; 16]) -> __m256 {
    v.f16_to_f32(v.load_half(bytes))
}

#[inline(always)]
fn load_bf16(v: Avx2, bytes: &[u8; 16]) -> __m256 {
    v.bits_f32(v.upper_u16(v.widen_u16(v.load_half(bytes))))
}

#[inline(always)]
fn load_values(v: Avx2, values: &[f32; 8]) -> __m256 {
    v.load_ps(values)
}

/// A product of weights that stand alone, eight of them in `EIGHT` bytes.
#[inline(always)]
fn words<const EIGHT: usize>(
    v: Avx2,
    load: impl Fn(Avx2, &[u8; EIGHT]) -> __m256 + Copy,
    matrix: Matrix<'_>,
    x: Operand<'_>,
    out: &mut Columns<'_>,
) {
    let (n_rows, n_cols) = (matrix.layout.n_rows, matrix.layout.n_cols);
    let whole = n_cols / LANES * LANES;
    for start in (0..n_rows).step_by(CACHED_ROWS) {
        for first in (0..x.len()).step_by(PAIR) {
            let n = PAIR.min(x.len() - first);
            let rows = [x.values(first), x.values(first + n - 1)];
            for r in start..n_rows.min(start + CACHED_ROWS) {
                let (weights, rest) = matrix.row(r).split_at(whole / 8 * EIGHT);
                let weights = weights.as_chunks::<EIGHT>().0;
                let mut lanes = [[v.zero_ps(); LANES / 8]; PAIR];
                if n == PAIR {
                    accumulate(v, load, weights, rows, &mut lanes);
                } else {
                    accumulate(v, load, weights, [rows[0]], lanes[..1].as_mut_array().expect("one of two"));
                }
                let mut values = [0.0; LANES];
                let rest_values = &mut values[..n_cols - whole];
                dequantise(matrix.layout.quant, rest, rest_values);
                for i in 0..n {
                    out.row(first + i)[r] = finish(v, lanes[i], rest_values, &rows[i][whole..]);
                }
            }
        }
    }
}

/// A product of weights that are decoded first; their blocks fill the lanes.
#[inline(always)]
fn decoded(v: Avx2, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    let layout = matrix.layout;
    let bytes = PIECE / layout.quant.block_len() * layout.quant.block_bytes();
    let mut values = [0.0; PIECE];
    for r in 0..layout.n_rows {
        for first in (0..x.len()).step_by(DECODED_ROWS) {
            let n = DECODED_ROWS.min(x.len() - first);
            let mut lanes = [[v.zero_ps(); LANES / 8]; DECODED_ROWS];
            for (piece, weights) in matrix.row(r).chunks(bytes).enumerate() {
                let at = piece * PIECE;
                let values = &mut values[..PIECE.min(layout.n_cols - at)];
                dequantise(layout.quant, weights, values);
                let weights = values.as_chunks::<8>().0;
                let row = |i: usize| &x.values(first + i)[at..at + weights.len() * 8];
                let (pairs, last) = lanes[..n].as_chunks_mut::<PAIR>();
                for (i, lanes) in pairs.iter_mut().enumerate() {
                    accumulate(v, load_values, weights, [row(PAIR * i), row(PAIR * i + 1)], lanes);
                }
                if let Some(lanes) = last.as_mut_array() {
                    accumulate(v, load_values, weights, [row(n - 1)], lanes);
                }
            }
            for (i, lanes) in lanes[..n].iter().enumerate() {
                out.row(first + i)[r] = finish(v, *lanes, &[], &[]);
            }
        }
    }
}

/// Adds the products of `weights`, eight in each `W`, with as many values of `N` rows to the rows' lanes.
#[inline(always)]
fn accumulate<W, const N: usize>(
    v: Avx2,
    load: impl Fn(Avx2, &W) -> __m256,
    weights: &[W],
    x: [&[f32]; N],
    lanes: &mut [Lanes; N],
) {
    let weights = weights.as_chunks::<{ LANES / 8 }>().0;
    let mut rows: [&[[f32; LANES]]; N] = [&[]; N];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = &x[i].as_chunks().0[..weights.len()];
    }
    let mut acc = *lanes;
    for (at, eights) in weights.iter().enumerate() {
        let mut weights = [v.zero_ps(); LANES / 8];
        for (lane, weights) in weights.iter_mut().enumerate() {
            *weights = load(v, &eights[lane]);
        }
        for (i, acc) in acc.iter_mut().enumerate() {
            let x = rows[i][at].as_chunks::<8>().0;
            for (lane, acc) in acc.iter_mut().enumerate() {
                *acc = v.add(*acc, v.mul(weights[lane], v.load_ps(&x[lane])));
            }
        }
    }
    *lanes = acc;
}

/// The sum of the lanes after the last few products, which don't fill them.
#[inline(always)]
fn finish(v: Avx2, lanes: Lanes, weights: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (i, sums) in sums.as_chunks_mut().0.iter_mut().enumerate() {
        *sums = v.store_ps(lanes[i]);
    }
    for (i, w) in weights.iter().enumerate() {
        sums[i] += w * x[i];
    }
    fold(sums)
}
