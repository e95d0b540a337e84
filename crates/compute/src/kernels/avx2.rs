//! AVX2: the rows. Blocks of 256 weights are in `avx2_blocks`.

#![expect(unsafe_code, reason = "CPU intrinsics; a value of `Avx2` proves that the CPU has them")]

use std::arch::x86_64::*;

use forerun_model::QuantType;

use super::avx2_blocks::{q3_k, q4_k, q5_k, q6_k, sum_i32};
use super::{Columns, Isa, Kernels, LANES, check_sizes, decoded, row_by_row};
use crate::activation::{ActivationRow, Operand, Q8Row};
use crate::dequant::half_at;
use crate::tensor::Matrix;

/// Proof that this CPU has AVX2: [`Avx2::detect`] is the only way to get one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The kernels, where the CPU can run them.
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

impl Kernels for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn isa(&self) -> Isa {
        Isa::detect()
    }

    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
        check_sizes(matrix, x, out);
        // SAFETY: `self` exists, so `detect` saw AVX2 on this CPU.
        row_by_row(matrix, x, out, |quant, weights, row| unsafe {
            match (quant, row) {
                (QuantType::Q3_K, ActivationRow::Q8(x)) => row_q3_k(weights, x),
                (QuantType::Q4_K, ActivationRow::Q8(x)) => row_q4_k(weights, x),
                (QuantType::Q5_K, ActivationRow::Q8(x)) => row_q5_k(weights, x),
                (QuantType::Q6_K, ActivationRow::Q8(x)) => row_q6_k(weights, x),
                (QuantType::Q8_0, ActivationRow::Q8(x)) => row_q8_0(weights, x),
                (_, ActivationRow::F32(x)) => row_f32(quant, weights, x),
                (_, ActivationRow::Q8(_)) => panic!("{quant} has no product with 8-bit activations"),
            }
        });
    }
}

/// A row function of one block function: the loop over blocks, compiled for AVX2 as a whole.
macro_rules! row_of_blocks {
    ($row:ident, $block:ident, $bytes:literal) => {
        #[target_feature(enable = "avx2")]
        fn $row(weights: &[u8], x: Q8Row<'_>) -> f32 {
            let (weights, rest) = weights.as_chunks::<$bytes>();
            let (codes, sums) = (x.codes.as_chunks::<256>().0, x.sums.as_chunks::<16>().0);
            assert!(rest.is_empty() && weights.len() == codes.len(), "weights and activations of one length");
            assert!(sums.len() == codes.len() && x.scales.len() == codes.len(), "sums and scales of all");
            let mut acc = 0.0;
            for (i, weights) in weights.iter().enumerate() {
                acc = $block(weights, &codes[i], &sums[i]).add_to(acc, x.scales[i]);
            }
            acc
        }
    };
}

row_of_blocks!(row_q3_k, q3_k, 110);
row_of_blocks!(row_q4_k, q4_k, 144);
row_of_blocks!(row_q5_k, q5_k, 176);
row_of_blocks!(row_q6_k, q6_k, 210);

#[target_feature(enable = "avx2")]
#[expect(clippy::cast_precision_loss, reason = "the sum is below 2^24")]
fn row_q8_0(weights: &[u8], x: Q8Row<'_>) -> f32 {
    let (weights, rest) = weights.as_chunks::<34>();
    let codes = x.codes.as_chunks::<32>().0;
    assert!(rest.is_empty() && weights.len() == codes.len(), "weights and activations of one length");
    assert_eq!(x.scales.len(), codes.len(), "a scale for every block");
    let ones = _mm256_set1_epi16(1);
    let mut acc = 0.0;
    for ((w, codes), scale) in weights.iter().zip(codes).zip(x.scales) {
        // SAFETY: 32 bytes lie behind both pointers; unaligned loads.
        let (q, x) = unsafe {
            (_mm256_loadu_si256(w[2..].as_ptr().cast()), _mm256_loadu_si256(codes.as_ptr().cast()))
        };
        // |w| <= 128 and |x| <= 127, so two products fit 16 bits.
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
        let sum = sum_i32(_mm256_madd_epi16(pairs, ones));
        acc += (half_at(w, 0) * scale) * sum as f32;
    }
    acc
}

/// Four accumulators of eight lanes are the 32 lanes of the contract.
#[target_feature(enable = "avx2")]
fn row_f32(quant: QuantType, weights: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    if quant == QuantType::F32 {
        assert_eq!(weights.len(), x.len() * 4, "weights and activations of one length");
        let whole = x.len() / LANES * LANES;
        // SAFETY: `whole` values lie behind both pointers; unaligned loads.
        unsafe { accumulate(&mut lanes, weights.as_ptr().cast(), x.as_ptr(), whole) };
        for (i, (w, x)) in weights[whole * 4..].as_chunks::<4>().0.iter().zip(&x[whole..]).enumerate() {
            lanes[i] += f32::from_le_bytes(*w) * x;
        }
    } else {
        decoded(quant, weights, x.len(), |w, at| {
            let x = &x[at..at + w.len()];
            let whole = x.len() / LANES * LANES;
            // SAFETY: `decoded` hands out slices of one length, at least `whole`.
            unsafe { accumulate(&mut lanes, w.as_ptr(), x.as_ptr(), whole) };
            for (i, (w, x)) in w[whole..].iter().zip(&x[whole..]).enumerate() {
                lanes[i] += w * x;
            }
        });
    }
    super::fold(lanes)
}

/// Adds `n` products, a multiple of [`LANES`], to the lanes.
///
/// # Safety
/// `n` values can be read behind `w` and `x`, at any alignment.
#[target_feature(enable = "avx2")]
unsafe fn accumulate(lanes: &mut [f32; LANES], w: *const f32, x: *const f32, n: usize) {
    let mut acc = [_mm256_setzero_ps(); 4];
    for (i, acc) in acc.iter_mut().enumerate() {
        // SAFETY: eight lanes lie behind lane `8 * i` of 32.
        *acc = unsafe { _mm256_loadu_ps(lanes[8 * i..].as_ptr()) };
    }
    for at in (0..n).step_by(LANES) {
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: `at + 8 * i + 8 <= n`, which the caller vouches for.
            let product = unsafe {
                _mm256_mul_ps(_mm256_loadu_ps(w.add(at + 8 * i)), _mm256_loadu_ps(x.add(at + 8 * i)))
            };
            *acc = _mm256_add_ps(*acc, product);
        }
    }
    for (i, acc) in acc.iter().enumerate() {
        // SAFETY: as for the loads above.
        unsafe { _mm256_storeu_ps(lanes[8 * i..].as_mut_ptr(), *acc) };
    }
}
