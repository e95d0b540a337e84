//! Four matrix rows at a time against up to [`X_MAX`] rows of activations: each block is unpacked once, and the lanes of
//! the four rows' sums are reduced together.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx512`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

use super::blocks::{Block, Offsets, Unpacked};
use crate::activation::{Operand, Q8Row};
use crate::kernels::Columns;
use crate::tensor::Matrix;

/// Matrix rows that are walked together.
pub(super) const ROWS: usize = 4;
/// Rows of activations that are multiplied with a block while it is unpacked.
pub(super) const X_MAX: usize = 8;
/// How far ahead of the weights that are multiplied others of the same row, and of the next, are fetched.
const AHEAD_BYTES: usize = 1024;

/// A block that is ready to be multiplied: scales stand as the products' lanes do.
#[derive(Clone, Copy)]
struct Ready {
    codes: [__m512i; 4],
    scales: [__m512i; 2],
    offsets: __m256i,
}

/// The products of all rows.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL, VNNI and F16C; sizes fit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn multiply<B: Block>(matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    // SAFETY: the caller's promise; each pointer has a row of blocks behind it, as long as the activations.
    by_fours(matrix, x, out, |weights, rows| unsafe { four_rows::<B>(weights, rows) });
}

/// Walks the rows of a matrix four at a time: `sums` gets where they begin and up to [`X_MAX`] rows of activations.
///
/// Each of the four comes from a quarter of its own, so that four streams are read from memory, each in one go, which a
/// core's prefetchers follow further ahead than one that jumps between neighbouring rows.
pub(super) fn by_fours(
    matrix: Matrix<'_>,
    x: Operand<'_>,
    out: &mut Columns<'_>,
    sums: impl Fn([*const u8; ROWS], &[Q8Row<'_>]) -> [[f32; ROWS]; X_MAX],
) {
    let (n_rows, row_bytes) = (matrix.layout.n_rows, matrix.layout.row_bytes());
    let quarter = n_rows / ROWS;
    let n_groups = quarter + usize::from(!n_rows.is_multiple_of(ROWS));
    for group in 0..n_groups {
        // What is left are fewer than four rows; the last of them is repeated.
        let (places, n) = if group < quarter {
            ([group, quarter + group, 2 * quarter + group, 3 * quarter + group], ROWS)
        } else {
            let row = |i: usize| (ROWS * quarter + i).min(n_rows - 1);
            ([row(0), row(1), row(2), row(3)], n_rows - ROWS * quarter)
        };
        let mut weights = [std::ptr::null(); ROWS];
        for (weights, row) in weights.iter_mut().zip(places) {
            *weights = matrix.bytes[row * row_bytes..].as_ptr();
        }
        for start in (0..x.len()).step_by(X_MAX) {
            let m = X_MAX.min(x.len() - start);
            let mut rows = [Q8Row::default(); X_MAX];
            for (i, row) in rows[..m].iter_mut().enumerate() {
                *row = x.codes(start + i);
            }
            let sums = sums(weights, &rows[..m]);
            for (i, sums) in sums[..m].iter().enumerate() {
                let out = out.row(start + i);
                for (row, sum) in places[..n].iter().zip(sums) {
                    out[*row] = *sum;
                }
            }
        }
    }
}

/// Fetches the weights that come after those of `bytes` bytes at `at` in a while.
#[inline(always)]
pub(super) fn fetch_ahead(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a hint, for which it doesn't matter what lies there; every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD_BYTES + 64 * line).cast()) };
    }
}

/// # Safety
/// As [`multiply`]; every pointer has as many blocks behind it as the activations have.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn four_rows<B: Block>(weights: [*const u8; ROWS], rows: &[Q8Row<'_>]) -> [[f32; ROWS]; X_MAX] {
    let n_blocks = rows[0].scales.len();
    let mut acc = [_mm_setzero_ps(); X_MAX];
    for b in 0..n_blocks {
        let at = weights.map(|w| w.wrapping_add(b * B::BYTES));
        for at in at {
            fetch_ahead(at, B::BYTES);
        }
        // SAFETY: block `b` lies behind every pointer; where there are minima, so do their factors.
        let (blocks, d, dmin) = unsafe {
            let ready = |i: usize| ready(B::unpack(at[i]));
            let dmin = match B::OFFSETS {
                Offsets::Minima => factors(at, B::FACTOR_AT + 2),
                Offsets::OfSum => _mm_setzero_ps(),
            };
            ([ready(0), ready(1), ready(2), ready(3)], factors(at, B::FACTOR_AT), dmin)
        };
        for (acc, x) in acc.iter_mut().zip(rows) {
            let codes: &[i8; 256] = x.codes[256 * b..].first_chunk().expect("256 codes a block");
            let sums: &[i16; 16] = x.sums[16 * b..].first_chunk().expect("16 sums a block");
            // SAFETY: 256 codes and 16 sums lie there; unaligned loads.
            let (codes, sums) = unsafe {
                let part = |i: usize| _mm512_loadu_si512(codes[64 * i..].as_ptr().cast());
                ([part(0), part(1), part(2), part(3)], _mm256_loadu_si256(sums.as_ptr().cast()))
            };
            let scale = _mm_set1_ps(x.scales[b]);
            let parts = |i: usize| sum_parts(&blocks[i], &codes, sums, B::OFFSETS);
            let sum = _mm_cvtepi32_ps(reduce([parts(0), parts(1), parts(2), parts(3)]));
            let mut product = _mm_mul_ps(_mm_mul_ps(d, scale), sum);
            if B::OFFSETS == Offsets::Minima {
                let minima = |i: usize| _mm256_madd_epi16(blocks[i].offsets, sums);
                let minima = reduce_256([minima(0), minima(1), minima(2), minima(3)]);
                let minima = _mm_cvtepi32_ps(minima);
                product = _mm_sub_ps(product, _mm_mul_ps(_mm_mul_ps(dmin, scale), minima));
            }
            *acc = _mm_add_ps(*acc, product);
        }
    }
    let mut out = [[0.0; ROWS]; X_MAX];
    for (out, acc) in out.iter_mut().zip(acc) {
        // SAFETY: four values lie there; unaligned store.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), acc) };
    }
    out
}

