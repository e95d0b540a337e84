//! A machine that was built, and the loop that runs it.

use forerun_compute::{Backend, ExpertJob, Part, Row, Scores, Step, StepOutput};
use forerun_model::{LayerId, Nanos, Position, Routing, Stage};
use forerun_scheduler::{GuessInput, Listener, Ready, Scheduler, View};
use forerun_storage::Catalog;

use super::Machine;
use crate::{Checker, FlashHandle, Rng, RunError, VirtualClock, Workload};

/// A machine that was built. Its scheduler can be taken out for another loop than [`Rig::run`].
#[derive(Debug)]
pub struct Rig {
    /// The real scheduler over the real store.
    pub scheduler: Scheduler,
    /// The flash inside that store.
    pub flash: FlashHandle,
    /// The time of both.
    pub clock: VirtualClock,
    checker: Checker,
    compute: Nanos,
    asker: Asker,
    n_layers: u16,
    n_experts: usize,
}

/// How far a workload has come, and what came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps that are done.
    pub n_steps: usize,
    /// Tokens that were accepted.
    pub past: usize,
    /// The bits of all logits, in order.
    pub logits_bits: Vec<u32>,
}

impl Rig {
    pub(super) fn new(
        machine: &Machine,
        catalog: &Catalog,
        scheduler: Scheduler,
        flash: FlashHandle,
        clock: VirtualClock,
    ) -> Self {
        let n_layers = u16::try_from(catalog.n_layers()).unwrap_or(u16::MAX);
        Self {
            scheduler,
            flash,
            checker: Checker::new(machine.n_kept),
            compute: machine.compute,
            asker: Asker::new(machine, n_layers, clock.clone()),
            clock,
            n_layers,
            n_experts: catalog.n_experts(),
        }
    }

    /// Times that a router was asked ahead of its turn.
    pub fn n_asked(&self) -> u64 {
        self.asker.n_asked
    }

    /// Runs the steps of `workload` that `progress` hasn't done. After an error the same call goes on with the step
    /// that failed.
    ///
    /// # Errors
    /// [`RunError`] of the first step that can't be finished.
    ///
    /// # Panics
    /// When the scheduler or the backend does something that must never happen.
    pub fn run(
        &mut self,
        backend: &mut dyn Backend,
        workload: &Workload,
        progress: &mut Progress,
    ) -> Result<(), RunError> {
        let mut output = StepOutput::default();
        for work in &workload.steps[progress.n_steps..] {
            let row =
                |(token, position)| Row { token, position: Position::text(position), wants_logits: true };
            let first = u32::try_from(progress.past).unwrap_or(u32::MAX);
            let rows: Vec<Row> = work.tokens.iter().copied().zip(first..).map(row).collect();
            let may_reject = work.n_accepted < rows.len();
            let part = Part { past: progress.past, n_rows: rows.len(), may_reject, ..Part::default() };
            self.step(backend, &Step::of(&part, &rows), &mut output)?;
            backend.accept(0, work.n_accepted)?;
            progress.n_steps += 1;
            progress.past += work.n_accepted;
            progress.logits_bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        }
        Ok(())
    }

    /// One pass through all layers.
    ///
    /// # Errors
    /// [`RunError`] when an expert can't be had or the backend refuses.
    ///
    /// # Panics
    /// When the scheduler or the backend does something that must never happen.
    pub fn step(
        &mut self,
        backend: &mut dyn Backend,
        step: &Step<'_>,
        output: &mut StepOutput,
    ) -> Result<(), RunError> {
        let mut routing = Routing::default();
        backend.begin(step)?;
        self.scheduler.begin_pass(step.rows.len());
        self.asker.look_ahead(backend, Stage::Begin, 0, self.scheduler.listener())?;
        for layer in (0..self.n_layers).map(LayerId) {
            self.layer(backend, layer, &mut routing)?;
        }
        self.checker.let_all_go();
        self.scheduler.end_pass()?;
        Ok(backend.finish(output)?)
    }

    fn layer(
        &mut self,
        backend: &mut dyn Backend,
        layer: LayerId,
        routing: &mut Routing,
    ) -> Result<(), RunError> {
        backend.mix_route(layer, routing)?;
        self.checker.opening(layer, routing);
        let mut turn = self.scheduler.open_layer(layer, routing)?;
        self.asker.look_ahead(backend, Stage::Early, layer.0 + 1, turn.listener())?;
        if layer.0 + 1 < self.n_layers {
            turn.listener().announce(LayerId(layer.0 + 1), self.n_experts);
        }
        backend.run_shared(layer)?;
        while let Some(ready) = turn.next_ready()? {
            self.checker.handed_out(&ready);
            let Ready { key, lease, parts } = ready;
            backend.run_expert(ExpertJob { layer, weights: lease, parts, uses: routing.uses(key.expert) })?;
            self.clock.advance(self.compute);
        }
        drop(turn);
        self.checker.turn_over(&self.scheduler);
        backend.close_layer(layer)?;
        self.asker.look_ahead(backend, Stage::Closed, layer.0 + 1, self.scheduler.listener())?;
        self.checker.check(&self.scheduler);
        Ok(())
    }
}

/// Asks routers ahead of their turn, as decoding does.
#[derive(Debug)]
struct Asker {
    clock: VirtualClock,
    /// How long it takes.
    asking: Nanos,
    /// Decides which scores mislead.
    rng: Rng,
    misled_permille: u32,
    scores: Scores,
    n_layers: u16,
    n_asked: u64,
}

impl Asker {
    fn new(machine: &Machine, n_layers: u16, clock: VirtualClock) -> Self {
        let Machine { seed, asking, misled_permille, .. } = *machine;
        Self {
            clock,
            asking,
            rng: Rng::new(seed),
            misled_permille,
            scores: Scores::default(),
            n_layers,
            n_asked: 0,
        }
    }

    /// Offers what the routers of the layers from `first` on say at `stage`, as far as anybody listens.
    fn look_ahead(
        &mut self,
        backend: &mut dyn Backend,
        stage: Stage,
        first: u16,
        mut to: Listener<'_>,
    ) -> Result<(), RunError> {
        for (layer, ahead) in (first..self.n_layers).map(LayerId).zip(1..) {
            let view = View { stage, ahead };
            if !to.listens(view, layer) {
                break;
            }
            // A predictor that wants no scores is told how many experts there are all the same.
            backend.scores(stage, layer, &mut self.scores)?;
            let Scores { n_experts, probabilities, .. } = &mut self.scores;
            if to.wants_scores() {
                self.clock.advance(self.asking);
                self.n_asked += 1;
            }
            if self.rng.happens(self.misled_permille) {
                probabilities.chunks_mut((*n_experts).max(1)).for_each(|row| row.rotate_right(1));
            }
            to.offer(GuessInput { view, layer, n_experts: *n_experts, probabilities });
        }
        Ok(())
    }
}
