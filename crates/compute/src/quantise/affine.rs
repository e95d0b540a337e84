//! Scales and offsets of runs whose values are `scale * code + offset`, codes from 0 to a highest.
//!
//! A run alone: with the codes `q` held, scale and offset follow from weighted least squares,
//! `s = (W sum w x q - sum w x sum w q) / (W sum w q^2 - (sum w q)^2)` and `b = (sum w x - s sum w q) / W` with
//! `W = sum w`; they take `s sum w x q + b sum w x` off `sum w x^2`. A grid of ranges and of shifts of the codes is
//! tried; the codes of each are judged by what their own best fit takes off, and the winner is fitted again.
//!
//! A block whose runs have whole scales `k` and minima `m` under two half floats, values `d k q - e m`: a grid of `d`
//! and `e`, codes chosen anew under each; then by turns `d` and `e` by least squares over the block, and the
//! neighbours of every pair of `k` and `m`, while the error falls.

use super::lanes::Lanes;
use super::line::Line;
use super::symmetric::Grid;
use super::tile::Tile;
use crate::kernels::Loop;

/// Times that a winner is fitted again.
const FITS: u16 = 2;
/// Times that a block's half floats and its whole numbers are fitted by turns, at most.
const TURNS: usize = 4;
/// Part of a sum of squares below which a difference from it is rounding.
const SPREAD_MIN: f32 = 1.0 / 1_048_576.0;

/// What to try.
pub(super) struct Search {
    /// The highest code.
    pub(super) high: f32,
    /// Codes that the range of a run's values shall span.
    pub(super) spans: Grid,
    /// What is added to a code before it is rounded.
    pub(super) shifts: Grid,
    /// The largest offset that the format has.
    pub(super) offset_max: f32,
}

/// The sums over a run that a fit needs.
struct Sums {
    w: Lanes,
    x: Lanes,
    q: Lanes,
    xq: Lanes,
    qq: Lanes,
}

impl Sums {
    /// Without codes.
    #[inline(always)]
    fn of<const N: usize>(tile: &Tile<N>) -> Self {
        let (mut w, mut x) = (Lanes::ZERO, Lanes::ZERO);
        for (value, weight) in tile.x.iter().zip(&tile.w) {
            w = w + *weight;
            x = x + *weight * *value;
        }
        Self { w, x, q: Lanes::ZERO, xq: Lanes::ZERO, qq: Lanes::ZERO }
    }

    /// With the nearest codes to `x * inverse + shift`.
    #[inline(always)]
    fn at<const N: usize>(mut self, tile: &Tile<N>, inverse: Lanes, shift: Lanes, high: f32) -> Self {
        for (x, w) in tile.x.iter().zip(&tile.w) {
            let q = (*x * inverse + shift).clamp(0.0, high).round();
            let wq = *w * q;
            self.q = self.q + wq;
            self.xq = self.xq + wq * *x;
            self.qq = self.qq + wq * q;
        }
        (self.q, self.xq, self.qq) = (self.q.together(), self.xq.together(), self.qq.together());
        self
    }

    /// The best line for these codes, and what it takes off the error of all zero.
    #[inline(always)]
    fn fit(&self, offset_max: f32) -> (Line, Lanes) {
        let squares = self.w * self.qq;
        let spread = squares - self.q * self.q;
        // Less is what rounding leaves of codes that are all alike.
        let spread = spread.where_greater(spread, squares * Lanes::splat(SPREAD_MIN), Lanes::ZERO);
        let scale = (self.w * self.xq - self.x * self.q) * spread.inverse();
        let offset = (self.x - scale * self.q) / self.w;
        let limit = Lanes::splat(offset_max);
        // With the offset at its limit, which is 0 or none, the scale has its own fit.
        let alone = self.xq * self.qq.inverse();
        let scale = alone.where_greater(offset, limit, scale);
        let offset = offset.min(limit);
        (Line { scale, offset }, scale * self.xq + offset * self.x)
    }
}

/// The error of every run under `line`, with the best codes for it.
#[inline(always)]
fn error<const N: usize>(tile: &Tile<N>, line: Line, high: f32) -> Lanes {
    let (inverse, shift) = line.levels();
    let mut sum = Lanes::ZERO;
    for (x, w) in tile.x.iter().zip(&tile.w) {
        let q = (*x * inverse + shift).clamp(0.0, high).round();
        let off = *x - (line.scale * q + line.offset);
        sum = sum + *w * (off * off);
    }
    sum.together()
}

