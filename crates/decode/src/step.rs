//! One pass through all layers: where the schedule and the arithmetic meet.

use forerun_compute::{Backend, ExpertJob, Scores, Stage, Step, StepOutput};
use forerun_model::{LayerId, ModelShape, Routing};
use forerun_scheduler::{GuessInput, Ready, Scheduler};

use crate::DecodeError;

/// Whether the routers of later layers are asked for guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// Never: the predictor doesn't listen.
    Off,
    /// After the mixer, and again after the layer is closed.
    On,
}

/// Runs steps; keeps the buffers between them.
#[derive(Debug)]
pub struct StepLoop {
    layers: Vec<LayerId>,
    lookahead: Lookahead,
    routing: Routing,
    scores: Scores,
}

impl StepLoop {
    /// A loop over the layers of `shape`.
    pub fn new(shape: &ModelShape, lookahead: Lookahead) -> Self {
        let layers = shape.layer_ids().collect();
        Self { layers, lookahead, routing: Routing::default(), scores: Scores::default() }
    }

    /// Runs `step` and leaves the logits in `output`. The caller then accepts the rows.
    ///
    /// # Errors
    /// [`DecodeError`] from the arithmetic or the experts' store; the sequence is as it was before.
    pub fn run(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &mut Scheduler,
        step: &Step<'_>,
        output: &mut StepOutput,
    ) -> Result<(), DecodeError> {
        backend.begin(step)?;
        for i in 0..self.layers.len() {
            self.layer(backend, scheduler, i)?;
        }
        backend.finish(output)?;
        scheduler.end_pass()?;
        Ok(())
    }

    fn layer(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &mut Scheduler,
        i: usize,
    ) -> Result<(), DecodeError> {
        let layer = self.layers[i];
        let next = self.layers.get(i + 1).filter(|_| self.lookahead == Lookahead::On);
        backend.mix_route(layer, &mut self.routing)?;
        let mut turn = scheduler.open_layer(layer, &self.routing)?;
        if let Some(&next) = next {
            backend.scores(Stage::Early, next, &mut self.scores)?;
            turn.offer(guess_input(&self.scores));
        }
        backend.run_shared(layer)?;
        while let Some(Ready { key, lease, parts }) = turn.next_ready()? {
            let uses = self.routing.uses(key.expert);
            backend.run_expert(ExpertJob { layer, weights: lease, parts, uses })?;
        }
        drop(turn);
        backend.close_layer(layer)?;
        if let Some(&next) = next {
            backend.scores(Stage::Closed, next, &mut self.scores)?;
            scheduler.offer(guess_input(&self.scores));
        }
        Ok(())
    }
}

fn guess_input(scores: &Scores) -> GuessInput<'_> {
    GuessInput { layer: scores.layer, n_experts: scores.n_experts, probabilities: &scores.probabilities }
}
