//! Who guesses on a simulated machine: the shipped predictors, one that knows nothing, and one that knows everything.

use forerun_model::{ExpertId, ExpertKey, LayerId, Routing};
use forerun_scheduler::{Blend, Guess, GuessInput, NoPredictor, Predictor, Recent, RouterAhead, View};

use crate::Rng;

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guessing {
    /// Nobody.
    None,
    /// Chance.
    Random {
        /// Most guesses of an offer.
        n_guesses_max: usize,
    },
    /// Whoever believes the backend's scores.
    Oracle,
    /// The routers of the layers to come.
    RouterAhead {
        /// How many layers ahead.
        depth: u16,
    },
    /// Whoever expects the last token's experts.
    Recent,
    /// The routers, moved towards the last token's experts.
    Blend,
}

impl Guessing {
    /// Any of them.
    pub fn random(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0 => Self::None,
            1 => Self::Oracle,
            2 => Self::RouterAhead { depth: 1 },
            3 => Self::RouterAhead { depth: 2 },
            4 => Self::Recent,
            5 => Self::Blend,
            _ => Self::Random { n_guesses_max: 1 + rng.index(12) },
        }
    }

    /// A predictor that does so; the seed decides what chance guesses.
    pub fn predictor(self, seed: u64) -> Box<dyn Predictor> {
        match self {
            Self::None => Box::new(NoPredictor),
            Self::Random { n_guesses_max } => Box::new(RandomPredictor::new(seed, n_guesses_max)),
            Self::Oracle => Box::new(Oracle),
            Self::RouterAhead { depth } => Box::new(RouterAhead::new(depth)),
            Self::Recent => Box::<Recent>::default(),
            Self::Blend => Box::<Blend>::default(),
        }
    }
}

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
