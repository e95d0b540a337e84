//! AVX2: blocks, multiplied exactly in integers.

use std::arch::x86_64::{__m128i, __m256, __m256i};
use std::marker::PhantomData;

use super::avx2_ops::Avx2;
use super::scales::{raw_scales_q3_k, scales_mins_k4};
use super::tiles::{Activations, Block, Dot, Group, Scales, TILE, bytes_at};

/// 256 weights of one row.
pub(super) struct Weights {
    /// 32 each, below 64.
    weights: [__m256i; 8],
    /// The scales of each 32: of the first 16 in all 16-bit lanes of the lower half, of the others in the upper half.
    scales: [__m256i; 8],
    /// What each of the 16 sums of codes is multiplied with: offsets times scales, or minima.
    sum_scales: __m256i,
}

/// For each 32 weights the bytes of their scale in every half of a register of 8 16-bit scales.
const SCALE_OF: [[u8; 32]; 8] =
    [lanes(0), lanes(2), lanes(4), lanes(6), lanes(8), lanes(10), lanes(12), lanes(14)];
/// Even bytes, then odd ones.
const EVEN_ODD: [u8; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15];

/// The bytes `low` and `low + 1` in turn.
const fn lanes(low: u8) -> [u8; 32] {
    let mut bytes = [low; 32];
    let mut i = 1;
    while i < 32 {
        bytes[i] += 1;
        i += 2;
    }
    bytes
}

impl Avx2 {
    /// The scales of every 32 weights from 8 16-bit scales in each half.
    #[inline(always)]
    fn spread(self, scales: __m256i) -> [__m256i; 8] {
        let mut all = [scales; 8];
        for (i, scales) in all.iter_mut().enumerate() {
            *scales = self.shuffle_u8(*scales, self.load_bytes(&SCALE_OF[i]));
        }
        all
    }

    /// The scales of every 32 weights, and `-offset` times each, from 16 signed scales of 16 weights.
    #[inline(always)]
    fn sixteen_scales(self, scales: __m128i, offset_log2: i64) -> ([__m256i; 8], __m256i) {
        let wide = self.widen_i8(self.shuffle_u8_half(scales, self.load_half(&EVEN_ODD)));
        let offsets = self.shift_u16(self.widen_i8(scales), offset_log2);
        (self.spread(wide), self.sub_i16(self.zero(), offsets))
    }

    /// The scales of every 32 weights, and the minima of every 16, from the 12 packed bytes of Q4_K and Q5_K.
    #[inline(always)]
    fn eight_scales(self, packed: &[u8; 12]) -> ([__m256i; 8], __m256i) {
        let (scales, mins) = scales_mins_k4(packed);
        let scales = self.twice(self.widen_u8_half(self.load_quarter(scales)));
        let mins = self.load_quarter(mins);
        (self.spread(scales), self.widen_i8(self.zip_u8(mins, mins)))
    }

    /// Products of a block's weights with 256 codes, scaled: a sum in eight parts, added to `start`.
    #[inline(always)]
    fn dot_256(self, block: &Weights, codes: &[i8; 256], start: __m256i) -> __m256i {
        let mut sum = start;
        for (i, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            // Weights are below 64, so two products fit 16 bits.
            let pairs = self.pairs_u8_i8(block.weights[i], self.load_i8(codes));
            sum = self.add_i32(sum, self.pairs_i16(pairs, block.scales[i]));
        }
        sum
    }

    /// The sums of eight times eight 32-bit integers, the parts `part` of `sums`.
    #[inline(always)]
    fn fold<const PARTS: usize>(self, sums: &[[__m256i; PARTS]; TILE], part: usize) -> __m256 {
        let mut four = [self.zero(); 2];
        for (i, four) in four.iter_mut().enumerate() {
            let at = TILE / 2 * i;
            let low = self.neighbours_i32(sums[at][part], sums[at + 1][part]);
            *four = self.neighbours_i32(low, self.neighbours_i32(sums[at + 2][part], sums[at + 3][part]));
        }
        let (low, high) = (self.lower_halves(four[0], four[1]), self.upper_halves(four[0], four[1]));
        self.i32_to_f32(self.add_i32(low, high))
    }

    /// A nibble of every byte: the lower or the upper one.
    #[inline(always)]
    fn nibbles(self, v: __m256i, upper: bool) -> __m256i {
        self.and(if upper { self.shift_u16(v, -4) } else { v }, self.splat_u8(15))
    }
}

