//! Scales of runs whose values are `scale * level`.
//!
//! A run alone: with the levels `q` held, the scale that leaves the least `sum w (x - s q)^2` is
//! `sum w x q / sum w q^2`, and it takes `(sum w x q)^2 / sum w q^2` off `sum w x^2`. A grid of scales is tried; the
//! levels of each are judged by what their own best scale takes off, and the winner's scale is fitted again.
//!
//! A block whose runs have whole scales `k` under one half float `d`: a grid of `d`, levels chosen anew under each;
//! then by turns `d = sum w x k q / sum w (k q)^2` and the neighbours of every `k`, while the error falls.

use super::lanes::{LANES, Lanes};
use super::levels::Levels;
use super::tile::Tile;

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
const FITS: usize = 2;
/// Times that a block's `d` and its `k` are fitted by turns, at most.
const TURNS: usize = 4;

/// What a block's codes are made of: values are `d * k * level`.
pub(super) struct Scaled {
    /// A half float in units of the tile.
    pub(super) d: Lanes,
    /// The whole scale of each run.
    pub(super) k: Lanes,
}

/// The sums over a run that a fit needs.
struct Sums {
    xq: Lanes,
    qq: Lanes,
}

#[inline(always)]
fn sums<V: Levels, const N: usize>(tile: &Tile<N>, inverse: Lanes) -> Sums {
    let (mut xq, mut qq) = (Lanes::ZERO, Lanes::ZERO);
    for (x, w) in tile.x.iter().zip(&tile.w) {
        let q = V::nearest(*x * inverse);
        let wq = *w * q;
        xq = xq + wq * *x;
        qq = qq + wq * q;
    }
    Sums { xq, qq }
}

/// The error of every run under `scale`, with the best levels for it.
#[inline(always)]
fn error<V: Levels, const N: usize>(tile: &Tile<N>, scale: Lanes) -> Lanes {
    let inverse = scale.inverse();
    let mut sum = Lanes::ZERO;
    for (x, w) in tile.x.iter().zip(&tile.w) {
        let off = *x - scale * V::nearest(*x * inverse);
        sum = sum + *w * (off * off);
    }
    sum
}

/// The best scale found for every run by itself. `grid` says which level the largest value shall be at; both signs of
/// the scale are tried.
#[inline(always)]
pub(super) fn best_scales<V: Levels, const N: usize>(tile: &Tile<N>, grid: Grid) -> Lanes {
    let (low, high) = tile.range();
    let per_level = low.abs().max(high.abs()).inverse();
    let (mut best, mut gained) = (Lanes::ZERO, Lanes::ZERO);
    let mut consider = |inverse: Lanes| {
        let Sums { xq, qq } = sums::<V, N>(tile, inverse);
        let scale = xq * qq.inverse();
        let gain = scale * xq;
        best = scale.where_greater(gain, gained, best);
        gained = gain.max(gained);
        best
    };
    let mut scale = Lanes::ZERO;
    for i in 0..2 * grid.n {
        let level = grid.at(i / 2);
        scale = consider(per_level * Lanes::splat(if i % 2 == 0 { level } else { -level }));
    }
    for _ in 0..FITS {
        scale = consider(scale.inverse());
    }
    scale
}

/// Scales of runs that are a block each: half floats.
#[inline(always)]
pub(super) fn half_scales<V: Levels, const N: usize>(tile: &Tile<N>, grid: Grid) -> Lanes {
    let mut scale = best_scales::<V, N>(tile, grid).to_half(tile.unit);
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

/// Whole scales from `low` to `high` for the runs of every block, and its `d`.
#[inline(always)]
pub(super) fn block_scales<V: Levels, const N: usize>(
    tile: &Tile<N>,
    runs: Grid,
    blocks: Grid,
    (low, high): (f32, f32),
) -> Scaled {
    let free = best_scales::<V, N>(tile, runs);
    let (above, below) = (free.fold_max(tile.group), (-free).fold_max(tile.group));
    let largest = (-below).where_greater(below, above, above);
    let mut best = Scaled { d: Lanes::ZERO, k: Lanes::ZERO };
    let mut least = Lanes::splat(f32::INFINITY);
    for i in 0..blocks.n {
        let d = (largest / Lanes::splat(blocks.at(i))).to_half(tile.unit);
        let k = (free * d.inverse()).clamp(low, high).round();
        let left = error::<V, N>(tile, d * k).fold(tile.group);
        best.d = d.where_greater(least, left, best.d);
        best.k = k.where_greater(least, left, best.k);
        least = left.min(least);
    }
    for _ in 0..TURNS {
        let before = least;
        turn::<V, N>(tile, &mut best, &mut least, (low, high));
        if before == least {
            break;
        }
    }
    best
}

/// Fits every `d`, then every `k` to its neighbours.
#[inline(always)]
fn turn<V: Levels, const N: usize>(
    tile: &Tile<N>,
    best: &mut Scaled,
    least: &mut Lanes,
    (low, high): (f32, f32),
) {
    let Sums { xq, qq } = sums::<V, N>(tile, (best.d * best.k).inverse());
    let (xkq, kqkq) = ((best.k * xq).fold(tile.group), (best.k * best.k * qq).fold(tile.group));
    let d = (xkq * kqkq.inverse()).to_half(tile.unit);
    let left = error::<V, N>(tile, d * best.k).fold(tile.group);
    best.d = d.where_greater(*least, left, best.d);

    let middle = best.k;
    let mut run_least = error::<V, N>(tile, best.d * middle);
    for off in [-1.0, 1.0] {
        let k = (middle + Lanes::splat(off)).clamp(low, high);
        let left = error::<V, N>(tile, best.d * k);
        best.k = k.where_greater(run_least, left, best.k);
        run_least = left.min(run_least);
    }
    *least = run_least.fold(tile.group);
}

/// The codes of every run under its scale.
#[inline(always)]
pub(super) fn codes<V: Levels, const N: usize>(tile: &Tile<N>, scale: Lanes) -> [[u8; 16]; N] {
    let inverse = scale.inverse();
    let mut codes = [[0; 16]; N];
    for j in 0..N {
        codes[j] = V::codes(V::nearest(tile.x[j] * inverse));
    }
    codes
}

/// Scales that are powers of two, half of what the exponent bytes of MXFP4 say, and these bytes.
#[inline(always)]
pub(super) fn power_scales<V: Levels, const N: usize>(tile: &Tile<N>) -> (Lanes, [u8; LANES]) {
    /// `12 * 2^-3` is next to the largest value, which is from 1 to 2 units.
    const POWERS: [(f32, f32); 4] = [(0.0625, 4.0), (0.125, 3.0), (0.25, 2.0), (0.5, 1.0)];
    let (mut best, mut off) = (Lanes::splat(0.125), Lanes::splat(3.0));
    let mut least = Lanes::splat(f32::INFINITY);
    for (power, below) in POWERS {
        let scale = Lanes::splat(power);
        let left = error::<V, N>(tile, scale);
        best = scale.where_greater(least, left, best);
        off = Lanes::splat(below).where_greater(least, left, off);
        least = left.min(least);
    }
    let mut bytes = [0; LANES];
    for i in 0..LANES {
        // A unit's exponent is biased by 127, a byte's by 128.
        bytes[i] = ((tile.unit.0[i].to_bits() >> 23) as f32 + 1.0 - off.0[i]) as u8;
    }
    (best, bytes)
}
