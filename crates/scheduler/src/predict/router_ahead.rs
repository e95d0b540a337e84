//! Guesses what the routers say: the router of a layer is asked before the layer is reached (LES).
//!
//! The router of layer `l` is applied to the residual stream as it is after the mixer of layer `l - 1`, normed as layer
//! `l` does, and again when that layer is closed; layer 0's router is applied to the embedding. On a trained model with 8
//! of 256 experts the first finds 76 % of them with 8 guesses and 90 % with 16, the second 82 % and 95 %, layer 0's 62 %
//! and 78 %.

use std::cmp::Ordering;

use forerun_model::{ExpertId, ExpertKey, LayerId, Routing};

use super::{Guess, GuessInput, Predictor, View};

/// Guesses per expert that a row uses, as many as are worth ranking.
const PER_EXPERT: usize = 2;

/// The predictor of LES, refined as more of the residual stream is known.
#[derive(Clone, Debug)]
pub struct RouterAhead {
    /// How many layers ahead it looks.
    depth: u16,
    top_k: usize,
    /// Experts of the input with their scores; kept for its memory.
    scored: Vec<(f32, ExpertId)>,
}

impl RouterAhead {
    /// Looks `depth` layers ahead; the stage after a layer is closed, and the embedding, look one ahead always.
    pub fn new(depth: u16) -> Self {
        Self { depth, top_k: 0, scored: Vec::new() }
    }
}

impl Default for RouterAhead {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Predictor for RouterAhead {
    fn name(&self) -> &'static str {
        "router-ahead"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1 || (view.ahead <= self.depth && view.stage == forerun_model::Stage::Early)
    }

    fn wants_scores(&self) -> bool {
        true
    }

    fn observe(&mut self, _layer: LayerId, routing: &Routing) {
        self.top_k = routing.top_k();
    }

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        rank(input, self.top_k.max(1) * PER_EXPERT, &mut self.scored, guesses);
    }
}

/// Adds the `n_each` likeliest experts of one row, and of more rows as many more, best first.
pub(super) fn rank(
    input: &GuessInput<'_>,
    n_each: usize,
    scored: &mut Vec<(f32, ExpertId)>,
    guesses: &mut Vec<Guess>,
) {
    scored.clear();
    let n_experts = input.n_experts;
    for (row, probabilities) in input.probabilities.chunks_exact(n_experts.max(1)).enumerate() {
        if row == 0 {
            scored.extend(probabilities.iter().copied().zip((0..).map(ExpertId)));
        } else {
            // A row more is a chance more; that sums may pass 1 changes no order.
            scored.iter_mut().zip(probabilities).for_each(|(sum, p)| sum.0 += p);
        }
    }
    let n_rows = input.probabilities.len() / n_experts.max(1);
    let n = (n_each * n_rows).min(scored.len());
    let best_first =
        |a: &(f32, ExpertId), b: &(f32, ExpertId)| -> Ordering { b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)) };
    if n < scored.len() {
        scored.select_nth_unstable_by(n, best_first);
        scored.truncate(n);
    }
    scored.sort_unstable_by(best_first);
    let layer = input.layer;
    guesses.extend(
        scored
            .iter()
            .filter(|scored| scored.0 > 0.0)
            .map(|&(score, expert)| Guess { key: ExpertKey { layer, expert }, probability: score.min(1.0) }),
    );
}

#[cfg(test)]
mod tests {
    use forerun_model::Stage;

    use super::*;

    fn guess(predictor: &mut RouterAhead, n_experts: usize, probabilities: &[f32]) -> Vec<u16> {
        let mut routing = Routing::default();
        routing.reset(1);
        routing.push_row(&[(ExpertId(0), 1.0)]);
        routing.group();
        predictor.observe(LayerId(0), &routing);
        let mut guesses = Vec::new();
        let view = View { stage: Stage::Early, ahead: 1 };
        predictor.guess(&GuessInput { view, layer: LayerId(1), n_experts, probabilities }, &mut guesses);
        assert!(guesses.iter().all(|guess| guess.key.layer == LayerId(1)));
        guesses.iter().map(|guess| guess.key.expert.0).collect()
    }

    #[test]
    fn the_likeliest_come_first_and_ties_by_number() {
        let mut predictor = RouterAhead::default();
        assert_eq!(guess(&mut predictor, 4, &[0.1, 0.4, 0.1, 0.4]), [1, 3]);
        assert_eq!(guess(&mut predictor, 4, &[0.3, 0.3, 0.3, 0.1]), [0, 1]);
    }

    #[test]
    fn what_has_no_chance_is_no_guess() {
        assert_eq!(guess(&mut RouterAhead::default(), 4, &[0.0, 1.0, 0.0, 0.0]), [1]);
        assert!(guess(&mut RouterAhead::default(), 4, &[]).is_empty());
    }

    #[test]
    fn rows_add_their_chances_and_their_wishes() {
        let two_rows = [0.6, 0.4, 0.0, 0.0, /* and */ 0.0, 0.3, 0.2, 0.5];
        assert_eq!(guess(&mut RouterAhead::default(), 4, &two_rows), [1, 0, 3, 2]);
    }

    #[test]
    fn it_looks_as_far_as_it_was_told() {
        let view = |stage, ahead| View { stage, ahead };
        let near = RouterAhead::default();
        assert!(near.listens(view(Stage::Begin, 1)) && near.listens(view(Stage::Closed, 1)));
        assert!(!near.listens(view(Stage::Early, 2)));
        let far = RouterAhead::new(2);
        assert!(far.listens(view(Stage::Early, 2)) && !far.listens(view(Stage::Early, 3)));
        assert!(!far.listens(view(Stage::Closed, 2)));
    }
}