/// A type with 256 weights per block. What is multiplied with the sums of codes is added to the sum itself in types with
/// one part, and is a sum of its own, that of the minima, in types with two.
pub(super) trait Wide<const BYTES: usize, const PARTS: usize> {
    const SCALE_AT: usize;
    const MIN_SCALE_AT: Option<usize> = None;

    fn unpack(v: Avx2, block: &[u8; BYTES]) -> Weights;
}

/// Blocks of 256 weights.
pub(super) struct Wides<T, const PARTS: usize>(Avx2, PhantomData<T>);

impl<T, const PARTS: usize> Wides<T, PARTS> {
    pub(super) fn new(v: Avx2) -> Self {
        Self(v, PhantomData)
    }
}

impl<T, const PARTS: usize> Clone for Wides<T, PARTS> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const PARTS: usize> Copy for Wides<T, PARTS> {}

impl<T: Wide<BYTES, PARTS>, const BYTES: usize, const PARTS: usize> Dot<BYTES, 256> for Wides<T, PARTS> {
    type Weights = Weights;
    type Sum = [__m256i; PARTS];

    #[inline(always)]
    fn no_sum(self) -> Self::Sum {
        [self.0.zero(); PARTS]
    }

    #[inline(always)]
    fn unpack(self, block: &[u8; BYTES]) -> Weights {
        T::unpack(self.0, block)
    }

    #[inline(always)]
    fn dot(self, weights: &Weights, x: Group<'_, 256>) -> Self::Sum {
        let v = self.0;
        let of_sums = v.pairs_i16(weights.sum_scales, v.load_i16(x.sums));
        let mut parts = [of_sums; PARTS];
        parts[0] = v.dot_256(weights, x.codes, if PARTS == 1 { of_sums } else { v.zero() });
        parts
    }
}

impl<T: Wide<BYTES, PARTS>, const BYTES: usize, const PARTS: usize> Block<BYTES, 256> for Wides<T, PARTS> {
    type Sums = [[__m256i; PARTS]; TILE];
    type Lanes = __m256;

    const SCALE_AT: usize = T::SCALE_AT;
    const MIN_SCALE_AT: Option<usize> = T::MIN_SCALE_AT;

    #[inline(always)]
    fn zero(self) -> __m256 {
        self.0.zero_ps()
    }

    #[inline(always)]
    fn sums<const R: usize, const N: usize>(
        self,
        rows: &[&[u8; BYTES]; R],
        x: Activations<'_, 256, N>,
        n: usize,
    ) -> Self::Sums {
        self.dots(rows, x, n)
    }

    #[inline(always)]
    fn add(self, lanes: __m256, sums: Self::Sums, scales: &Scales) -> __m256 {
        let v = self.0;
        let x = v.load_ps(&scales.x);
        let sum = v.mul(v.mul(v.halves(scales.d), x), v.fold(&sums, 0));
        let minima = if PARTS == 1 {
            v.mul(v.mul(v.zero_ps(), x), v.zero_ps())
        } else {
            v.mul(v.mul(v.halves(scales.dmin), x), v.fold(&sums, PARTS - 1))
        };
        v.add(lanes, v.sub(sum, minima))
    }

    #[inline(always)]
    fn results(self, lanes: __m256) -> [f32; TILE] {
        self.0.store_ps(lanes)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        self.0.prefetch(address);
    }
}

pub(super) struct Q3K;

impl Wide<110, 1> for Q3K {
    const SCALE_AT: usize = 108;

    #[inline(always)]
    fn unpack(v: Avx2, block: &[u8; 110]) -> Weights {
        let raw = v.load_half(&raw_scales_q3_k(bytes_at(block, 96)));
        let (scales, sum_scales) = v.sixteen_scales(v.sub_i8_half(raw, v.splat_u8_half(32)), 2);
        let thirds = v.load_bytes(bytes_at(block, 0));
        let codes = [v.load_bytes(bytes_at(block, 32)), v.load_bytes(bytes_at(block, 64))];
        let mut weights = [v.zero(); 8];
        for (i, weights) in weights.iter_mut().enumerate() {
            let low = v.and(v.shift_u16(codes[i / 4], -2 * (i as i64 % 4)), v.splat_u8(3));
            let third = v.and(v.shift_u16(thirds, 2 - i as i64), v.splat_u8(4));
            *weights = v.or(low, third);
        }
        Weights { weights, scales, sum_scales }
    }
}

pub(super) struct Q4K;

impl Wide<144, 2> for Q4K {
    const SCALE_AT: usize = 0;
    const MIN_SCALE_AT: Option<usize> = Some(2);

