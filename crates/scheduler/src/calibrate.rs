//! How often guesses are right: counted for each view, layer and rank, and forgotten slowly.

use forerun_model::{LayerId, Stage};

use crate::View;

/// Ranks that are told apart; later ones count as the last.
pub(crate) const RANKS: usize = 24;

/// Views that are told apart: three stages, one layer ahead or further.
const VIEWS: usize = 6;

/// What a guess is worth before anything is known: as likely right as wrong.
const PRIOR: f32 = 0.5;

/// Outcomes that the prior weighs as much as.
const PRIOR_WEIGHT: f32 = 2.0;

/// Outcomes of the same rank in other layers that weigh as much as so many of the layer's own.
const KIN_WEIGHT: f32 = 6.0;

/// What an outcome still weighs after another one.
const KEEP: f32 = 0.98;

/// Outcomes, weighted.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    right: f32,
    all: f32,
}

impl Count {
    fn add(&mut self, right: bool) {
        self.right = self.right * KEEP + f32::from(u8::from(right));
        self.all = self.all * KEEP + 1.0;
    }

    /// The share of right ones, drawn towards `prior` while there are few.
    fn share(self, prior: f32, weight: f32) -> f32 {
        (self.right + weight * prior) / (self.all + weight)
    }
}

/// Learns, for each view, layer and rank of a guess whose expert is not in memory, how likely it is wanted.
///
/// Experts that are in memory are left out: they are wanted more often, and nothing is read for them.
#[derive(Debug)]
pub(crate) struct Calibration {
    /// `[VIEWS][RANKS]`, over all layers.
    kin: [[Count; RANKS]; VIEWS],
    /// `[n_layers][VIEWS][RANKS]`; grows to the last layer that was guessed.
    own: Vec<[[Count; RANKS]; VIEWS]>,
}

impl Default for Calibration {
    fn default() -> Self {
        Self { kin: [[Count::default(); RANKS]; VIEWS], own: Vec::new() }
    }
}

impl Calibration {
    /// Bytes that it grows to with `n_layers` layers.
    pub(crate) fn bytes(n_layers: usize) -> usize {
        (n_layers + 1) * VIEWS * RANKS * size_of::<Count>()
    }

    /// Whether the guess of that rank was right.
    pub(crate) fn learn(&mut self, view: View, layer: LayerId, rank: usize, right: bool) {
        let (at, rank) = (place(view), rank.min(RANKS - 1));
        self.kin[at][rank].add(right);
        if self.own.len() <= layer.idx() {
            self.own.resize(layer.idx() + 1, [[Count::default(); RANKS]; VIEWS]);
        }
        self.own[layer.idx()][at][rank].add(right);
    }

    /// How likely the guess of that rank is right.
    pub(crate) fn probability(&self, view: View, layer: LayerId, rank: usize) -> f32 {
        let (at, rank) = (place(view), rank.min(RANKS - 1));
        let kin = self.kin[at][rank].share(PRIOR, PRIOR_WEIGHT);
        let own = self.own.get(layer.idx()).map_or_else(Count::default, |own| own[at][rank]);
        own.share(kin, KIN_WEIGHT)
    }
}

fn place(view: View) -> usize {
    let stage = match view.stage {
        Stage::Begin => 0,
        Stage::Early => 1,
        Stage::Closed => 2,
    };
    2 * stage + usize::from(view.ahead > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: View = View { stage: Stage::Early, ahead: 1 };
    const CLOSED: View = View { stage: Stage::Closed, ahead: 1 };

    #[test]
    fn nothing_is_known_at_first() {
        assert_eq!(Calibration::default().probability(EARLY, LayerId(3), 0), PRIOR);
    }

    #[test]
    fn a_rank_is_worth_what_it_was() {
        let mut calibration = Calibration::default();
        for i in 0..400 {
            calibration.learn(EARLY, LayerId(0), 0, i % 5 != 0);
            calibration.learn(EARLY, LayerId(0), 1, i % 5 == 0);
        }
        let at = |rank| calibration.probability(EARLY, LayerId(0), rank);
        assert!((at(0) - 0.8).abs() < 0.05 && (at(1) - 0.2).abs() < 0.05, "{} {}", at(0), at(1));
    }

    #[test]
    fn a_layer_without_outcomes_believes_its_kin() {
        let mut calibration = Calibration::default();
        (0..100).for_each(|_| calibration.learn(EARLY, LayerId(0), 0, true));
        assert!(calibration.probability(EARLY, LayerId(1), 0) > 0.9);
        (0..100).for_each(|_| calibration.learn(EARLY, LayerId(1), 0, false));
        assert!(calibration.probability(EARLY, LayerId(1), 0) < 0.2);
        assert!(calibration.probability(EARLY, LayerId(0), 0) > 0.8);
    }

    #[test]
    fn views_and_ranks_are_told_apart() {
        let mut calibration = Calibration::default();
        (0..50).for_each(|_| calibration.learn(EARLY, LayerId(0), 0, false));
        assert_eq!(calibration.probability(CLOSED, LayerId(0), 0), PRIOR);
        assert_eq!(calibration.probability(EARLY, LayerId(0), 1), PRIOR);
        let further = View { ahead: 2, ..EARLY };
        assert_eq!(calibration.probability(further, LayerId(0), 0), PRIOR);
    }

    #[test]
    fn what_is_true_no_longer_is_forgotten() {
        let mut calibration = Calibration::default();
        (0..500).for_each(|_| calibration.learn(EARLY, LayerId(0), 0, true));
        (0..200).for_each(|_| calibration.learn(EARLY, LayerId(0), 0, false));
        assert!(calibration.probability(EARLY, LayerId(0), 0) < 0.1);
    }

    #[test]
    fn a_layer_or_rank_beyond_all_is_no_mistake() {
        let mut calibration = Calibration::default();
        calibration.learn(EARLY, LayerId(9), 99, true);
        assert!(calibration.probability(EARLY, LayerId(9), 99) > PRIOR);
    }
}
