//! Who knows the next layer's experts: the bound of every predictor that looks one layer ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use forerun_model::{ExpertId, ExpertKey, LayerId, Routing};
use forerun_scheduler::{Guess, GuessInput, Predictor, View};

/// What one layer's router chose.
type Turn = (LayerId, Vec<ExpertId>);

/// The turns of a run, in the order in which layers were opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Record(Arc<Mutex<VecDeque<Turn>>>);

impl Record {
    /// What was recorded, which is forgotten here.
    pub(super) fn taken(&self) -> VecDeque<Turn> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Guesses nothing and writes down what routers choose.
#[derive(Debug)]
pub(super) struct Recorder(Record);

impl Recorder {
    pub(super) fn new(record: Record) -> Self {
        Self(record)
    }
}

impl Predictor for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn listens(&self, _: View) -> bool {
        false
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, layer: LayerId, routing: &Routing) {
        let experts = routing.experts().collect();
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((layer, experts));
    }

    fn guess(&mut self, _: &GuessInput<'_>, _: &mut Vec<Guess>) {}
}

/// Names what a recorded run wanted, for a run with the same tokens.
#[derive(Debug)]
pub(super) struct Oracle {
    /// Layers that haven't been opened.
    to_come: VecDeque<Turn>,
}

impl Oracle {
    pub(super) fn new(to_come: VecDeque<Turn>) -> Self {
        Self { to_come }
    }
}

impl Predictor for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, _: LayerId, _: &Routing) {
        self.to_come.pop_front();
    }

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        let Some((_, experts)) = self.to_come.front().filter(|(layer, _)| *layer == input.layer) else {
            return;
        };
        guesses.extend(
            experts
                .iter()
                .map(|&expert| Guess { key: ExpertKey { layer: input.layer, expert }, probability: 1.0 }),
        );
    }
}

#[cfg(test)]
mod tests {
    use forerun_model::Stage;

    use super::*;

    fn routing(expert: u16) -> Routing {
        let mut routing = Routing::default();
        routing.reset(1);
        routing.push_row(&[(ExpertId(expert), 1.0)]);
        routing.group();
        routing
    }

    #[test]
    fn the_next_turn_is_known_and_no_other() {
        let record = Record::default();
        let mut recorder = Recorder::new(record.clone());
        for (layer, expert) in [(0, 7), (1, 3), (0, 5)] {
            recorder.observe(LayerId(layer), &routing(expert));
        }
        let mut oracle = Oracle::new(record.taken());
        let named = |oracle: &mut Oracle, layer| {
            let view = View { stage: Stage::Early, ahead: 1 };
            let input = GuessInput { view, layer: LayerId(layer), n_experts: 8, probabilities: &[] };
            let mut guesses = Vec::new();
            oracle.guess(&input, &mut guesses);
            guesses.first().map(|guess| guess.key.expert.0)
        };
        assert_eq!(named(&mut oracle, 0), Some(7));
        oracle.observe(LayerId(0), &routing(7));
        assert_eq!((named(&mut oracle, 1), named(&mut oracle, 0)), (Some(3), None));
        oracle.observe(LayerId(1), &routing(3));
        assert_eq!(named(&mut oracle, 0), Some(5));
        assert!(record.taken().is_empty());
    }
}
