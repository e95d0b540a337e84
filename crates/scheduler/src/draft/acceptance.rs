//! How often drafts are right: by position, and by what the drafter says of its confidence.

use super::DRAFTED_MAX;

/// What an outcome still weighs after another one of its kind.
const KEEP: f64 = 0.98;

/// How often a draft is right before any was verified.
const PRIOR: f64 = 0.7;
/// Outcomes that a prior weighs as much as: the position before for a position.
const POSITION_WEIGHT: f64 = 4.0;
/// The drafter's word for a range of confidences.
const WORD_WEIGHT: f64 = 4.0;
/// The range at all positions for the range at one.
const RANGE_WEIGHT: f64 = 4.0;

/// Outcomes after which hope is down to a third.
const HOPE_WEIGHT: f64 = 8.0;

/// Least step in which the bias of a drafter's logits is learnt.
const BIAS_STEP_MIN: f64 = 0.05;

/// Ends of the ranges of confidences that are told apart; the last range ends at 1. Confidences pile up there.
const RANGE_ENDS: [f32; 7] = [0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97];
const RANGES: usize = RANGE_ENDS.len() + 1;

/// Outcomes, weighted.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    right: f64,
    all: f64,
}

impl Count {
    fn add(&mut self, right: bool) {
        self.right = self.right * KEEP + f64::from(u8::from(right));
        self.all = self.all * KEEP + 1.0;
    }

    /// The share of right ones, drawn towards `prior` while there are few.
    fn share(self, prior: f64, weight: f64) -> f64 {
        (self.right + weight * prior) / (self.all + weight)
    }
}

/// Chances of drafts, given that those before them are right.
#[derive(Clone, Debug, Default)]
pub(super) struct Acceptance {
    positions: [Count; DRAFTED_MAX],
    /// Over all positions.
    ranges: [Count; RANGES],
    /// `[DRAFTED_MAX][RANGES]`.
    cells: [[Count; RANGES]; DRAFTED_MAX],
    /// What the drafter's logits are off by, and outcomes from which that was learnt.
    bias: f64,
    n_said: f64,
}

impl Acceptance {
    /// The chance of the draft at position `k`, from 0 on, of which the drafter says `confidence`, or NaN for nothing.
    /// What was hardly tried is hoped to be better than it seems.
    pub(super) fn of(&self, k: usize, confidence: f32) -> f64 {
        if confidence.is_nan() {
            return hope(self.usual(k), self.positions[k].all);
        }
        let at = range(confidence);
        let pooled = self.ranges[at].share(self.word(confidence), WORD_WEIGHT);
        hope(self.cells[k][at].share(pooled, RANGE_WEIGHT), self.ranges[at].all)
    }

    /// How often the draft at position `k` is right.
    pub(super) fn usual(&self, k: usize) -> f64 {
        self.positions[..=k].iter().fold(PRIOR, |before, count| count.share(before, POSITION_WEIGHT))
    }

    /// How often it may be right, for all that was seen.
    pub(super) fn hoped(&self, k: usize) -> f64 {
        hope(self.usual(k), self.positions[k].all)
    }

    /// The draft at position `k` was reached, and right or wrong.
    pub(super) fn learn(&mut self, k: usize, confidence: f32, right: bool) {
        self.positions[k].add(right);
        if !confidence.is_nan() {
            let at = range(confidence);
            // A step up the likelihood, larger while little is known.
            let step = (2.0 / (4.0 + self.n_said)).max(BIAS_STEP_MIN);
            self.bias += step * (f64::from(u8::from(right)) - self.word(confidence));
            self.n_said += 1.0;
            self.ranges[at].add(right);
            self.cells[k][at].add(right);
        }
    }

    /// What the drafter's word is worth, over all positions and confidences.
    fn word(&self, confidence: f32) -> f64 {
        let said = f64::from(confidence).clamp(0.001, 0.999);
        1.0 / (1.0 + (1.0 - said) / said * (-self.bias).exp())
    }

    /// Outcomes of long ago count half: what was unlucky then may be tried again.
    pub(super) fn forget(&mut self) {
        let cells = self.cells.iter_mut().flatten();
        for count in self.positions.iter_mut().chain(&mut self.ranges).chain(cells) {
            (count.right, count.all) = (count.right / 2.0, count.all / 2.0);
        }
    }
}

/// A chance of `mean` by so many outcomes, and a deviation and a quarter more while there are few.
fn hope(mean: f64, n: f64) -> f64 {
    let deviation = (mean * (1.0 - mean) / (n + HOPE_WEIGHT)).sqrt();
    (mean + 1.25 * deviation * HOPE_WEIGHT / (n + HOPE_WEIGHT)).min(1.0)
}

fn range(confidence: f32) -> usize {
    RANGE_ENDS.partition_point(|&end| end <= confidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns `n` outcomes at position `k`, `percent` of them right, evenly spread.
    fn teach(acceptance: &mut Acceptance, k: usize, confidence: f32, n: usize, percent: usize) {
        for i in 0..n {
            acceptance.learn(k, confidence, (i + 1) * percent / 100 > i * percent / 100);
        }
    }

    #[test]
    fn nothing_seen_the_drafter_is_believed() {
        let acceptance = Acceptance::default();
        assert!((acceptance.of(0, 0.9) - 0.9).abs() < 0.1 + 1e-6);
        assert!((acceptance.of(3, f32::NAN) - PRIOR).abs() < 0.25 && acceptance.usual(3) == PRIOR);
    }

    #[test]
    fn an_overconfident_drafter_is_corrected() {
        let mut acceptance = Acceptance::default();
        teach(&mut acceptance, 0, 0.95, 200, 40);
        assert!((acceptance.of(0, 0.95) - 0.4).abs() < 0.08, "{}", acceptance.of(0, 0.95));
        // At other positions the range counts, and in other ranges it is known for boasting.
        assert!((acceptance.of(2, 0.95) - 0.47).abs() < 0.08, "{}", acceptance.of(2, 0.95));
        let elsewhere = acceptance.of(0, 0.5);
        assert!(elsewhere < 0.3, "{elsewhere}");
    }

    #[test]
    fn positions_are_told_apart_and_begin_with_the_one_before() {
        let mut acceptance = Acceptance::default();
        teach(&mut acceptance, 0, f32::NAN, 200, 50);
        teach(&mut acceptance, 1, f32::NAN, 200, 90);
        let usual = [0, 1, 2].map(|k| acceptance.usual(k));
        assert!((usual[0] - 0.5).abs() < 0.05 && (usual[1] - 0.9).abs() < 0.05, "{usual:?}");
        assert!((usual[2] - usual[1]).abs() < 1e-6, "{usual:?}");
    }

    #[test]
    fn hope_shrinks_with_what_is_seen() {
        let mut acceptance = Acceptance::default();
        let hope = |acceptance: &Acceptance| acceptance.hoped(0) - acceptance.usual(0);
        let before = hope(&acceptance);
        teach(&mut acceptance, 0, f32::NAN, 100, 50);
        assert!(hope(&acceptance) < before / 2.0 && acceptance.hoped(0) <= 1.0);
    }

    #[test]
    fn any_confidence_is_in_a_range() {
        for confidence in [f32::NEG_INFINITY, -1.0, 0.0, 0.5, 1.0, 2.0, f32::INFINITY] {
            assert!(range(confidence) < RANGES);
            let chance = Acceptance::default().of(0, confidence);
            assert!((0.0..=1.0).contains(&chance), "{confidence}: {chance}");
        }
    }
}
