//! Blocks of 256 weights, unpacked into registers in the order of the columns.
//!
//! The functions here are inlined into kernels that are compiled for AVX-512; none may be called from elsewhere.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx512`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

/// What a block's sixteen offsets are multiplied with, and what becomes of the sum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Offsets {
    /// Part of the block's sum: codes are stored with something added.
    OfSum,
    /// Minima, which have a factor of their own.
    Minima,
}

/// How sixteen products, each of a code and an activation, are summed without overflow before they are scaled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scaling {
    /// They fit 16 bits, so that two groups are scaled by one multiply-add of pairs.
    Pairs,
    /// They don't: each group is scaled in 32 bits.
    Each,
    /// They don't, but two groups have one scale.
    EachTwo,
}

/// A block in registers: codes are below 128, so that they multiply signed activations.
#[derive(Clone, Copy)]
pub(super) struct Unpacked {
    /// 64 codes each.
    pub(super) codes: [__m512i; 4],
    /// A scale of 16 bits per 16 codes.
    pub(super) scales: __m256i,
    /// What the sum of 16 activations is multiplied with.
    pub(super) offsets: __m256i,
}

/// A type with 256 weights per block.
pub(super) trait Block {
    /// Bytes of a block.
    const BYTES: usize;
    /// Where the block's factor stands, a half float; that of the minima follows it.
    const FACTOR_AT: usize;
    /// What offsets are.
    const OFFSETS: Offsets;
    /// How groups are scaled.
    const SCALING: Scaling;

    /// # Safety
    /// A block lies behind `block`, and the CPU has AVX-512 F, BW, DQ and VL.
    unsafe fn unpack(block: *const u8) -> Unpacked;
}

/// # Safety
/// Four bytes lie behind `at`.
#[inline(always)]
unsafe fn word(at: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<u32>().read_unaligned() }
}

/// 32 bytes, twice.
///
/// # Safety
/// 32 bytes lie behind `at`.
#[inline(always)]
unsafe fn twice(at: *const u8) -> __m512i {
    // SAFETY: the caller's promise; unaligned load.
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast())) }
}

/// Different shifts for the lower and the upper half.
#[inline(always)]
unsafe fn shifts(low: i16, high: i16) -> __m512i {
    // SAFETY: the caller's CPU has AVX-512.
    unsafe { _mm512_inserti64x4::<1>(_mm512_set1_epi16(low), _mm256_set1_epi16(high)) }
}

/// `a | (b & mask)`.
#[inline(always)]
unsafe fn or_masked(a: __m512i, b: __m512i, mask: i8) -> __m512i {
    // SAFETY: the caller's CPU has AVX-512.
    unsafe { _mm512_ternarylogic_epi32::<0xF8>(a, b, _mm512_set1_epi8(mask)) }
}

/// 64 nibbles of the 32 bytes at `at`: the lower ones, then the upper ones.
#[inline(always)]
unsafe fn nibbles(at: *const u8) -> __m512i {
    // SAFETY: the caller vouches for the bytes and the CPU.
    unsafe { _mm512_and_si512(_mm512_srlv_epi16(twice(at), shifts(0, 4)), _mm512_set1_epi8(15)) }
}

/// Eight 8-bit numbers, each twice, as sixteen of 16 bits.
#[inline(always)]
unsafe fn doubled(low: u32, high: u32) -> __m256i {
    // SAFETY: the caller's CPU has AVX2.
    unsafe {
        let eight = _mm_cvtsi64_si128((u64::from(low) | u64::from(high) << 32).cast_signed());
        _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(eight, eight))
    }
}

/// Scales and minima of Q4_K and Q5_K from their twelve bytes.
#[inline(always)]
unsafe fn scales_and_minima(at: *const u8) -> (__m256i, __m256i) {
    // SAFETY: the caller vouches for the bytes and the CPU.
    unsafe {
        let (a, b, c) = (word(at), word(at.add(4)), word(at.add(8)));
        let (six, four, two) = (0x3F3F_3F3F, 0x0F0F_0F0F, 0x0303_0303);
        let scales = doubled(a & six, (c & four) | ((a >> 6 & two) << 4));
        let minima = doubled(b & six, (c >> 4 & four) | ((b >> 6 & two) << 4));
        (scales, minima)
    }
}

/// Two-bit codes with a third bit, scales of six bits.
pub(super) struct Q3K;

impl Block for Q3K {
    const BYTES: usize = 110;
    const FACTOR_AT: usize = 108;
    const OFFSETS: Offsets = Offsets::OfSum;
    const SCALING: Scaling = Scaling::Pairs;