/// The best line found for every run by itself.
#[inline(always)]
fn best_lines<const N: usize>(tile: &Tile<N>, search: &Search) -> Line {
    let (low, high) = tile.range();
    let low = low.min(Lanes::splat(search.offset_max));
    let per_range = (high - low).inverse();
    let fixed = Sums::of(tile);
    let mut best = Line { scale: Lanes::ZERO, offset: low };
    let mut gained = Lanes::splat(f32::NEG_INFINITY);
    let n = search.spans.n * search.shifts.n;
    for i in 0..n + FITS {
        let (inverse, shift) = if i < n {
            let span = search.spans.at(i / search.shifts.n);
            let inverse = per_range * Lanes::splat(span);
            let middle = (search.high - span) / 2.0 + search.shifts.at(i % search.shifts.n);
            (inverse, Lanes::splat(middle) - low * inverse)
        } else {
            best.levels()
        };
        let (line, gain) = Sums { ..fixed }.at(tile, inverse, shift, search.high).fit(search.offset_max);
        best = line.where_greater(gain, gained, best);
        gained = gain.max(gained);
    }
    best
}

/// What a block's codes are made of: values are `d * k * code - e * m`.
#[derive(Clone, Copy)]
pub(super) struct Paired {
    /// A half float in units of the tile.
    pub(super) d: Lanes,
    /// Another.
    pub(super) e: Lanes,
    /// The whole scale of each run.
    pub(super) k: Lanes,
    /// The whole minimum of each run.
    pub(super) m: Lanes,
}

impl Paired {
    #[inline(always)]
    pub(super) fn line(&self) -> Line {
        Line { scale: self.d * self.k, offset: -(self.e * self.m) }
    }

    /// `self` where `a > b`, else `other`.
    #[inline(always)]
    fn where_greater(self, a: Lanes, b: Lanes, other: Self) -> Self {
        Self {
            d: self.d.where_greater(a, b, other.d),
            e: self.e.where_greater(a, b, other.e),
            k: self.k.where_greater(a, b, other.k),
            m: self.m.where_greater(a, b, other.m),
        }
    }
}

/// A loop over the runs of a tile with codes up to `search.high`: none needs what another finds, and folds stay
/// outside, so that every step is a whole vector's.
struct Runs<'a, const N: usize, S> {
    tile: &'a Tile<N>,
    search: &'a Search,
    step: S,
}

impl<'a, const N: usize, S> Runs<'a, N, S>
where
    Self: Loop,
{
    fn run_on(tile: &'a Tile<N>, search: &'a Search, step: S) -> <Self as Loop>::Output {
        tile.isa.run(Self { tile, search, step })
    }
}

/// Finds lines.
struct Best;

impl<const N: usize> Loop for Runs<'_, N, Best> {
    type Output = Line;

    #[inline(always)]
    fn run(self) -> Line {
        best_lines(self.tile, self.search)
    }
}

/// Finds lines of half floats.
struct BestHalves;

impl<const N: usize> Loop for Runs<'_, N, BestHalves> {
    type Output = Line;

    #[inline(always)]
    fn run(self) -> Line {
        let Self { tile, search, .. } = self;
        let mut best = best_lines(tile, search).to_halves(tile.unit);
        let mut least = error(tile, best, search.high);
        for _ in 0..FITS {
            let (inverse, shift) = best.levels();
            let sums = Sums::of(tile).at(tile, inverse, shift, search.high);
            let fitted = sums.fit(search.offset_max).0.to_halves(tile.unit);
            let left = error(tile, fitted, search.high);
            best = fitted.where_greater(least, left, best);
            least = left.min(least);
        }
        best
    }
}

/// The best minima, at least 0, for codes chosen under a line.
struct BestMin(Line);

impl<const N: usize> Loop for Runs<'_, N, BestMin> {
    type Output = Lanes;

    #[inline(always)]
    fn run(self) -> Lanes {
        let (inverse, shift) = self.step.0.levels();
        let sums = Sums::of(self.tile).at(self.tile, inverse, shift, self.search.high);
        ((self.step.0.scale * sums.q - sums.x) / sums.w).max(Lanes::ZERO)
    }
}

/// The error of every run under a line.
struct Error(Line);

impl<const N: usize> Loop for Runs<'_, N, Error> {
    type Output = Lanes;

    #[inline(always)]
    fn run(self) -> Lanes {
        error(self.tile, self.step.0, self.search.high)
    }
}

/// The sums for a line.
struct Held(Line);

impl<const N: usize> Loop for Runs<'_, N, Held> {
    type Output = Sums;

    #[inline(always)]
    fn run(self) -> Sums {
        let (inverse, shift) = self.step.0.levels();
        Sums::of(self.tile).at(self.tile, inverse, shift, self.search.high)
    }
}

