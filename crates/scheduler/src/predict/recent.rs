//! Guesses that a layer wants again what it wanted for the token before.
//!
//! It finds 17 % of the experts of a trained model with 8 of 256, where the routers themselves find 76 to 82 %: here for
//! comparison, and for models whose routers nobody can ask.

use forerun_model::{ExpertKey, LayerId, Routing};

use super::{Guess, GuessInput, Predictor, View};

/// The predictor that repeats the last routing.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// By layer: experts of the last row, best first, with their weights.
    last: Vec<Vec<Guess>>,
}

impl Predictor for Recent {
    fn name(&self) -> &'static str {
        "recent"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1 && view.stage != forerun_model::Stage::Closed
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, layer: LayerId, routing: &Routing) {
        if self.last.len() <= layer.idx() {
            self.last.resize(layer.idx() + 1, Vec::new());
        }
        let last = &mut self.last[layer.idx()];
        last.clear();
        if let Some(row) = routing.n_rows().checked_sub(1) {
            let guess = |&(expert, weight)| Guess { key: ExpertKey { layer, expert }, probability: weight };
            last.extend(routing.row(row).iter().map(guess));
        }
    }

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        guesses.extend_from_slice(self.last(input.layer));
    }
}

impl Recent {
    /// What `layer` chose last, best first; the probabilities are the router's weights.
    pub(super) fn last(&self, layer: LayerId) -> &[Guess] {
        self.last.get(layer.idx()).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use forerun_model::{ExpertId, Stage};

    use super::*;

    #[test]
    fn the_last_row_is_repeated_for_its_layer_only() {
        let mut routing = Routing::default();
        routing.reset(2);
        routing.push_row(&[(ExpertId(1), 0.9), (ExpertId(2), 0.1)]);
        routing.push_row(&[(ExpertId(7), 0.8), (ExpertId(3), 0.2)]);
        routing.group();
        let mut recent = Recent::default();
        recent.observe(LayerId(1), &routing);
        let guess = |recent: &mut Recent, layer| {
            let view = View { stage: Stage::Early, ahead: 1 };
            let mut guesses = Vec::new();
            let input = GuessInput { view, layer: LayerId(layer), n_experts: 8, probabilities: &[] };
            recent.guess(&input, &mut guesses);
            guesses.iter().map(|guess| guess.key.expert.0).collect::<Vec<_>>()
        };
        assert_eq!(guess(&mut recent, 1), [7, 3]);
        assert!(guess(&mut recent, 0).is_empty() && guess(&mut recent, 9).is_empty());
    }
}
