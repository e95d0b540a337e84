//! Q8_0: blocks of 32 weights with a factor each, two blocks a register, four matrix rows at a time.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx512`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

use super::rows::{ROWS, X_MAX, by_fours, factors, fetch_ahead, pairs_of_four};
use crate::activation::{Operand, Q8Row};
use crate::kernels::Columns;
use crate::tensor::Matrix;

/// Bytes of a block: a half float and 32 codes.
const BYTES: usize = 34;

/// The products of all rows.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL, VNNI and F16C; sizes fit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn multiply(matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    // SAFETY: the caller's promise; each pointer has a row of blocks behind it, as long as the activations.
    by_fours(matrix, x, out, |weights, rows| unsafe { four_rows(weights, rows) });
}

/// # Safety
/// As [`multiply`]; every pointer has as many blocks behind it as the activations have.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn four_rows(weights: [*const u8; ROWS], rows: &[Q8Row<'_>]) -> [[f32; ROWS]; X_MAX] {
    let n_blocks = rows[0].scales.len();
    let mut acc = [_mm_setzero_ps(); X_MAX];
    let signs = _mm512_set1_epi8(i8::MIN);
    for b in (0..n_blocks).step_by(2) {
        // The last of an odd number of blocks is walked alone.
        let two = b + 1 < n_blocks;
        let at = weights.map(|w| w.wrapping_add(b * BYTES));
        for at in at {
            fetch_ahead(at, 2 * BYTES);
        }
        // SAFETY: block `b`, and the next if there are two, lie behind every pointer.
        let (codes, d, d_next) = unsafe {
            // Codes are signed; with 128 added they multiply as unsigned.
            let codes =
                |i: usize| _mm512_xor_si512(load(at[i].add(2), at[i].wrapping_add(BYTES + 2), two), signs);
            let after = at.map(|at| if two { at.add(BYTES) } else { at });
            ([codes(0), codes(1), codes(2), codes(3)], factors(at, 0), factors(after, 0))
        };
        for (acc, x) in acc.iter_mut().zip(rows) {
            let x_codes = x.codes[32 * b..].as_ptr().cast::<u8>();
            // SAFETY: 32 codes lie there for each of the blocks.
            let x_codes = unsafe { load(x_codes, x_codes.wrapping_add(32), two) };
            let zero = _mm512_setzero_si512();
            let added = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, signs, x_codes));
            let parts = |i: usize| _mm512_dpbusd_epi32(added, codes[i], x_codes);
            let [first, second] = pairs_of_four([parts(0), parts(1), parts(2), parts(3)]);
            let product = _mm_mul_ps(_mm_mul_ps(d, _mm_set1_ps(x.scales[b])), _mm_cvtepi32_ps(first));
            *acc = _mm_add_ps(*acc, product);
            if two {
                let scale = _mm_set1_ps(x.scales[b + 1]);
                *acc = _mm_add_ps(*acc, _mm_mul_ps(_mm_mul_ps(d_next, scale), _mm_cvtepi32_ps(second)));
            }
        }
    }
    let mut out = [[0.0; ROWS]; X_MAX];
    for (out, acc) in out.iter_mut().zip(acc) {
        // SAFETY: four values lie there; unaligned store.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), acc) };
    }
    out
}

/// 32 bytes and, if there are two blocks, 32 more.
///
/// # Safety
/// 32 bytes lie behind `first`, and behind `second` if `two`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load(first: *const u8, second: *const u8, two: bool) -> __m512i {
    // SAFETY: the caller's promise; unaligned loads.
    unsafe {
        let low = _mm512_zextsi256_si512(_mm256_loadu_si256(first.cast()));
        if two { _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(second.cast())) } else { low }
    }
}
