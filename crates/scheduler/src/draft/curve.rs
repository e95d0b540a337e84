//! A quantity that grows with a count of rows or drafts, learnt from samples at some of the counts.

use super::LENGTHS;

/// Counts that are told apart: 0 to one more than the most drafts, which is the most rows.
const BINS: usize = LENGTHS + 1;

/// Least share of a new sample in a mean: one in so many.
const SAMPLES: f64 = 48.0;
/// Squares of distance that the growth known beforehand weighs as much as.
const GROWTH_WEIGHT: f64 = 3.0;
/// Samples that the fitted line weighs as much as, beside a bin's own.
const LINE_WEIGHT: f64 = 3.0;

/// Samples of one count.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    mean: f64,
    n: f64,
}

impl Bin {
    fn add(&mut self, sample: f64) {
        self.n = (self.n + 1.0).min(SAMPLES);
        self.mean += (sample - self.mean) / self.n;
    }
}

/// Means of samples by count, joined by a line through the first count's.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// The count at which the line begins.
    first: usize,
    /// Growth for each further count, as a share of the first, before anything is seen.
    growth: f64,
    /// The first count's value before anything is seen.
    level: f64,
    bins: [Bin; BINS],
}

impl Curve {
    /// A curve that begins with `level` at `first` and is expected to grow by `growth` of it for each further count.
    pub(super) fn new(first: usize, level: f64, growth: f64) -> Self {
        Self { first, growth, level, bins: [Bin::default(); BINS] }
    }

    /// A sample at `at`.
    pub(super) fn add(&mut self, at: usize, sample: f64) {
        self.bins[at.min(BINS - 1)].add(sample);
    }

    /// Samples at `at` that still count.
    pub(super) fn n(&self, at: usize) -> f64 {
        self.bins[at.min(BINS - 1)].n
    }

    /// Mean of the samples at `at`; meaningless without any.
    pub(super) fn mean(&self, at: usize) -> f64 {
        self.bins[at.min(BINS - 1)].mean
    }

    /// What is expected at `at`: the line there, or the samples if there are enough.
    pub(super) fn at(&self, at: usize) -> f64 {
        let at = at.clamp(self.first, BINS - 1);
        let base = self.base();
        let Bin { mean, n } = self.bins[at];
        if at == self.first && n > 0.0 {
            return mean;
        }
        let line = base + self.slope(base) * (at - self.first) as f64;
        (LINE_WEIGHT * line + n * mean) / (LINE_WEIGHT + n)
    }

    /// The first count's value; if only others were seen, what the expected growth makes of them.
    fn base(&self) -> f64 {
        if self.bins[self.first].n > 0.0 {
            return self.bins[self.first].mean;
        }
        let shape = |at: usize| 1.0 + self.growth * (at - self.first) as f64;
        let (mut sum, mut n) = (0.0, 0.0);
        for (at, bin) in self.bins.iter().enumerate().skip(self.first) {
            sum += bin.n * bin.mean / shape(at);
            n += bin.n;
        }
        if n > 0.0 { sum / n } else { self.level }
    }

    /// Least squares of what lies beyond the first count, through `base` there, drawn towards the expected growth.
    fn slope(&self, base: f64) -> f64 {
        let (mut above, mut below) = (GROWTH_WEIGHT * self.growth * base, GROWTH_WEIGHT);
        for (at, bin) in self.bins.iter().enumerate().skip(self.first + 1) {
            let distance = (at - self.first) as f64;
            above += bin.n * distance * (bin.mean - base);
            below += bin.n * distance * distance;
        }
        (above / below).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_anything_is_seen_it_grows_as_expected() {
        let mut curve = Curve::new(1, 1.0, 0.5);
        assert!((curve.at(3) - 2.0).abs() < 1e-9);
        curve.add(1, 4.0);
        assert!((curve.at(1) - 4.0).abs() < 1e-9 && (curve.at(3) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn it_learns_lines_between_and_beyond_what_is_seen() {
        let mut curve = Curve::new(1, 0.0, 0.5);
        for _ in 0..50 {
            curve.add(1, 10.0);
            curve.add(3, 12.0);
        }
        let found = [2, 3, 5].map(|rows| curve.at(rows));
        for (found, right) in found.into_iter().zip([11.0, 12.0, 14.0]) {
            assert!((found - right).abs() < 0.5, "{found} for {right}");
        }
    }

    #[test]
    fn what_is_seen_often_is_believed_off_the_line() {
        let mut curve = Curve::new(1, 0.0, 0.1);
        for _ in 0..50 {
            curve.add(1, 10.0);
            curve.add(2, 20.0);
            curve.add(5, 21.0);
        }
        assert!((curve.at(2) - 20.0).abs() < 1.0 && (curve.at(5) - 21.0).abs() < 1.0);
    }

    #[test]
    fn counts_beyond_the_last_are_the_last() {
        let mut curve = Curve::new(0, 1.0, 1.0);
        curve.add(1000, 5.0);
        assert!(curve.at(1000) > 1.0 && curve.n(BINS - 1) > 0.0);
    }
}
