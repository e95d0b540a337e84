//! NEON: blocks of 256 weights, unpacked.

use std::arch::aarch64::{int8x16_t, int16x8_t, int32x4_t, uint8x16_t};

use super::neon_ops::Neon;
use super::scales::{raw_scales_q3_k, scales_mins_k4};
use super::tiles::bytes_at;

/// 256 weights of one row.
pub(super) struct Weights {
    /// 16 each, offsets taken off.
    pub(super) weights: [int8x16_t; 16],
    /// The scale of every 16 weights, or of every 32 in the first half.
    pub(super) scales: [int32x4_t; 4],
    /// The minima of every 32 weights, or zeros.
    pub(super) mins: int16x8_t,
}

impl Neon {
    /// Bytes moved by `by` bits: up, or down when negative.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "bytes are moved by less than eight bits")]
    fn moved(self, v: uint8x16_t, by: i64) -> uint8x16_t {
        self.shift(v, self.splat_i8(by as i8))
    }

    /// A nibble of every byte: the lower or the upper one.
    #[inline(always)]
    fn nibbles(self, v: uint8x16_t, upper: bool) -> uint8x16_t {
        if upper { self.moved(v, -4) } else { self.and(v, self.splat_u8(15)) }
    }

    /// Sixteen signed bytes as 32-bit numbers.
    #[inline(always)]
    fn sixteen_i32(self, v: int8x16_t) -> [int32x4_t; 4] {
        let (low, high) = (self.widen_low_i8(self.low_i8(v)), self.widen_high_i8(v));
        [
            self.widen_low_i16(self.low_i16(low)),
            self.widen_high_i16(low),
            self.widen_low_i16(self.low_i16(high)),
            self.widen_high_i16(high),
        ]
    }

    /// The scales and minima in the 12 packed bytes of Q4_K and Q5_K.
    #[inline(always)]
    fn eight_scales(self, packed: &[u8; 12]) -> ([int32x4_t; 4], int16x8_t) {
        let (scales, mins) = scales_mins_k4(packed);
        let scales = self.widen_low_i8(self.load_i8_half(scales));
        let (low, high) = (self.widen_low_i16(self.low_i16(scales)), self.widen_high_i16(scales));
        let none = self.splat_i32(0);
        ([low, high, none, none], self.widen_low_i8(self.load_i8_half(mins)))
    }

    #[inline(always)]
    fn no_mins(self) -> int16x8_t {
        self.widen_low_i8(self.load_i8_half([0; 8]))
    }
}

/// A type with 256 weights per block, with minima when it has two parts.
pub(super) trait Wide<const BYTES: usize, const PARTS: usize> {
    const SCALE_AT: usize;
    const MIN_SCALE_AT: Option<usize> = None;
    /// Weights with one scale.
    const GROUP: usize;

    fn unpack(v: Neon, block: &[u8; BYTES]) -> Weights;
}

pub(super) struct Q3K;

impl Wide<110, 1> for Q3K {
    const SCALE_AT: usize = 108;
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(v: Neon, block: &[u8; 110]) -> Weights {
        let raw = v.signed(v.load(&raw_scales_q3_k(bytes_at(block, 96))));
        let scales = v.sixteen_i32(v.sub_i8(raw, v.splat_i8(32)));
        let mut weights = [raw; 16];
        for (i, weights) in weights.iter_mut().enumerate() {
            let (half, quarter, odd) = (i / 8, i % 8 / 2, i % 2 * 16);
            let codes = v.load(bytes_at(block, 32 + 32 * half + odd));
            let low = v.and(v.moved(codes, -2 * quarter as i64), v.splat_u8(3));
            let thirds = v.moved(v.load(bytes_at(block, odd)), 2 - (i / 2) as i64);
            let code = v.or(low, v.and(thirds, v.splat_u8(4)));
            *weights = v.sub_i8(v.signed(code), v.splat_i8(4));
        }
        Weights { weights, scales, mins: v.no_mins() }
    }
}

pub(super) struct Q4K;

impl Wide<144, 2> for Q4K {
    const SCALE_AT: usize = 0;
    const MIN_SCALE_AT: Option<usize> = Some(2);
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(v: Neon, block: &[u8; 144]) -> Weights {
        let (scales, mins) = v.eight_scales(bytes_at(block, 4));
        let mut weights = [v.splat_i8(0); 16];
        for (i, weights) in weights.iter_mut().enumerate() {
            let (pair, upper, odd) = (i / 4, i % 4 >= 2, i % 2 * 16);
            *weights = v.signed(v.nibbles(v.load(bytes_at(block, 16 + 32 * pair + odd)), upper));
        }
        Weights { weights, scales, mins }
    }
}

pub(super) struct Q5K;

impl Wide<176, 2> for Q5K {
    const SCALE_AT: usize = 0;
    const MIN_SCALE_AT: Option<usize> = Some(2);
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(v: Neon, block: &[u8; 176]) -> Weights {
        let (scales, mins) = v.eight_scales(bytes_at(block, 4));
        let mut weights = [v.splat_i8(0); 16];
        for (i, weights) in weights.iter_mut().enumerate() {
            let (pair, upper, odd) = (i / 4, i % 4 >= 2, i % 2 * 16);
            let low = v.nibbles(v.load(bytes_at(block, 48 + 32 * pair + odd)), upper);
            let fifths = v.moved(v.load(bytes_at(block, 16 + odd)), 4 - (i / 2) as i64);
            *weights = v.signed(v.or(low, v.and(fifths, v.splat_u8(16))));
        }
        Weights { weights, scales, mins }
    }
}

pub(super) struct Q6K;

impl Wide<210, 1> for Q6K {
    const SCALE_AT: usize = 208;
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(v: Neon, block: &[u8; 210]) -> Weights {
        let scales = v.sixteen_i32(v.signed(v.load(bytes_at(block, 192))));
        let mut weights = [v.splat_i8(0); 16];
        for (i, weights) in weights.iter_mut().enumerate() {
            let (half, quarter, odd) = (i / 8, i % 8 / 2, i % 2 * 16);
            let low = v.load(bytes_at(block, 64 * half + quarter % 2 * 32 + odd));
            let high = v.moved(v.load(bytes_at(block, 128 + 32 * half + odd)), 4 - 2 * quarter as i64);
            let code = v.or(v.nibbles(low, quarter >= 2), v.and(high, v.splat_u8(0x30)));
            *weights = v.sub_i8(v.signed(code), v.splat_i8(32));
        }
        Weights { weights, scales, mins: v.no_mins() }
    }
}
