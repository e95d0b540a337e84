//! Predictors for tests: one that knows nothing, and one that knows everything.

use forerun_model::{ExpertId, ExpertKey, LayerId, Routing};
use forerun_scheduler::{Guess, GuessInput, Predictor, View};

use crate::Rng;

/// Guesses at random: right, wrong, doubled, and now and then an expert or a layer that doesn't exist.
#[derive(Clone, Debug)]
pub struct RandomPredictor {
    rng: Rng,
    n_guesses_max: usize,
}

impl RandomPredictor {
    /// Brings up to `n_guesses_max` guesses each time.
    pub fn new(seed: u64, n_guesses_max: usize) -> Self {
        Self { rng: Rng::new(seed), n_guesses_max }
    }
}

impl Predictor for RandomPredictor {
    fn name(&self) -> &'static str {
        "random"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        for _ in 0..self.rng.index(self.n_guesses_max + 1) {
            let expert = u16::try_from(self.rng.index(input.n_experts + 1)).unwrap_or(u16::MAX);
            let layer = if self.rng.happens(10) { LayerId(u16::MAX) } else { input.layer };
            guesses.push(Guess { key: ExpertKey { layer, expert: ExpertId(expert) }, probability: 0.5 });
        }
    }
}

/// Believes the scores: guesses every expert whose probability isn't zero in any row. Over a [`crate::ToyBackend`],
/// whose scores are the truth, it is never wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oracle;

impl Predictor for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1
    }

    fn wants_scores(&self) -> bool {
        true
    }

    fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        for expert in 0..input.n_experts {
            let row = |row: &[f32]| row.get(expert).copied().unwrap_or(0.0);
            let probability = input.probabilities.chunks(input.n_experts).map(row).fold(0.0, f32::max);
            if let (true, Ok(expert)) = (probability > 0.0, u16::try_from(expert)) {
                guesses.push(Guess {
                    key: ExpertKey { layer: input.layer, expert: ExpertId(expert) },
                    probability,
                });
            }
        }
    }
}
