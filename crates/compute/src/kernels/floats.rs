//! Products with f32 activations: weights are loaded, or decoded, once for several rows of activations.

use forerun_model::QuantType;

use super::isa::Loop;
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

/// The 32 lanes of the contract in one instruction set's registers. Every method must be `#[inline(always)]`.
pub(super) trait Floats: Copy {
    /// A value for every lane.
    type Lanes: Copy;

    /// All zero.
    fn zeros(self) -> Self::Lanes;

    /// Weights of F32.
    fn load_f32(self, words: &[u8; 4 * LANES]) -> Self::Lanes;

    /// Weights of F16.
    fn load_f16(self, words: &[u8; 2 * LANES]) -> Self::Lanes;

    /// Weights of BF16.
    fn load_bf16(self, words: &[u8; 2 * LANES]) -> Self::Lanes;

    /// Values as they are.
    fn load(self, values: &[f32; LANES]) -> Self::Lanes;

    /// `sums + weights * x`, each rounded.
    fn add_products(self, sums: Self::Lanes, weights: Self::Lanes, x: &[f32; LANES]) -> Self::Lanes;

    /// The lanes' values.
    fn store(self, lanes: Self::Lanes) -> [f32; LANES];
}

/// A whole product of weights of any decodable type, which [`check_sizes`](super::check_sizes) has passed.
pub(super) struct Products<'a, 'b, V> {
    pub(super) v: V,
    pub(super) matrix: Matrix<'a>,
    pub(super) x: Operand<'a>,
    pub(super) out: &'a mut Columns<'b>,
}

impl<V: Floats> Loop for Products<'_, '_, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { v, matrix, x, out } = self;
        match matrix.layout.quant {
            QuantType::F32 => words(v, V::load_f32, matrix, x, out),
            QuantType::F16 => words(v, V::load_f16, matrix, x, out),
            QuantType::BF16 => words(v, V::load_bf16, matrix, x, out),
            _ => decoded(v, matrix, x, out),
        }
    }
}

/// A product of weights that stand alone, as many as there are lanes in `BYTES` bytes.
#[inline(always)]
fn words<V: Floats, const BYTES: usize>(
    v: V,
    load: impl Fn(V, &[u8; BYTES]) -> V::Lanes + Copy,
    matrix: Matrix<'_>,
    x: Operand<'_>,
    out: &mut Columns<'_>,
) {
    let (n_rows, n_cols) = (matrix.layout.n_rows, matrix.layout.n_cols);
    let whole = n_cols / LANES;
    for start in (0..n_rows).step_by(CACHED_ROWS) {
        for first in (0..x.len()).step_by(PAIR) {
            let n = PAIR.min(x.len() - first);
            let rows = [x.values(first), x.values(first + n - 1)];
            for r in start..n_rows.min(start + CACHED_ROWS) {
                let (weights, rest) = matrix.row(r).split_at(whole * BYTES);
                let weights = weights.as_chunks::<BYTES>().0;
                let mut lanes = [v.zeros(); PAIR];
                if n == PAIR {
                    accumulate(v, load, weights, rows, &mut lanes);
                } else {
                    accumulate(v, load, weights, [rows[0]], lanes[..1].as_mut_array().expect("one of two"));
                }
                for i in 0..n {
                    let mut sums = v.store(lanes[i]);
                    add_rest(&mut sums, matrix.layout.quant, rest, &rows[i][whole * LANES..]);
                    out.row(first + i)[r] = fold(sums);
                }
            }
        }
    }
}

/// The last products of a row, which don't fill the lanes.
#[inline(always)]
fn add_rest(sums: &mut [f32; LANES], quant: QuantType, weights: &[u8], x: &[f32]) {
    if x.is_empty() {
        return;
    }
    let mut values = [0.0; LANES];
    dequantise(quant, weights, &mut values[..x.len()]);
    for (i, x) in x.iter().enumerate() {
        sums[i] += values[i] * x;
    }
}

/// A product of weights that are decoded first; their blocks fill the lanes.
#[inline(always)]
fn decoded<V: Floats>(v: V, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    let layout = matrix.layout;
    let bytes = PIECE / layout.quant.block_len() * layout.quant.block_bytes();
    let mut values = [0.0; PIECE];
    for r in 0..layout.n_rows {
        for first in (0..x.len()).step_by(DECODED_ROWS) {
            let n = DECODED_ROWS.min(x.len() - first);
            let mut lanes = [v.zeros(); DECODED_ROWS];
            for (piece, weights) in matrix.row(r).chunks(bytes).enumerate() {
                let at = piece * PIECE;
                let values = &mut values[..PIECE.min(layout.n_cols - at)];
                dequantise(layout.quant, weights, values);
                let weights = values.as_chunks::<LANES>().0;
                let row = |i: usize| &x.values(first + i)[at..at + weights.len() * LANES];
                let (pairs, last) = lanes[..n].as_chunks_mut::<PAIR>();
                for (i, lanes) in pairs.iter_mut().enumerate() {
                    accumulate(v, V::load, weights, [row(PAIR * i), row(PAIR * i + 1)], lanes);
                }
                if let Some(lanes) = last.as_mut_array() {
                    accumulate(v, V::load, weights, [row(n - 1)], lanes);
                }
            }
            for (i, lanes) in lanes[..n].iter().enumerate() {
                out.row(first + i)[r] = fold(v.store(*lanes));
            }
        }
    }
}

/// Adds the products of `weights`, a value for every lane in each `W`, with as many values of `N` rows to their lanes.
#[inline(always)]
fn accumulate<V: Floats, W, const N: usize>(
    v: V,
    load: impl Fn(V, &W) -> V::Lanes,
    weights: &[W],
    x: [&[f32]; N],
    lanes: &mut [V::Lanes; N],
) {
    let mut rows: [&[[f32; LANES]]; N] = [&[]; N];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = &x[i].as_chunks().0[..weights.len()];
    }
    let mut sums = *lanes;
    for (at, weights) in weights.iter().enumerate() {
        let weights = load(v, weights);
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = v.add_products(*sums, weights, &rows[i][at]);
        }
    }
    *lanes = sums;
}
