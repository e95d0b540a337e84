//! AVX2: one block of 256 weights against 256 codes, summed exactly in integers.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx2`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

use super::BlockSum;
use crate::dequant::{half_at, min_sum_k4, scale_min_k4, scales_q3_k};

/// The sum of eight 32-bit integers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_i32(v: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
}

/// The 32 bytes that `bytes` begins with.
#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    let bytes: &[u8; 32] = bytes.first_chunk().expect("callers slice at least 32 bytes");
    // SAFETY: 32 bytes lie behind the pointer; unaligned load.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The 32 codes of `x` that begin at `at`.
#[inline]
#[target_feature(enable = "avx2")]
fn load_codes(x: &[i8; 256], at: usize) -> __m256i {
    let codes: &[i8; 32] = x[at..].first_chunk().expect("callers stay inside the block");
    // SAFETY: 32 bytes lie behind the pointer; unaligned load.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}

/// Weights of 32 values with one scale per 16 values: their products' sums, scaled, in eight parts.
#[inline]
#[target_feature(enable = "avx2")]
fn scaled(weights: __m256i, x: __m256i, first: i16, second: i16) -> __m256i {
    // Weights are below 64, so two products fit 16 bits.
    let pairs = _mm256_maddubs_epi16(weights, x);
    let scales = _mm256_set_m128i(_mm_set1_epi16(second), _mm_set1_epi16(first));
    _mm256_madd_epi16(pairs, scales)
}

/// `sum(scale * 16 codes' sum)` over the 16 groups of a block.
#[inline]
fn offset_sum(scales: impl Iterator<Item = i8>, sums: &[i16; 16]) -> i32 {
    scales.zip(sums).map(|(scale, &sum)| i32::from(scale) * i32::from(sum)).sum()
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q3_k(w: &[u8; 110], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let scales = scales_q3_k(&w[96..108]);
    let thirds = load(&w[..32]);
    let (two_bits, one) = (_mm256_set1_epi8(3), _mm256_set1_epi8(1));
    let mut acc = _mm256_setzero_si256();
    for pair in 0..8 {
        let shift = |v, by: usize| _mm256_srl_epi16(v, _mm_cvtsi64_si128(by as i64));
        let low = _mm256_and_si256(shift(load(&w[32 + pair / 4 * 32..]), pair % 4 * 2), two_bits);
        let high = _mm256_slli_epi16::<2>(_mm256_and_si256(shift(thirds, pair), one));
        let (first, second) = (i16::from(scales[2 * pair]), i16::from(scales[2 * pair + 1]));
        let part = scaled(_mm256_or_si256(low, high), load_codes(x, 32 * pair), first, second);
        acc = _mm256_add_epi32(acc, part);
    }
    let sum = sum_i32(acc) - 4 * offset_sum(scales.into_iter(), sums);
    BlockSum { d: half_at(w, 108), dmin: 0.0, sum, min_sum: 0 }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q4_k(w: &[u8; 144], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let nibble = _mm256_set1_epi8(15);
    let mut acc = _mm256_setzero_si256();
    for pair in 0..4 {
        let codes = load(&w[16 + 32 * pair..]);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
        for (odd, weights) in [_mm256_and_si256(codes, nibble), high].into_iter().enumerate() {
            let group = 2 * pair + odd;
            let (scale, _) = scale_min_k4(&w[4..16], group);
            let part = scaled(weights, load_codes(x, 32 * group), i16::from(scale), i16::from(scale));
            acc = _mm256_add_epi32(acc, part);
        }
    }
    let min_sum = min_sum_k4(&w[4..16], sums);
    BlockSum { d: half_at(w, 0), dmin: half_at(w, 2), sum: sum_i32(acc), min_sum }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q5_k(w: &[u8; 176], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let (nibble, one) = (_mm256_set1_epi8(15), _mm256_set1_epi8(1));
    let fifths = load(&w[16..48]);
    let mut acc = _mm256_setzero_si256();
    for pair in 0..4 {
        let codes = load(&w[48 + 32 * pair..]);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
        for (odd, low) in [_mm256_and_si256(codes, nibble), high].into_iter().enumerate() {
            let group = 2 * pair + odd;
            let fifth = _mm256_srl_epi16(fifths, _mm_cvtsi64_si128(group as i64));
            let fifth = _mm256_slli_epi16::<4>(_mm256_and_si256(fifth, one));
            let (scale, _) = scale_min_k4(&w[4..16], group);
            let weights = _mm256_or_si256(low, fifth);
            let part = scaled(weights, load_codes(x, 32 * group), i16::from(scale), i16::from(scale));
            acc = _mm256_add_epi32(acc, part);
        }
    }
    let min_sum = min_sum_k4(&w[4..16], sums);
    BlockSum { d: half_at(w, 0), dmin: half_at(w, 2), sum: sum_i32(acc), min_sum }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q6_k(w: &[u8; 210], x: &[i8; 256], sums: &[i16; 16]) -> BlockSum {
    let (nibble, pair) = (_mm256_set1_epi8(15), _mm256_set1_epi8(3));
    let scale = |group: usize| w[192 + group].cast_signed();
    let mut acc = _mm256_setzero_si256();
    for half in 0..2 {
        let upper = load(&w[128 + 32 * half..]);
        for quarter in 0..4 {
            let low = load(&w[64 * half + quarter % 2 * 32..]);
            let low = _mm256_srl_epi16(low, _mm_cvtsi64_si128((quarter / 2 * 4) as i64));
            let high = _mm256_srl_epi16(upper, _mm_cvtsi64_si128((quarter * 2) as i64));
            let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, pair));
            let weights = _mm256_or_si256(_mm256_and_si256(low, nibble), high);
            let group = 8 * half + 2 * quarter;
            let (first, second) = (i16::from(scale(group)), i16::from(scale(group + 1)));
            acc = _mm256_add_epi32(acc, scaled(weights, load_codes(x, 16 * group), first, second));
        }
    }
    let sum = sum_i32(acc) - 32 * offset_sum((0..16).map(scale), sums);
    BlockSum { d: half_at(w, 208), dmin: 0.0, sum, min_sum: 0 }
}
