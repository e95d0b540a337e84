//! Scales of runs whose values are `scale * level`.
//!
//! A run alone: with the levels `q` held, the scale that leaves the least `sum w (x - s q)^2` is
//! `sum w x q / sum w q^2`, and it takes `(sum w x q)^2 / sum w q^2` off `sum w x^2`. A grid of scales is tried; the
//! levels of each are judged by what their own best scale takes off, and the winner's scale is fitted again.
//!
//! A block whose runs have whole scales `k` under one half float `d`: a grid of `d`, levels chosen anew under each;
//! then by turns `d = sum w x k q / sum w (k q)^2` and the neighbours of every `k`, while the error falls.

use std::marker::PhantomData;

use super::lanes::{LANES, Lanes, byte};
use super::levels::Levels;
use super::line::Line;
use super::tile::Tile;
use crate::kernels::Loop;

/// Evenly spaced numbers to try.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) n: u16,
}

impl Grid {
    #[inline(always)]
    pub(super) fn at(self, i: u16) -> f32 {
        self.first + self.step * f32::from(i)
    }
}

/// Times that a winner's scale is fitted again.
const FITS: u16 = 2;
/// Times that a block's `d` and its `k` are fitted by turns, at most.
const TURNS: usize = 4;

/// What a block's codes are made of: values are `d * k * level`.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    /// A half float in units of the tile.
    pub(super) d: Lanes,
    /// The whole scale of each run.
    pub(super) k: Lanes,
}

impl Scaled {
    #[inline(always)]
    pub(super) fn line(&self) -> Line {
        Line::through_zero(self.d * self.k)
    }
}

/// The sums over a run that a fit needs.
struct Sums {
    xq: Lanes,
    qq: Lanes,
}

#[inline(always)]
fn nearest<V: Levels>(values: Lanes) -> Lanes {
    values.map(V::nearest)
}

#[inline(always)]
fn sums<V: Levels, const N: usize>(tile: &Tile<N>, inverse: Lanes) -> Sums {
    let (mut xq, mut qq) = (Lanes::ZERO, Lanes::ZERO);
    for (x, w) in tile.x.iter().zip(&tile.w) {
        let q = nearest::<V>(*x * inverse);
        let wq = *w * q;
        xq = xq + wq * *x;
        qq = qq + wq * q;
    }
    Sums { xq: xq.together(), qq: qq.together() }
}

/// The error of every run under `scale`, with the best levels for it.
#[inline(always)]
fn error<V: Levels, const N: usize>(tile: &Tile<N>, scale: Lanes) -> Lanes {
    let inverse = scale.inverse();
    let mut sum = Lanes::ZERO;
    for (x, w) in tile.x.iter().zip(&tile.w) {
        let off = *x - scale * nearest::<V>(*x * inverse);
        sum = sum + *w * (off * off);
    }
    sum.together()
}

/// The best scale found for every run by itself. `grid` says which level the largest value shall be at; both signs of
/// the scale are tried.
#[inline(always)]
fn best_scales<V: Levels, const N: usize>(tile: &Tile<N>, grid: Grid) -> Lanes {
    let (low, high) = tile.range();
    let per_level = low.abs().max(high.abs()).inverse();
    let (mut best, mut gained) = (Lanes::ZERO, Lanes::ZERO);
    let n = 2 * grid.n;
    for i in 0..n + FITS {
        let inverse = if i < n {
            let level = grid.at(i / 2);
            per_level * Lanes::splat(if i % 2 == 0 { level } else { -level })
        } else {
            best.inverse()
        };
        let Sums { xq, qq } = sums::<V, N>(tile, inverse);
        let scale = xq * qq.inverse();
        let gain = scale * xq;
        best = scale.where_greater(gain, gained, best);
        gained = gain.max(gained);
    }
    best
}

/// A loop over the runs of a tile with levels `V`: none needs what another finds, and folds stay outside, so that
/// every step is a whole vector's.
struct Runs<'a, V, const N: usize, S> {
    tile: &'a Tile<N>,
    step: S,
    levels: PhantomData<V>,
}

impl<'a, V, const N: usize, S> Runs<'a, V, N, S>
where
    Self: Loop,
{
    fn run_on(tile: &'a Tile<N>, step: S) -> <Self as Loop>::Output {
        tile.isa.run(Self { tile, step, levels: PhantomData })
    }
}

/// Finds scales.
struct Best(Grid);

impl<V: Levels, const N: usize> Loop for Runs<'_, V, N, Best> {
    type Output = Lanes;

    #[inline(always)]
    fn run(self) -> Lanes {
        best_scales::<V, N>(self.tile, self.step.0)
    }
}

/// Finds scales that are half floats.
struct BestHalves(Grid);

impl<V: Levels, const N: usize> Loop for Runs<'_, V, N, BestHalves> {
    type Output = Lanes;

    #[inline(always)]
    fn run(self) -> Lanes {
        let Self { tile, step, .. } = self;
        let mut scale = best_scales::<V, N>(tile, step.0).to_half(tile.unit);
        let mut least = error::<V, N>(tile, scale);
        for _ in 0..FITS {
            let Sums { xq, qq } = sums::<V, N>(tile, scale.inverse());
            let fitted = (xq * qq.inverse()).to_half(tile.unit);
            let left = error::<V, N>(tile, fitted);
            scale = fitted.where_greater(least, left, scale);
            least = left.min(least);
        }
        scale
    }
}

/// Whole scales under a `d`, with the errors that they leave.
struct Whole {
    d: Lanes,
    free: Lanes,
    range: (f32, f32),
}

