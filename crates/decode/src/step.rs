//! One pass through all layers: where the schedule and the arithmetic meet.

use std::fmt;

use forerun_compute::{Backend, ExpertJob, Scores, Step, StepOutput};
use forerun_model::{LayerId, ModelShape, Routing, Stage};
use forerun_scheduler::{GuessInput, Listener, Ready, Scheduler, View};

use crate::DecodeError;
use crate::observe::RoutingObserver;

/// When a layer's experts are computed. Changes no bit of what comes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Each as soon as it is there, while others are read.
    #[default]
    ReadyFirst,
    /// Not before all are there that a step wants, or as many as the slots hold: reading and computing by turns, as engines do that know no better.
    /// For comparisons.
    OnDemand,
}

/// Runs steps; keeps the buffers between them.
pub struct StepLoop {
    layers: Vec<LayerId>,
    n_experts: usize,
    routing: Routing,
    scores: Scores,
    schedule: Schedule,
    /// Experts that wait for the others of their layer.
    held: Vec<Ready>,
    observer: Option<Box<dyn RoutingObserver>>,
}

impl StepLoop {
    /// A loop over the layers of `shape`.
    pub fn new(shape: &ModelShape) -> Self {
        Self {
            layers: shape.layer_ids().collect(),
            n_experts: shape.moe.n_experts,
            routing: Routing::default(),
            scores: Scores::default(),
            schedule: Schedule::default(),
            held: Vec::new(),
            observer: None,
        }
    }

    /// The same loop with another schedule.
    #[must_use]
    pub fn scheduled(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// From now on `observer` hears what routers say, or nobody does.
    pub fn watch(&mut self, observer: Option<Box<dyn RoutingObserver>>) {
        self.observer = observer;
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
        self.begin(backend, scheduler, step)?;
        for i in 0..self.layers.len() {
            self.layer(backend, scheduler, i)?;
        }
        self.finish(backend, scheduler, output)
    }

    /// Layers of a step.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Begins `step`, for those who run its layers one by one.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn begin(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &mut Scheduler,
        step: &Step<'_>,
    ) -> Result<(), DecodeError> {
        backend.begin(step)?;
        scheduler.begin_pass(step.rows.len());
        if let Some(observer) = &mut self.observer {
            observer.begin(step.rows);
        }
        self.look_ahead(backend, Stage::Begin, 0, scheduler.listener())?;
        self.show(backend, Stage::Begin, 0)
    }

    /// Runs the layer `i` of the step that was begun.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn layer(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &mut Scheduler,
        i: usize,
    ) -> Result<(), DecodeError> {
        let ran = self.try_layer(backend, scheduler, i);
        if ran.is_err() {
            // Leases keep slots from being given up.
            self.held.clear();
        }
        ran
    }

    /// Ends a step whose layers have all run.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn finish(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &mut Scheduler,
        output: &mut StepOutput,
    ) -> Result<(), DecodeError> {
        backend.finish(output)?;
        scheduler.end_pass()?;
        Ok(())
    }

    fn try_layer(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &mut Scheduler,
        i: usize,
    ) -> Result<(), DecodeError> {
        let layer = self.layers[i];
        backend.mix_route(layer, &mut self.routing)?;
        let n_slots = scheduler.n_slots();
        let mut turn = scheduler.open_layer(layer, &self.routing)?;
        self.look_ahead(backend, Stage::Early, i + 1, turn.listener())?;
        if let Some(observer) = &mut self.observer {
            observer.routed(layer, &self.routing);
        }
        self.show(backend, Stage::Early, i + 1)?;
        if let Some(&next) = self.layers.get(i + 1) {
            turn.listener().announce(next, self.n_experts);
        }
        // One slot stays for what is still to be read, or nothing would come any more.
        let room = if self.schedule == Schedule::OnDemand { n_slots.saturating_sub(1) } else { 0 };
        while self.held.len() < room
            && let Some(ready) = turn.next_ready()?
        {
            self.held.push(ready);
        }
        backend.run_shared(layer)?;
        for Ready { key, lease, parts } in self.held.drain(..) {
            let uses = self.routing.uses(key.expert);
            backend.run_expert(ExpertJob { layer, weights: lease, parts, uses })?;
        }
        while let Some(Ready { key, lease, parts }) = turn.next_ready()? {
            let uses = self.routing.uses(key.expert);
            backend.run_expert(ExpertJob { layer, weights: lease, parts, uses })?;
        }
        drop(turn);
        backend.close_layer(layer)?;
        self.look_ahead(backend, Stage::Closed, i + 1, scheduler.listener())?;
        self.show(backend, Stage::Closed, i + 1)
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
            let wants_scores = to.wants_scores();
            if wants_scores {
                backend.scores(stage, layer, &mut self.scores)?;
            }
            // What an observer was shown before says nothing of this layer.
            let probabilities: &[f32] = if wants_scores { &self.scores.probabilities } else { &[] };
            let n_experts = self.n_experts;
            to.offer(GuessInput { view, layer, n_experts, probabilities });
        }
        Ok(())
    }

    /// Tells the observer what the routers of the layers from the `first` on say at `stage`.
    fn show(&mut self, backend: &mut dyn Backend, stage: Stage, first: usize) -> Result<(), DecodeError> {
        let Self { layers, n_experts, scores, observer: Some(observer), .. } = self else { return Ok(()) };
        for (&layer, ahead) in layers.iter().skip(first).zip(1..) {
            let view = View { stage, ahead };
            if !observer.asks(view) {
                break;
            }
            backend.scores(stage, layer, scores)?;
            let probabilities = &scores.probabilities;
            observer.told(&GuessInput { view, layer, n_experts: *n_experts, probabilities });
        }
        Ok(())
    }
}

impl fmt::Debug for StepLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_layers = self.layers.len();
        f.debug_struct("StepLoop").field("n_layers", &n_layers).finish_non_exhaustive()
    }
}
