//! One pass through all layers: where the schedule and the arithmetic meet.

use forerun_compute::{Backend, ExpertJob, Scores, Step, StepOutput};
use forerun_model::{LayerId, ModelShape, Routing, Stage};
use forerun_scheduler::{GuessInput, Listener, Ready, Scheduler, View};

use crate::DecodeError;

/// Runs steps; keeps the buffers between them.
#[derive(Debug)]
pub struct StepLoop {
    layers: Vec<LayerId>,
    n_experts: usize,
    routing: Routing,
    scores: Scores,
}

impl StepLoop {
    /// A loop over the layers of `shape`.
    pub fn new(shape: &ModelShape) -> Self {
        Self {
            layers: shape.layer_ids().collect(),
            n_experts: shape.moe.n_experts,
            routing: Routing::default(),
            scores: Scores::default(),
        }
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
        scheduler.begin_pass(step.rows.len());
        self.look_ahead(backend, Stage::Begin, 0, scheduler.listener())?;
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
        backend.mix_route(layer, &mut self.routing)?;
        let mut turn = scheduler.open_layer(layer, &self.routing)?;
        self.look_ahead(backend, Stage::Early, i + 1, turn.listener())?;
        backend.run_shared(layer)?;
        while let Some(Ready { key, lease, parts }) = turn.next_ready()? {
            let uses = self.routing.uses(key.expert);
            backend.run_expert(ExpertJob { layer, weights: lease, parts, uses })?;
        }
        drop(turn);
        backend.close_layer(layer)?;
        self.look_ahead(backend, Stage::Closed, i + 1, scheduler.listener())
    }

    /// Offers what the routers of the layers from the `first` on say at `stage`, as far as anybody listens.
    fn look_ahead(
        &mut self,
        backend: &mut dyn Backend,
        stage: Stage,
        first: usize,
        mut to: Listener<'_>,
    ) -> Result<(), DecodeError> {
        for (&layer, ahead) in self.layers.iter().skip(first).zip(1..) {
            let view = View { stage, ahead };
            if !to.listens(view, layer) {
                break;
            }
            if to.wants_scores() {
                backend.scores(stage, layer, &mut self.scores)?;
            }
            let (n_experts, probabilities) = (self.n_experts, &self.scores.probabilities);
            to.offer(GuessInput { view, layer, n_experts, probabilities });
        }
        Ok(())
    }
}
