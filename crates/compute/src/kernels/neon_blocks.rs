//! NEON: blocks, multiplied exactly in integers, one row of activations after the other.

use std::arch::aarch64::{float32x4_t, int8x16_t, int16x8_t, int32x4_t};
use std::marker::PhantomData;

use super::isa::Loop;
use super::neon_ops::{Neon, NeonDot};
use super::neon_unpack::{Weights, Wide};
use super::tiles::{Activations, Block, Dot, Group, Scales, TILE, bytes_at};

/// How products of bytes are summed.
pub(super) trait Bytes: Copy {
    fn neon(self) -> Neon;

    /// Runs a loop that is compiled for these instructions.
    fn run<L: Loop>(self, work: L) -> L::Output;

    /// Adds 16 products to the four lanes.
    fn dot(self, acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t;
}

impl Bytes for Neon {
    #[inline(always)]
    fn run<L: Loop>(self, work: L) -> L::Output {
        Neon::run(self, work)
    }

    #[inline(always)]
    fn neon(self) -> Neon {
        self
    }

    #[inline(always)]
    fn dot(self, acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // |a| <= 128 and |b| <= 127, so two products fit 16 bits.
        let low = self.mul_low_i8(self.low_i8(a), self.low_i8(b));
        self.add_pairs_i16(acc, self.mul_add_high_i8(low, a, b))
    }
}

impl Bytes for NeonDot {
    #[inline(always)]
    fn run<L: Loop>(self, work: L) -> L::Output {
        NeonDot::run(self, work)
    }

    #[inline(always)]
    fn neon(self) -> Neon {
        NeonDot::neon(self)
    }

    #[inline(always)]
    fn dot(self, acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        NeonDot::dot(self, acc, a, b)
    }
}

impl Neon {
    /// What the minima add, in four parts.
    #[inline(always)]
    pub(super) fn min_sum(self, mins: int16x8_t, sums: &[i16; 16]) -> int32x4_t {
        let sums = sums.as_chunks::<8>().0;
        let sums = self.neighbours_i16(self.load_i16(&sums[0]), self.load_i16(&sums[1]));
        let low = self.mul_low_i16(self.low_i16(mins), self.low_i16(sums));
        self.mul_add_high_i16(low, mins, sums)
    }

    /// Adds four sums with a scale each.
    #[inline(always)]
    fn add_scaled(self, acc: int32x4_t, sums: &[int32x4_t; 4], scales: int32x4_t) -> int32x4_t {
        let acc = self.mul_add_lane::<0>(acc, sums[0], scales);
        let acc = self.mul_add_lane::<1>(acc, sums[1], scales);
        let acc = self.mul_add_lane::<2>(acc, sums[2], scales);
        self.mul_add_lane::<3>(acc, sums[3], scales)
    }

    /// The sums of four times four 32-bit integers.
    #[inline(always)]
    pub(super) fn four_sums(self, v: [int32x4_t; 4]) -> int32x4_t {
        self.neighbours_i32(self.neighbours_i32(v[0], v[1]), self.neighbours_i32(v[2], v[3]))
    }

    /// Part `part` of a tile's sums, each in one lane.
    #[inline(always)]
    pub(super) fn eight_sums<const PARTS: usize>(
        self,
        sums: &[[int32x4_t; PARTS]; TILE],
        part: usize,
    ) -> [int32x4_t; 2] {
        let four = |at: usize| [sums[at][part], sums[at + 1][part], sums[at + 2][part], sums[at + 3][part]];
        [self.four_sums(four(0)), self.four_sums(four(4))]
    }

    /// Adds a block to every result: `(d * x) * sum - (dmin * x) * min_sum`.
    #[inline(always)]
    pub(super) fn add_block<const PARTS: usize>(
        self,
        mut lanes: [float32x4_t; 2],
        sums: &[[int32x4_t; 2]; PARTS],
        scales: &Scales,
    ) -> [float32x4_t; 2] {
        for (i, lanes) in lanes.iter_mut().enumerate() {
            let four = |h: &[u16; TILE]| [h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]];
            let x = self.load_four(&scales.x.as_chunks().0[i]);
            let sum = self.mul(self.mul(self.halves(four(&scales.d)), x), self.i32_to_f32(sums[0][i]));
            let minima = if PARTS == 1 {
                let zero = self.splat_f32(0.0);
                self.mul(self.mul(zero, x), zero)
            } else {
                let dmin = self.halves(four(&scales.dmin));
                self.mul(self.mul(dmin, x), self.i32_to_f32(sums[PARTS - 1][i]))
            };
            *lanes = self.add(*lanes, self.sub(sum, minima));
        }
        lanes
    }

    /// Adds a block without minima or an offset to every result: `(d * x) * sum`.
    #[inline(always)]
    pub(super) fn add_plain_block(
        self,
        mut lanes: [float32x4_t; 2],
        sums: [int32x4_t; 2],
        scales: &Scales,
    ) -> [float32x4_t; 2] {
        for (i, lanes) in lanes.iter_mut().enumerate() {
            let d = &scales.d;
            let d = self.halves([d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]]);
            let x = self.load_four(&scales.x.as_chunks().0[i]);
            *lanes = self.add(*lanes, self.mul(self.mul(d, x), self.i32_to_f32(sums[i])));
        }
        lanes
    }

    #[inline(always)]
    pub(super) fn results(self, lanes: [float32x4_t; 2]) -> [f32; TILE] {
        let [a, b, c, d] = self.store_four(lanes[0]);
        let [e, f, g, h] = self.store_four(lanes[1]);
        [a, b, c, d, e, f, g, h]
    }
}

