//! NEON with `i8mm`: two matrix rows at a time with two rows of activations.

use std::arch::aarch64::{float32x4_t, int8x16_t, int16x8_t, int32x4_t};
use std::marker::PhantomData;

use super::neon_blocks::{Q8Zero, Wides};
use super::neon_ops::{Neon, NeonI8mm};
use super::neon_unpack::{Weights, Wide};
use super::tiles::{Activations, Block, Dot, Group, Scales, TILE};

/// The same 16 columns of two rows: the first eight of both, then the last eight of both.
type RowPair = [int8x16_t; 2];

/// The products of two rows with two rows: `[a0 b0, a0 b1, a1 b0, a1 b1]`.
type Square = int32x4_t;

impl NeonI8mm {
    #[inline(always)]
    fn neon(self) -> Neon {
        self.dot().neon()
    }

    #[inline(always)]
    fn pair(self, a: int8x16_t, b: int8x16_t) -> RowPair {
        [self.neon().lower_halves(a, b), self.neon().upper_halves(a, b)]
    }

    /// Adds the products of 16 columns.
    #[inline(always)]
    fn add_square(self, acc: Square, weights: RowPair, x: [&[i8; 16]; 2]) -> Square {
        let v = self.neon();
        let x = self.pair(v.load_i8(x[0]), v.load_i8(x[1]));
        self.two_by_two(self.two_by_two(acc, weights[0], x[0]), weights[1], x[1])
    }
}

impl Neon {
    /// A tile's sums from its squares. Result `r * N + i` is that of row `r` and activations `i`: with two rows of
    /// activations a square is four results, with four the halves of two squares are.
    #[inline(always)]
    fn squares(self, squares: [Square; 2], n: usize) -> [int32x4_t; 2] {
        if n == 2 {
            return squares;
        }
        let [a, b] = squares;
        [self.lower_halves_i32(a, b), self.upper_halves_i32(a, b)]
    }
}

/// 256 weights of two rows.
struct WeightPairs {
    weights: [RowPair; 16],
    /// The scales of every 16 or 32 weights, for every place of a square.
    scales: [int32x4_t; 16],
    mins: [int16x8_t; 2],
}

impl WeightPairs {
    #[inline(always)]
    fn new(v: NeonI8mm, a: &Weights, b: &Weights) -> Self {
        let neon = v.neon();
        let mut weights = [[a.weights[0]; 2]; 16];
        for (i, weights) in weights.iter_mut().enumerate() {
            *weights = v.pair(a.weights[i], b.weights[i]);
        }
        let mut scales = [a.scales[0]; 16];
        for (i, four) in scales.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let (a, b) = (a.scales[i], b.scales[i]);
            let (low_a, low_b) = (neon.zip_low_i32(a, a), neon.zip_low_i32(b, b));
            let (high_a, high_b) = (neon.zip_high_i32(a, a), neon.zip_high_i32(b, b));
            *four = [
                neon.lower_halves_i32(low_a, low_b),
                neon.upper_halves_i32(low_a, low_b),
                neon.lower_halves_i32(high_a, high_b),
                neon.upper_halves_i32(high_a, high_b),
            ];
        }
        Self { weights, scales, mins: [a.mins, b.mins] }
    }
}

/// Blocks of 256 weights.
pub(super) struct WidePairs<T, const PARTS: usize>(NeonI8mm, PhantomData<T>);

impl<T, const PARTS: usize> WidePairs<T, PARTS> {
    pub(super) fn new(v: NeonI8mm) -> Self {
        Self(v, PhantomData)
    }

    /// The squares of two rows and two rows of activations, `per_scale * 16` weights having one scale.
    #[inline(always)]
    fn square(self, block: &WeightPairs, x: [Group<'_, 256>; 2], per_scale: usize) -> [Square; PARTS] {
        let v = self.0.neon();
        let (first, second) = (x[0].codes.as_chunks::<16>().0, x[1].codes.as_chunks::<16>().0);
        let mut sum = v.splat_i32(0);
        for group in 0..16 / per_scale {
            let mut square = v.splat_i32(0);
            for at in group * per_scale..(group + 1) * per_scale {
                square = self.0.add_square(square, block.weights[at], [&first[at], &second[at]]);
            }
            sum = v.mul_add_i32(sum, square, block.scales[group]);
        }
        let mut parts = [sum; PARTS];
        if PARTS == 2 {
            let [a, b] = block.mins;
            let sums = [
                v.min_sum(a, x[0].sums),
                v.min_sum(a, x[1].sums),
                v.min_sum(b, x[0].sums),
                v.min_sum(b, x[1].sums),
            ];
            parts[PARTS - 1] = v.four_sums(sums);
        }
        parts
    }
}

impl<T, const PARTS: usize> Clone for WidePairs<T, PARTS> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const PARTS: usize> Copy for WidePairs<T, PARTS> {}

impl<T: Wide<BYTES, PARTS>, const BYTES: usize, const PARTS: usize> Block<BYTES, 256>
    for WidePairs<T, PARTS>
{
    type Sums = [[int32x4_t; 2]; PARTS];
    type Lanes = [float32x4_t; 2];

    const SCALE_AT: usize = T::SCALE_AT;
    const MIN_SCALE_AT: Option<usize> = T::MIN_SCALE_AT;
    const PAIRS: bool = true;

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
        if R == 1 || N == 1 {
            return Wides::<_, T, PARTS>::new(self.0.dot()).sums(rows, x, n);
        }
        let v = self.0.neon();
        let mut squares = [[v.splat_i32(0); 2]; PARTS];
        for r in 0..R / 2 {
            let (a, b) = (T::unpack(v, rows[2 * r]), T::unpack(v, rows[2 * r + 1]));
            let weights = WeightPairs::new(self.0, &a, &b);
            for i in 0..N / 2 {
                let square = self.square(&weights, [x.get(2 * i), x.get(2 * i + 1)], T::GROUP / 16);
                for part in 0..PARTS {
                    squares[part][r * (N / 2) + i] = square[part];
                }
            }
        }
        for squares in &mut squares {
            *squares = v.squares(*squares, N);
        }
        squares
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
pub(super) struct Q8ZeroPairs(pub(super) NeonI8mm);

impl Block<34, 32> for Q8ZeroPairs {
    type Sums = [int32x4_t; 2];
    type Lanes = [float32x4_t; 2];

    const SCALE_AT: usize = 0;
    const PAIRS: bool = true;

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
        let single = Q8Zero(self.0.dot());
        if R == 1 || N == 1 {
            return single.sums(rows, x, n);
        }
        let v = self.0.neon();
        let mut squares = [v.splat_i32(0); 2];
        for r in 0..R / 2 {
            let (a, b) = (single.unpack(rows[2 * r]), single.unpack(rows[2 * r + 1]));
            for i in 0..N / 2 {
                let (first, second) =
                    (x.get(2 * i).codes.as_chunks::<16>().0, x.get(2 * i + 1).codes.as_chunks::<16>().0);
                let square = &mut squares[r * (N / 2) + i];
                for at in 0..2 {
                    *square =
                        self.0.add_square(*square, self.0.pair(a[at], b[at]), [&first[at], &second[at]]);
                }
            }
        }
        v.squares(squares, N)
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