    #[inline(always)]
    unsafe fn unpack(block: *const u8) -> Unpacked {
        // SAFETY: the caller vouches for the block and the CPU.
        unsafe {
            let thirds = twice(block);
            let (low, high) = (twice(block.add(32)), twice(block.add(64)));
            let codes = |bytes, first: i16| {
                _mm512_and_si512(_mm512_srlv_epi16(bytes, shifts(first, first + 2)), _mm512_set1_epi8(3))
            };
            // Bit `g` of the third bits belongs to the 32 codes of group `g`; here it becomes bit 2.
            let codes = [
                or_masked(codes(low, 0), _mm512_sllv_epi16(thirds, shifts(2, 1)), 4),
                or_masked(codes(low, 4), _mm512_srlv_epi16(thirds, shifts(0, 1)), 4),
                or_masked(codes(high, 0), _mm512_srlv_epi16(thirds, shifts(2, 3)), 4),
                or_masked(codes(high, 4), _mm512_srlv_epi16(thirds, shifts(4, 5)), 4),
            ];
            let (a, b, t) = (word(block.add(96)), word(block.add(100)), word(block.add(104)));
            let (four, two) = (0x0F0F_0F0F, 0x0303_0303);
            let scales = _mm_set_epi32(
                ((b >> 4 & four) | ((t >> 6 & two) << 4)).cast_signed(),
                ((a >> 4 & four) | ((t >> 4 & two) << 4)).cast_signed(),
                ((b & four) | ((t >> 2 & two) << 4)).cast_signed(),
                ((a & four) | ((t & two) << 4)).cast_signed(),
            );
            let scales = _mm256_sub_epi16(_mm256_cvtepi8_epi16(scales), _mm256_set1_epi16(32));
            // Codes are stored with 4 added.
            let offsets = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16::<2>(scales));
            Unpacked { codes, scales, offsets }
        }
    }
}

/// Nibbles, scales and minima of six bits.
pub(super) struct Q4K;

impl Block for Q4K {
    const BYTES: usize = 144;
    const FACTOR_AT: usize = 0;
    const OFFSETS: Offsets = Offsets::Minima;
    const SCALING: Scaling = Scaling::Pairs;

    #[inline(always)]
    unsafe fn unpack(block: *const u8) -> Unpacked {
        // SAFETY: the caller vouches for the block and the CPU.
        unsafe {
            let (scales, offsets) = scales_and_minima(block.add(4));
            let q = block.add(16);
            let codes = [nibbles(q), nibbles(q.add(32)), nibbles(q.add(64)), nibbles(q.add(96))];
            Unpacked { codes, scales, offsets }
        }
    }
}

/// Nibbles with a fifth bit, scales and minima of six bits.
pub(super) struct Q5K;

impl Block for Q5K {
    const BYTES: usize = 176;
    const FACTOR_AT: usize = 0;
    const OFFSETS: Offsets = Offsets::Minima;
    const SCALING: Scaling = Scaling::EachTwo;

    #[inline(always)]
    unsafe fn unpack(block: *const u8) -> Unpacked {
        // SAFETY: the caller vouches for the block and the CPU.
        unsafe {
            let (scales, offsets) = scales_and_minima(block.add(4));
            let (fifths, q) = (twice(block.add(16)), block.add(48));
            // Bit `g` of the fifth bits belongs to the 32 codes of group `g`; here it becomes bit 4.
            let codes = [
                or_masked(nibbles(q), _mm512_sllv_epi16(fifths, shifts(4, 3)), 16),
                or_masked(nibbles(q.add(32)), _mm512_sllv_epi16(fifths, shifts(2, 1)), 16),
                or_masked(nibbles(q.add(64)), _mm512_srlv_epi16(fifths, shifts(0, 1)), 16),
                or_masked(nibbles(q.add(96)), _mm512_srlv_epi16(fifths, shifts(2, 3)), 16),
            ];
            Unpacked { codes, scales, offsets }
        }
    }
}

/// Nibbles with two more bits, signed scales of eight bits.
pub(super) struct Q6K;

impl Block for Q6K {
    const BYTES: usize = 210;
    const FACTOR_AT: usize = 208;
    const OFFSETS: Offsets = Offsets::OfSum;
    const SCALING: Scaling = Scaling::Each;

    #[inline(always)]
    unsafe fn unpack(block: *const u8) -> Unpacked {
        // SAFETY: the caller vouches for the block and the CPU.
        unsafe {
            let low = |half: usize| _mm512_loadu_si512(block.add(64 * half).cast());
            let (first, second, nibble) = (low(0), low(1), _mm512_set1_epi8(15));
            let high = |half: usize| twice(block.add(128 + 32 * half));
            let (first_high, second_high) = (high(0), high(1));
            // Upper pairs of bits become bits 4 and 5.
            let codes = [
                or_masked(_mm512_and_si512(first, nibble), _mm512_sllv_epi16(first_high, shifts(4, 2)), 0x30),
                or_masked(
                    _mm512_and_si512(_mm512_srli_epi16::<4>(first), nibble),
                    _mm512_srlv_epi16(first_high, shifts(0, 2)),
                    0x30,
                ),
                or_masked(
                    _mm512_and_si512(second, nibble),
                    _mm512_sllv_epi16(second_high, shifts(4, 2)),
                    0x30,
                ),
                or_masked(
                    _mm512_and_si512(_mm512_srli_epi16::<4>(second), nibble),
                    _mm512_srlv_epi16(second_high, shifts(0, 2)),
                    0x30,
                ),
            ];
            let scales = _mm256_cvtepi8_epi16(_mm_loadu_si128(block.add(192).cast()));
            // Codes are stored with 32 added.
            let offsets = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16::<5>(scales));
            Unpacked { codes, scales, offsets }
        }
    }
}