/// Blocks of 256 weights.
pub(super) struct Wides<V, T, const PARTS: usize>(V, PhantomData<T>);

impl<V, T, const PARTS: usize> Wides<V, T, PARTS> {
    pub(super) fn new(v: V) -> Self {
        Self(v, PhantomData)
    }
}

impl<V: Copy, T, const PARTS: usize> Clone for Wides<V, T, PARTS> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: Copy, T, const PARTS: usize> Copy for Wides<V, T, PARTS> {}

impl<V: Bytes, T: Wide<BYTES, PARTS>, const BYTES: usize, const PARTS: usize> Dot<BYTES, 256>
    for Wides<V, T, PARTS>
{
    type Weights = Weights;
    type Sum = [int32x4_t; PARTS];

    #[inline(always)]
    fn no_sum(self) -> Self::Sum {
        [self.0.neon().splat_i32(0); PARTS]
    }

    #[inline(always)]
    fn unpack(self, block: &[u8; BYTES]) -> Weights {
        T::unpack(self.0.neon(), block)
    }

    #[inline(always)]
    fn dot(self, block: &Weights, x: Group<'_, 256>) -> Self::Sum {
        let v = self.0.neon();
        let codes = x.codes.as_chunks::<16>().0;
        let mut sum = v.splat_i32(0);
        let per_scale = T::GROUP / 16;
        for four in 0..4 / per_scale {
            let mut sums = [v.splat_i32(0); 4];
            for (i, sums) in sums.iter_mut().enumerate() {
                for j in 0..per_scale {
                    let at = (4 * four + i) * per_scale + j;
                    *sums = self.0.dot(*sums, block.weights[at], v.load_i8(&codes[at]));
                }
            }
            sum = v.add_scaled(sum, &sums, block.scales[four]);
        }
        let mut parts = [sum; PARTS];
        if PARTS == 2 {
            parts[PARTS - 1] = v.min_sum(block.mins, x.sums);
        }
        parts
    }
}

impl<V: Bytes, T: Wide<BYTES, PARTS>, const BYTES: usize, const PARTS: usize> Block<BYTES, 256>
    for Wides<V, T, PARTS>
{
    type Sums = [[int32x4_t; 2]; PARTS];
    type Lanes = [float32x4_t; 2];

    const SCALE_AT: usize = T::SCALE_AT;
    const MIN_SCALE_AT: Option<usize> = T::MIN_SCALE_AT;

    #[inline(always)]
    fn zero(self) -> Self::Lanes {
        [self.0.neon().splat_f32(0.0); 2]
    }

    #[inline(always)]
    fn sums<const R: usize, const N: usize>(
        self,
        rows: &[&[u8; BYTES]; R],
        x: Activations<'_, 256, N>,
        n: usize,
    ) -> Self::Sums {
        let v = self.0.neon();
        let dots = self.dots(rows, x, n);
        let mut parts = [[v.splat_i32(0); 2]; PARTS];
        for (i, part) in parts.iter_mut().enumerate() {
            *part = v.eight_sums(&dots, i);
        }
        parts
    }

    #[inline(always)]
    fn add(self, lanes: Self::Lanes, sums: Self::Sums, scales: &Scales) -> Self::Lanes {
        self.0.neon().add_block(lanes, &sums, scales)
    }

    #[inline(always)]
    fn results(self, lanes: Self::Lanes) -> [f32; TILE] {
        self.0.neon().results(lanes)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        self.0.neon().prefetch(address);
    }
}

/// Blocks of 32 signed bytes.
#[derive(Clone, Copy)]
pub(super) struct Q8Zero<V>(pub(super) V);

impl<V: Bytes> Dot<34, 32> for Q8Zero<V> {
    type Weights = [int8x16_t; 2];
    type Sum = [int32x4_t; 1];

    #[inline(always)]
    fn no_sum(self) -> Self::Sum {
        [self.0.neon().splat_i32(0)]
    }

    #[inline(always)]
    fn unpack(self, block: &[u8; 34]) -> [int8x16_t; 2] {
        let v = self.0.neon();
        [v.signed(v.load(bytes_at(block, 2))), v.signed(v.load(bytes_at(block, 18)))]
    }

    #[inline(always)]
    fn dot(self, weights: &[int8x16_t; 2], x: Group<'_, 32>) -> Self::Sum {
        let (v, codes) = (self.0.neon(), x.codes.as_chunks::<16>().0);
        let first = self.0.dot(v.splat_i32(0), weights[0], v.load_i8(&codes[0]));
        [self.0.dot(first, weights[1], v.load_i8(&codes[1]))]
    }
}

impl<V: Bytes> Block<34, 32> for Q8Zero<V> {
    type Sums = [int32x4_t; 2];
    type Lanes = [float32x4_t; 2];

    const SCALE_AT: usize = 0;

    #[inline(always)]
    fn zero(self) -> Self::Lanes {
        [self.0.neon().splat_f32(0.0); 2]
    }

    #[inline(always)]
    fn sums<const R: usize, const N: usize>(
        self,
        rows: &[&[u8; 34]; R],
        x: Activations<'_, 32, N>,
        n: usize,
    ) -> Self::Sums {
        self.0.neon().eight_sums(&self.dots(rows, x, n), 0)
    }

    #[inline(always)]
    fn add(self, lanes: Self::Lanes, sums: Self::Sums, scales: &Scales) -> Self::Lanes {
        self.0.neon().add_plain_block(lanes, sums, scales)
    }

    #[inline(always)]
    fn results(self, lanes: Self::Lanes) -> [f32; TILE] {
        self.0.neon().results(lanes)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        self.0.neon().prefetch(address);
    }
}