/// Spreads a block's scales over the lanes of [`sum_parts`]: in each 128 bits four products of one group of 16 codes,
/// then four of the group four further on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn ready(block: Unpacked) -> Ready {
    let scales = _mm512_castsi256_si512(block.scales);
    let spread = |first: i64| {
        // Indices of 16 bits: four of `first + c`, four of `first + 4 + c`, for chunk `c`.
        let index = |c: i64, group: i64| (first + group + c) * 0x0001_0001_0001_0001;
        let index = _mm512_set_epi64(
            index(3, 4),
            index(3, 0),
            index(2, 4),
            index(2, 0),
            index(1, 4),
            index(1, 0),
            index(0, 4),
            index(0, 0),
        );
        _mm512_permutexvar_epi16(index, scales)
    };
    Ready { codes: block.codes, scales: [spread(0), spread(8)], offsets: block.offsets }
}

/// The products of one block and one row of activations, scaled and summed into sixteen parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn sum_parts(block: &Ready, x: &[__m512i; 4], sums: __m256i, offsets: Offsets) -> __m512i {
    let zero = _mm512_setzero_si512();
    let four = |i: usize| _mm512_dpbusd_epi32(zero, block.codes[i], x[i]);
    // Four products of codes below 64 fit 16 bits, so packing loses nothing.
    let (first, second) = (_mm512_packs_epi32(four(0), four(1)), _mm512_packs_epi32(four(2), four(3)));
    let start = match offsets {
        Offsets::OfSum => {
            let (offsets, sums) = (_mm512_zextsi256_si512(block.offsets), _mm512_zextsi256_si512(sums));
            _mm512_dpwssd_epi32(zero, offsets, sums)
        }
        Offsets::Minima => zero,
    };
    _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(start, first, block.scales[0]), second, block.scales[1])
}

/// The sums of the lower, and of the upper, half of four registers' lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pairs_of_four([a, b, c, d]: [__m512i; 4]) -> [__m128i; 2] {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (ab, cd) = (pair(a, b), pair(c, d));
    let all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    [halves(_mm512_castsi512_si256(all)), halves(_mm512_extracti64x4_epi64::<1>(all))]
}

/// The sums of four registers' lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn reduce([a, b, c, d]: [__m512i; 4]) -> __m128i {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (ab, cd) = (pair(a, b), pair(c, d));
    let all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    halves(_mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all)))
}

/// The sums of four registers' lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn reduce_256([a, b, c, d]: [__m256i; 4]) -> __m128i {
    let pair = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (ab, cd) = (pair(a, b), pair(c, d));
    halves(_mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn halves(v: __m256i) -> __m128i {
    _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v))
}

/// The half floats at `at` of four blocks.
///
/// # Safety
/// Two bytes lie behind each pointer plus `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) unsafe fn factors(blocks: [*const u8; ROWS], at: usize) -> __m128 {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = blocks.map(|block| unsafe { block.add(at).cast::<u16>().read_unaligned() });
    let bits = u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48;
    _mm_cvtph_ps(_mm_cvtsi64_si128(bits.cast_signed()))
}
