//! Types that multiply f32 activations: F32, F16 and BF16 as they lie, all others decoded piece by piece.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx512`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

use forerun_model::QuantType;

use crate::activation::Operand;
use crate::dequant::dequantise;
use crate::kernels::{Columns, LANES, fold};
use crate::tensor::Matrix;

/// Rows of activations that are multiplied with a row of weights at once.
const X_MAX: usize = 4;
/// Values that are decoded at once.
const PIECE: usize = 256;

/// The products of all rows.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ and VL, and F16C; sizes fit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) unsafe fn multiply(matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    let mut start = 0;
    while start < x.len() {
        // SAFETY: the caller's promise; as many rows of activations are there.
        start += unsafe {
            if x.len() - start >= X_MAX {
                some_rows::<X_MAX>(matrix, x, start, out)
            } else {
                some_rows::<1>(matrix, x, start, out)
            }
        };
    }
}

/// The products of all matrix rows and `M` rows of activations from `start` on; returns `M`.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn some_rows<const M: usize>(
    matrix: Matrix<'_>,
    x: Operand<'_>,
    start: usize,
    out: &mut Columns<'_>,
) -> usize {
    let (quant, n_cols) = (matrix.layout.quant, matrix.layout.n_cols);
    let mut rows = [&[][..]; M];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = x.values(start + i);
    }
    for r in 0..matrix.layout.n_rows {
        let weights = matrix.row(r);
        let mut lanes = [[0.0; LANES]; M];
        // SAFETY: the row has `n_cols` values of its type, as do the activations.
        unsafe {
            match quant {
                QuantType::F32 => add::<F32, M>(&mut lanes, weights.as_ptr(), &rows, 0, n_cols),
                QuantType::F16 => add::<F16, M>(&mut lanes, weights.as_ptr(), &rows, 0, n_cols),
                QuantType::BF16 => add::<Bf16, M>(&mut lanes, weights.as_ptr(), &rows, 0, n_cols),
                _ => {
                    let bytes = PIECE / quant.block_len() * quant.block_bytes();
                    let mut values = [0.0_f32; PIECE];
                    for (i, weights) in weights.chunks(bytes).enumerate() {
                        let n = PIECE.min(n_cols - i * PIECE);
                        dequantise(quant, weights, &mut values[..n]);
                        add::<F32, M>(&mut lanes, values.as_ptr().cast(), &rows, i * PIECE, n);
                    }
                }
            }
        }
        for (i, lanes) in lanes.iter().enumerate() {
            out.row(start + i)[r] = fold(*lanes);
        }
    }
    M
}

/// A type whose values stand alone.
trait Float {
    const BYTES: usize;

    /// Sixteen values as f32.
    ///
    /// # Safety
    /// They lie behind `at`, and the CPU has AVX-512 and F16C.
    unsafe fn load(at: *const u8) -> __m512;

    /// One value.
    ///
    /// # Safety
    /// It lies behind `at`.
    unsafe fn one(at: *const u8) -> f32;
}

struct F32;
struct F16;
struct Bf16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller's promise; unaligned load.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }

    #[inline(always)]
    unsafe fn one(at: *const u8) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<f32>().read_unaligned() }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller's promise; unaligned load.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn one(at: *const u8) -> f32 {
        // SAFETY: the caller's promise.
        half::f16::from_bits(unsafe { at.cast::<u16>().read_unaligned() }).to_f32()
    }
}

impl Float for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller's promise; unaligned load.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    unsafe fn one(at: *const u8) -> f32 {
        // SAFETY: the caller's promise.
        f32::from_bits(u32::from(unsafe { at.cast::<u16>().read_unaligned() }) << 16)
    }
}

/// Adds the products of `n` weights and as many activations of each row, from column `first` on, to the lanes.
///
/// # Safety
/// The CPU has AVX-512 and F16C; `n` weights lie behind `weights`, `first + n` activations in each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn add<F: Float, const M: usize>(
    lanes: &mut [[f32; LANES]; M],
    weights: *const u8,
    rows: &[&[f32]; M],
    first: usize,
    n: usize,
) {
    let mut acc = [[_mm512_setzero_ps(); 2]; M];
    for i in 0..M {
        // SAFETY: two registers of sixteen lanes each.
        unsafe { acc[i] = [_mm512_loadu_ps(lanes[i].as_ptr()), _mm512_loadu_ps(lanes[i].as_ptr().add(16))] };
    }
    let whole = n / LANES * LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: `at + 32` is at most `n`.
        unsafe {
            let weights = weights.add(at * F::BYTES);
            let (low, high) = (F::load(weights), F::load(weights.add(16 * F::BYTES)));
            for i in 0..M {
                let x = rows[i].as_ptr().add(first + at);
                acc[i][0] = _mm512_add_ps(acc[i][0], _mm512_mul_ps(low, _mm512_loadu_ps(x)));
                acc[i][1] = _mm512_add_ps(acc[i][1], _mm512_mul_ps(high, _mm512_loadu_ps(x.add(16))));
            }
        }
        at += LANES;
    }
    for i in 0..M {
        // SAFETY: as for the loads; what is left are fewer than 32 values.
        unsafe {
            _mm512_storeu_ps(lanes[i].as_mut_ptr(), acc[i][0]);
            _mm512_storeu_ps(lanes[i].as_mut_ptr().add(16), acc[i][1]);
            for j in whole..n {
                lanes[i][j - whole] += F::one(weights.add(j * F::BYTES)) * rows[i][first + j];
            }
        }
    }
}