    #[inline(always)]
    fn unpack(v: Avx2, block: &[u8; 144]) -> Weights {
        let (scales, sum_scales) = v.eight_scales(bytes_at(block, 4));
        let mut weights = [v.zero(); 8];
        for (i, weights) in weights.iter_mut().enumerate() {
            *weights = v.nibbles(v.load_bytes(bytes_at(block, 16 + i / 2 * 32)), i % 2 == 1);
        }
        Weights { weights, scales, sum_scales }
    }
}

pub(super) struct Q5K;

impl Wide<176, 2> for Q5K {
    const SCALE_AT: usize = 0;
    const MIN_SCALE_AT: Option<usize> = Some(2);

    #[inline(always)]
    fn unpack(v: Avx2, block: &[u8; 176]) -> Weights {
        let (scales, sum_scales) = v.eight_scales(bytes_at(block, 4));
        let fifths = v.load_bytes(bytes_at(block, 16));
        let mut weights = [v.zero(); 8];
        for (i, weights) in weights.iter_mut().enumerate() {
            let low = v.nibbles(v.load_bytes(bytes_at(block, 48 + i / 2 * 32)), i % 2 == 1);
            *weights = v.or(low, v.and(v.shift_u16(fifths, 4 - i as i64), v.splat_u8(16)));
        }
        Weights { weights, scales, sum_scales }
    }
}

pub(super) struct Q6K;

impl Wide<210, 1> for Q6K {
    const SCALE_AT: usize = 208;

    #[inline(always)]
    fn unpack(v: Avx2, block: &[u8; 210]) -> Weights {
        let (scales, sum_scales) = v.sixteen_scales(v.load_half(bytes_at(block, 192)), 5);
        let pairs = [v.load_bytes(bytes_at(block, 128)), v.load_bytes(bytes_at(block, 160))];
        let mut weights = [v.zero(); 8];
        for (i, weights) in weights.iter_mut().enumerate() {
            let (half, quarter) = (i / 4, i % 4);
            let low = v.nibbles(v.load_bytes(bytes_at(block, half * 64 + quarter % 2 * 32)), quarter >= 2);
            let high = v.shift_u16(pairs[half], 4 - 2 * quarter as i64);
            *weights = v.or(low, v.and(high, v.splat_u8(0x30)));
        }
        Weights { weights, scales, sum_scales }
    }
}

/// Blocks of 32 signed bytes.
#[derive(Clone, Copy)]
pub(super) struct Q8Zero(pub(super) Avx2);

impl Dot<34, 32> for Q8Zero {
    /// The weights, and their absolute values.
    type Weights = [__m256i; 2];
    type Sum = [__m256i; 1];

    #[inline(always)]
    fn no_sum(self) -> Self::Sum {
        [self.0.zero()]
    }

    #[inline(always)]
    fn unpack(self, block: &[u8; 34]) -> [__m256i; 2] {
        let weights = self.0.load_bytes(bytes_at(block, 2));
        [weights, self.0.abs_i8(weights)]
    }

    #[inline(always)]
    fn dot(self, &[weights, sizes]: &[__m256i; 2], x: Group<'_, 32>) -> Self::Sum {
        let v = self.0;
        // |w| <= 128 and |x| <= 127, so two products fit 16 bits.
        let pairs = v.pairs_u8_i8(sizes, v.with_sign_i8(v.load_i8(x.codes), weights));
        [v.pairs_i16(pairs, v.splat_i16(1))]
    }
}

impl Block<34, 32> for Q8Zero {
    type Sums = [[__m256i; 1]; TILE];
    type Lanes = __m256;

    const SCALE_AT: usize = 0;

    #[inline(always)]
    fn zero(self) -> __m256 {
        self.0.zero_ps()
    }

    #[inline(always)]
    fn sums<const R: usize, const N: usize>(
        self,
        rows: &[&[u8; 34]; R],
        x: Activations<'_, 32, N>,
        n: usize,
    ) -> Self::Sums {
        self.dots(rows, x, n)
    }

    #[inline(always)]
    fn add(self, lanes: __m256, sums: Self::Sums, scales: &Scales) -> __m256 {
        let v = self.0;
        let scale = v.mul(v.halves(scales.d), v.load_ps(&scales.x));
        v.add(lanes, v.mul(scale, v.fold(&sums, 0)))
    }

    #[inline(always)]
    fn results(self, lanes: __m256) -> [f32; TILE] {
        self.0.store_ps(lanes)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        self.0.prefetch(address);
    }
}
