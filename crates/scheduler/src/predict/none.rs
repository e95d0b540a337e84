//! Guesses nothing: every read is asked for by a router.

use forerun_model::{LayerId, Routing};

use super::{Guess, GuessInput, Predictor, View};

/// The predictor that makes no guess.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPredictor;

impl Predictor for NoPredictor {
    fn name(&self) -> &'static str {
        "none"
    }

    fn listens(&self, _view: View) -> bool {
        false
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

    fn guess(&mut self, _input: &GuessInput<'_>, _guesses: &mut Vec<Guess>) {}
}