impl<V: Levels, const N: usize> Loop for Runs<'_, V, N, Whole> {
    type Output = (Lanes, Lanes);

    #[inline(always)]
    fn run(self) -> (Lanes, Lanes) {
        let Whole { d, free, range: (low, high) } = self.step;
        let k = (free * d.inverse()).clamp(low, high).round();
        (k, error::<V, N>(self.tile, d * k))
    }
}

/// The sums for a scale.
struct Held(Lanes);

impl<V: Levels, const N: usize> Loop for Runs<'_, V, N, Held> {
    type Output = Sums;

    #[inline(always)]
    fn run(self) -> Sums {
        sums::<V, N>(self.tile, self.step.0.inverse())
    }
}

/// The errors under a scale.
struct Error(Lanes);

impl<V: Levels, const N: usize> Loop for Runs<'_, V, N, Error> {
    type Output = Lanes;

    #[inline(always)]
    fn run(self) -> Lanes {
        error::<V, N>(self.tile, self.step.0)
    }
}

/// The better neighbours of whole scales, and the errors that they leave.
struct Neighbours {
    held: Scaled,
    range: (f32, f32),
}

impl<V: Levels, const N: usize> Loop for Runs<'_, V, N, Neighbours> {
    type Output = (Lanes, Lanes);

    #[inline(always)]
    fn run(self) -> (Lanes, Lanes) {
        let Neighbours { held: Scaled { d, k: middle }, range: (low, high) } = self.step;
        let (mut best, mut least) = (middle, Lanes::splat(f32::INFINITY));
        // From the middle on, so that what is as good stays.
        for off in [0.0, -1.0, 1.0] {
            let k = (middle + Lanes::splat(off)).clamp(low, high);
            let left = error::<V, N>(self.tile, d * k);
            best = k.where_greater(least, left, best);
            least = left.min(least);
        }
        (best, least)
    }
}

/// Scales of runs that are a block each: half floats.
pub(super) fn half_scales<V: Levels, const N: usize>(tile: &Tile<N>, grid: Grid) -> Lanes {
    Runs::<V, N, _>::run_on(tile, BestHalves(grid))
}

/// Whole scales of `range` for the runs of every block, and its `d`.
pub(super) fn block_scales<V: Levels, const N: usize>(
    tile: &Tile<N>,
    runs: Grid,
    blocks: Grid,
    range: (f32, f32),
) -> Scaled {
    let free = Runs::<V, N, _>::run_on(tile, Best(runs));
    let (above, below) = (free.fold_max(tile.group), (-free).fold_max(tile.group));
    let largest = (-below).where_greater(below, above, above);
    let mut best = Scaled { d: Lanes::ZERO, k: Lanes::ZERO };
    let mut least = Lanes::splat(f32::INFINITY);
    for i in 0..blocks.n {
        let d = (largest / Lanes::splat(blocks.at(i))).to_half(tile.unit);
        let (k, left) = Runs::<V, N, _>::run_on(tile, Whole { d, free, range });
        let left = left.fold(tile.group);
        best.d = d.where_greater(least, left, best.d);
        best.k = k.where_greater(least, left, best.k);
        least = left.min(least);
    }
    for _ in 0..TURNS {
        let before = least;
        let (turned, left) = turn::<V, N>(tile, best, least, range);
        // Where nothing was gained all stays, so that a block doesn't depend on its neighbour's turns.
        best.d = turned.d.where_greater(before, left, best.d);
        best.k = turned.k.where_greater(before, left, best.k);
        least = left.min(before);
        if before == least {
            break;
        }
    }
    best
}

/// Fits every `d`, then every `k` to its neighbours.
fn turn<V: Levels, const N: usize>(
    tile: &Tile<N>,
    held: Scaled,
    least: Lanes,
    range: (f32, f32),
) -> (Scaled, Lanes) {
    let Scaled { d, k } = held;
    let Sums { xq, qq } = Runs::<V, N, _>::run_on(tile, Held(d * k));
    let (xkq, kqkq) = ((k * xq).fold(tile.group), (k * k * qq).fold(tile.group));
    let fitted = (xkq * kqkq.inverse()).to_half(tile.unit);
    let left = Runs::<V, N, _>::run_on(tile, Error(fitted * k));
    let d = fitted.where_greater(least, left.fold(tile.group), d);
    let (k, left) = Runs::<V, N, _>::run_on(tile, Neighbours { held: Scaled { d, k }, range });
    (Scaled { d, k }, left.fold(tile.group))
}

/// Scales that are powers of two, half of what the exponent bytes of MXFP4 say, and these bytes.
pub(super) fn power_scales<V: Levels, const N: usize>(tile: &Tile<N>) -> (Lanes, [u8; LANES]) {
    /// `12 * 2^-3` is next to the largest value, which is from 1 to 2 units.
    const POWERS: [(f32, f32); 4] = [(0.0625, 4.0), (0.125, 3.0), (0.25, 2.0), (0.5, 1.0)];
    /// The highest level of MXFP4: it must stay finite.
    const LEVEL_MAX: f32 = 12.0;
    let (mut best, mut off) = (Lanes::splat(0.125), Lanes::splat(3.0));
    let mut least = Lanes::splat(f32::INFINITY);
    for (power, below) in POWERS {
        let scale = Lanes::splat(power);
        let left = Runs::<V, N, _>::run_on(tile, Error(scale));
        let finite = Lanes::splat(f32::INFINITY);
        let left = left.where_greater(finite, scale * Lanes::splat(LEVEL_MAX) * tile.unit, finite);
        best = scale.where_greater(least, left, best);
        off = Lanes::splat(below).where_greater(least, left, off);
        least = left.min(least);
    }
    // A unit's exponent is biased by 127, a byte's by 128.
    let exponents = tile.unit.map(|unit| (unit.to_bits() >> 23) as f32 + 1.0);
    (best, (exponents - off).0.map(byte))
}