/// The best neighbours of pairs of whole numbers up to `most`, and the errors that they leave.
struct Neighbours {
    held: Paired,
    most: f32,
}

impl<const N: usize> Loop for Runs<'_, N, Neighbours> {
    type Output = (Paired, Lanes);

    #[inline(always)]
    fn run(self) -> (Paired, Lanes) {
        let Neighbours { held, most } = self.step;
        let (mut best, mut least) = (held, Lanes::splat(f32::INFINITY));
        for i in 0..9u8 {
            // From the middle on, so that what is as good stays.
            let place = (i + 4) % 9;
            let k = held.k + Lanes::splat(f32::from(place % 3) - 1.0);
            let m = held.m + Lanes::splat(f32::from(place / 3) - 1.0);
            let tried = Paired { k: k.clamp(0.0, most), m: m.clamp(0.0, most), ..held };
            let left = error(self.tile, tried.line(), self.search.high);
            best = tried.where_greater(least, left, best);
            least = left.min(least);
        }
        (best, least)
    }
}

/// Lines of runs that are a block each: half floats.
pub(super) fn half_lines<const N: usize>(tile: &Tile<N>, search: &Search) -> Line {
    Runs::run_on(tile, search, BestHalves)
}

/// Whole scales and minima up to `most` for the runs of every block, and its half floats. `blocks` says which whole
/// scale the largest shall be, and which whole minimum.
pub(super) fn block_lines<const N: usize>(
    tile: &Tile<N>,
    search: &Search,
    (ds, es): (Grid, Grid),
    most: f32,
) -> Paired {
    let free = Runs::run_on(tile, search, Best);
    let scale_max = free.scale.fold_max(tile.group);
    let mut best = Paired { d: Lanes::ZERO, e: Lanes::ZERO, k: Lanes::ZERO, m: Lanes::ZERO };
    let mut least = Lanes::splat(f32::INFINITY);
    for i in 0..ds.n {
        let d = (scale_max / Lanes::splat(ds.at(i))).to_half(tile.unit);
        let k = (free.scale * d.inverse()).clamp(0.0, most).round();
        let min = Runs::run_on(tile, search, BestMin(Line { scale: d * k, offset: free.offset }));
        let min_max = min.fold_max(tile.group);
        for i in 0..es.n {
            let e = (min_max / Lanes::splat(es.at(i))).to_half(tile.unit);
            let m = (min * e.inverse()).clamp(0.0, most).round();
            let tried = Paired { d, e, k, m };
            let left = Runs::run_on(tile, search, Error(tried.line())).fold(tile.group);
            best = tried.where_greater(least, left, best);
            least = left.min(least);
        }
    }
    for _ in 0..TURNS {
        let before = least;
        let fitted = fit_halves(tile, search, best);
        let left = Runs::run_on(tile, search, Error(fitted.line())).fold(tile.group);
        let fitted = fitted.where_greater(least, left, best);
        let (turned, left) = Runs::run_on(tile, search, Neighbours { held: fitted, most });
        let left = left.fold(tile.group);
        // Where nothing was gained all stays, so that a block doesn't depend on its neighbour's turns.
        best = turned.where_greater(before, left, best);
        least = left.min(before);
        if before == least {
            break;
        }
    }
    best
}

/// The best half floats for the codes and whole numbers of `held`.
fn fit_halves<const N: usize>(tile: &Tile<N>, search: &Search, held: Paired) -> Paired {
    let sums = Runs::run_on(tile, search, Held(held.line()));
    let (k, m) = (held.k, held.m);
    let kqkq = (k * k * sums.qq).fold(tile.group);
    let kqm = (k * m * sums.q).fold(tile.group);
    let mm = (m * m * sums.w).fold(tile.group);
    let xkq = (k * sums.xq).fold(tile.group);
    let xm = (m * sums.x).fold(tile.group);
    let squares = kqkq * mm;
    let spread = squares - kqm * kqm;
    let spread = spread.where_greater(spread, squares * Lanes::splat(SPREAD_MIN), Lanes::ZERO);
    let d = (xkq * mm - kqm * xm) * spread.inverse();
    let e = (xkq * kqm - kqkq * xm) * spread.inverse();
    // Without minima there is nothing to solve for but `d`.
    let d = d.where_greater(spread, Lanes::ZERO, xkq * kqkq.inverse());
    let e = e.where_greater(spread, Lanes::ZERO, held.e);
    Paired { d: d.to_half(tile.unit), e: e.to_half(tile.unit), ..held }
}
