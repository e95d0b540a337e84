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
use super::symmetric::Grid;
use super::tile::Tile;

/// Times that a winner is fitted again.
const FITS: usize = 2;
/// Times that a block's half floats and its whole numbers are fitted by turns, at most.
const TURNS: usize = 4;
/// Part of a sum of squares below which a difference from it is rounding.
const SPREAD_MIN: f32 = 1.0 / 1_048_576.0;

/// How a run's values follow from its codes.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) scale: Lanes,
    pub(super) offset: Lanes,
}

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
    let inverse = line.scale.inverse();
    let shift = -line.offset * inverse;
    let mut sum = Lanes::ZERO;
    for (x, w) in tile.x.iter().zip(&tile.w) {
        let q = (*x * inverse + shift).clamp(0.0, high).round();
        let off = *x - (line.scale * q + line.offset);
        sum = sum + *w * (off * off);
    }
    sum
}

/// The best line found for every run by itself.
#[inline(always)]
pub(super) fn best_lines<const N: usize>(tile: &Tile<N>, search: &Search) -> Line {
    let (low, high) = tile.range();
    let low = low.min(Lanes::splat(search.offset_max));
    let per_range = (high - low).inverse();
    let fixed = Sums::of(tile);
    let mut best = Line { scale: Lanes::ZERO, offset: Lanes::ZERO };
    let mut gained = Lanes::splat(f32::NEG_INFINITY);
    let mut consider = |inverse: Lanes, shift: Lanes| {
        let sums = Sums { ..fixed }.at(tile, inverse, shift, search.high);
        let (line, gain) = sums.fit(search.offset_max);
        best.scale = line.scale.where_greater(gain, gained, best.scale);
        best.offset = line.offset.where_greater(gain, gained, best.offset);
        gained = gain.max(gained);
        best
    };
    let mut line = Line { scale: Lanes::ZERO, offset: low };
    for i in 0..search.spans.n * search.shifts.n {
        let span = search.spans.at(i / search.shifts.n);
        let inverse = per_range * Lanes::splat(span);
        let shift = Lanes::splat((search.high - span) / 2.0 + search.shifts.at(i % search.shifts.n));
        line = consider(inverse, shift - low * inverse);
    }
    for _ in 0..FITS {
        let inverse = line.scale.inverse();
        line = consider(inverse, -line.offset * inverse);
    }
    line
}

/// Lines of runs that are a block each: half floats.
#[inline(always)]
pub(super) fn half_lines<const N: usize>(tile: &Tile<N>, search: &Search) -> Line {
    let round =
        |line: Line| Line { scale: line.scale.to_half(tile.unit), offset: line.offset.to_half(tile.unit) };
    let mut best = round(best_lines(tile, search));
    let mut least = error(tile, best, search.high);
    for _ in 0..FITS {
        let inverse = best.scale.inverse();
        let sums = Sums::of(tile).at(tile, inverse, -best.offset * inverse, search.high);
        let fitted = round(sums.fit(search.offset_max).0);
        let left = error(tile, fitted, search.high);
        best.scale = fitted.scale.where_greater(least, left, best.scale);
        best.offset = fitted.offset.where_greater(least, left, best.offset);
        least = left.min(least);
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

/// Whole scales and minima up to `most` for the runs of every block, and its half floats. `blocks` says which whole
/// scale the largest shall be, and which whole minimum.
#[inline(always)]
pub(super) fn block_lines<const N: usize>(
    tile: &Tile<N>,
    search: &Search,
    (ds, es): (Grid, Grid),
    most: f32,
) -> Paired {
    let free = best_lines(tile, search);
    let scale_max = free.scale.fold_max(tile.group);
    let mut best = Paired { d: Lanes::ZERO, e: Lanes::ZERO, k: Lanes::ZERO, m: Lanes::ZERO };
    let mut least = Lanes::splat(f32::INFINITY);
    for i in 0..ds.n {
        let d = (scale_max / Lanes::splat(ds.at(i))).to_half(tile.unit);
        let k = (free.scale * d.inverse()).clamp(0.0, most).round();
        let min = best_min(tile, d * k, free.offset, search.high);
        let min_max = min.fold_max(tile.group);
        for i in 0..es.n {
            let e = (min_max / Lanes::splat(es.at(i))).to_half(tile.unit);
            let m = (min * e.inverse()).clamp(0.0, most).round();
            let tried = Paired { d, e, k, m };
            let left = error(tile, tried.line(), search.high).fold(tile.group);
            best = tried.where_greater(least, left, best);
            least = left.min(least);
        }
    }
    for _ in 0..TURNS {
        let before = least;
        turn(tile, &mut best, &mut least, search.high, most);
        if before == least {
            break;
        }
    }
    best
}

/// The best minimum, at least 0, for codes chosen under `scale` and `offset`.
#[inline(always)]
fn best_min<const N: usize>(tile: &Tile<N>, scale: Lanes, offset: Lanes, high: f32) -> Lanes {
    let inverse = scale.inverse();
    let sums = Sums::of(tile).at(tile, inverse, -offset * inverse, high);
    ((scale * sums.q - sums.x) / sums.w).max(Lanes::ZERO)
}

/// Fits the half floats of every block, then every pair of whole numbers to its neighbours.
#[inline(always)]
fn turn<const N: usize>(tile: &Tile<N>, best: &mut Paired, least: &mut Lanes, high: f32, most: f32) {
    let fitted = fit_halves(tile, *best, high);
    let left = error(tile, fitted.line(), high).fold(tile.group);
    *best = fitted.where_greater(*least, left, *best);

    let middle = *best;
    let mut run_least = error(tile, middle.line(), high);
    for i in 0..9u8 {
        let step = |third: u8| Lanes::splat(f32::from(third % 3) - 1.0);
        let tried = Paired {
            k: (middle.k + step(i)).clamp(0.0, most),
            m: (middle.m + step(i / 3)).clamp(0.0, most),
            ..middle
        };
        let left = error(tile, tried.line(), high);
        *best = tried.where_greater(run_least, left, *best);
        run_least = left.min(run_least);
    }
    *least = run_least.fold(tile.group);
}

/// The best half floats for the codes and whole numbers of `held`.
#[inline(always)]
fn fit_halves<const N: usize>(tile: &Tile<N>, held: Paired, high: f32) -> Paired {
    let Line { scale, offset } = held.line();
    let inverse = scale.inverse();
    let sums = Sums::of(tile).at(tile, inverse, -offset * inverse, high);
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

/// The codes of every run under its line.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what codes can be")]
pub(super) fn codes<const N: usize>(tile: &Tile<N>, line: Line, high: f32) -> [[u8; 16]; N] {
    let inverse = line.scale.inverse();
    let shift = -line.offset * inverse;
    let mut codes = [[0; 16]; N];
    for j in 0..N {
        let q = (tile.x[j] * inverse + shift).clamp(0.0, high).round();
        for i in 0..16 {
            codes[j][i] = q.0[i] as i32 as u8;
        }
    }
    codes
}
