//! The real store and the real scheduler between simulated flash and any backend.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use forerun_arena::Arena;
use forerun_compute::{Backend, ExpertJob, Row, Scores, SequenceIdx, Step, StepOutput};
use forerun_model::{LayerId, Nanos, Position, Routing, Stage};
use forerun_scheduler::{
    GuessInput, LookaheadConfig, N_SLOTS_MIN, NoPredictor, PolicyName, Predictor, Ready, Scheduler,
    SchedulerConfig, View,
};
use forerun_storage::{Catalog, DataFile, FileSet, FileStore, StoreConfig, Verify};

use crate::{
    Checker, Faults, FlashHandle, FlashProfile, Oracle, RandomPredictor, Rng, RunError, SimFlash,
    VirtualClock, Workload,
};

/// The policies under which experts stay.
const KEEPING: [PolicyName; 3] = [PolicyName::Alike, PolicyName::Lfu, PolicyName::Lru];

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// Everything about a machine that must not change a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Decides orders, faults and guesses.
    pub seed: u64,
    /// Slots of the arena.
    pub n_slots: usize,
    /// What is kept.
    pub policy: PolicyName,
    /// How fast the flash is.
    pub profile: FlashProfile,
    /// What goes wrong.
    pub faults: Faults,
    /// Who guesses.
    pub guessing: Guessing,
    /// Which guesses are read.
    pub lookahead: LookaheadConfig,
    /// How long an expert computes.
    pub compute: Nanos,
    /// Whether reads are compared with checksums.
    pub verify: Verify,
    /// Longest read for a guess, as in [`StoreConfig::bite_bytes`].
    pub bite_bytes: Option<u32>,
    /// Leases that are kept for a while after they were handed out; below `n_slots`.
    pub n_kept: usize,
}

impl Machine {
    /// A machine on which nothing goes wrong and nothing overlaps.
    pub fn calm(n_slots: usize) -> Self {
        Self {
            seed: 0,
            n_slots: n_slots.max(N_SLOTS_MIN),
            policy: PolicyName::default(),
            profile: FlashProfile::calm(),
            faults: Faults::none(),
            guessing: Guessing::None,
            lookahead: LookaheadConfig::open(),
            compute: Nanos(0),
            verify: Verify::default(),
            bite_bytes: None,
            n_kept: 0,
        }
    }

    /// A machine without faults for a model of `n_experts_total` experts; all else is up to the seed.
    pub fn from_seed(seed: u64, n_experts_total: usize) -> Self {
        let mut rng = Rng::new(seed);
        let n_slots = N_SLOTS_MIN + rng.index(n_experts_total.saturating_sub(1));
        let policy = if rng.happens(150) { PolicyName::KeepNone } else { KEEPING[rng.index(KEEPING.len())] };
        let guessing = match rng.below(4) {
            0 => Guessing::None,
            1 => Guessing::Oracle,
            _ => Guessing::Random { n_guesses_max: 1 + rng.index(12) },
        };
        // Small numbers are where it hurts: half of the machines have few slots.
        let n_slots = if rng.happens(500) { n_slots.min(N_SLOTS_MIN + rng.index(8)) } else { n_slots };
        Self {
            seed,
            n_slots,
            policy,
            profile: FlashProfile::random(&mut rng),
            faults: Faults::none(),
            guessing,
            lookahead: if rng.happens(500) { LookaheadConfig::open() } else { LookaheadConfig::default() },
            compute: Nanos::from_micros(rng.below(2_000)),
            verify: Verify::default(),
            n_kept: rng.index(n_slots),
            // From a few of the toy's rows to most of its records.
            bite_bytes: (!rng.happens(250)).then(|| 64 << rng.below(6)),
        }
    }

    /// The same machine with these faults.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The same machine with another number of slots; 0 keeps nothing in the fewest slots that work.
    #[must_use]
    pub fn slots(self, n_slots: usize) -> Self {
        let keeping = if self.policy == PolicyName::KeepNone { PolicyName::default() } else { self.policy };
        let policy = if n_slots == 0 { PolicyName::KeepNone } else { keeping };
        let n_slots = n_slots.max(N_SLOTS_MIN);
        Self { n_slots, policy, n_kept: self.n_kept.min(n_slots - 1), ..self }
    }

    /// The same machine with another predictor.
    #[must_use]
    pub fn guessing(self, guessing: Guessing) -> Self {
        Self { guessing, ..self }
    }

    /// Builds flash, store and scheduler over `files`, in which `catalog` finds the experts.
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be allocated or are too few.
    pub fn rig(&self, catalog: &Arc<Catalog>, files: Vec<Bytes>) -> Result<Rig, RunError> {
        let clock = VirtualClock::new();
        let data = |file: &Bytes| DataFile::from_bytes(Path::new("simulated flash"), file.clone());
        let set = FileSet::new(files.iter().map(data).collect());
        let flash = SimFlash::new(files, self.profile, self.faults, self.seed, clock.clone());
        let handle = flash.handle();
        let predictor: Box<dyn Predictor> = match self.guessing {
            Guessing::None => Box::new(NoPredictor),
            Guessing::Random { n_guesses_max } => Box::new(RandomPredictor::new(self.seed, n_guesses_max)),
            Guessing::Oracle => Box::new(Oracle),
        };
        let Self { verify, bite_bytes, .. } = *self;
        let store = StoreConfig { verify, bite_bytes, ..StoreConfig::default() };
        let scheduler = Scheduler::new(SchedulerConfig {
            arena: Arena::new(self.n_slots, catalog.slot_bytes(self.profile.align_bytes))?,
            store: Box::new(FileStore::with_config(Arc::clone(catalog), set, Box::new(flash), store)),
            predictor,
            policy: self.policy.into(),
            lookahead: self.lookahead,
            clock: Arc::new(clock.clone()),
        })?;
        Ok(Rig {
            scheduler,
            flash: handle,
            clock,
            checker: Checker::new(self.n_kept),
            compute: self.compute,
            n_layers: u16::try_from(catalog.n_layers()).unwrap_or(u16::MAX),
        })
    }
}

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
    n_layers: u16,
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
            let step = Step { sequence: SequenceIdx(0), past: progress.past, rows: &rows, may_reject };
            self.step(backend, &step, &mut output)?;
            backend.accept(work.n_accepted)?;
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
        let (mut routing, mut scores) = (Routing::default(), Scores::default());
        backend.begin(step)?;
        self.scheduler.begin_pass(step.rows.len());
        for layer in (0..self.n_layers).map(LayerId) {
            let next = (layer.0 + 1 < self.n_layers).then_some(LayerId(layer.0 + 1));
            let view = |stage| View { stage, ahead: 1 };
            backend.mix_route(layer, &mut routing)?;
            self.checker.opening(layer, &routing);
            let mut turn = self.scheduler.open_layer(layer, &routing)?;
            if let Some(next) = next {
                backend.scores(Stage::Early, next, &mut scores)?;
                turn.offer(input(view(Stage::Early), &scores));
            }
            backend.run_shared(layer)?;
            while let Some(ready) = turn.next_ready()? {
                self.checker.handed_out(&ready);
                let Ready { key, lease, parts } = ready;
                backend.run_expert(ExpertJob {
                    layer,
                    weights: lease,
                    parts,
                    uses: routing.uses(key.expert),
                })?;
                self.clock.advance(self.compute);
            }
            drop(turn);
            self.checker.turn_over(&self.scheduler);
            backend.close_layer(layer)?;
            if let Some(next) = next {
                backend.scores(Stage::Closed, next, &mut scores)?;
                self.scheduler.offer(input(view(Stage::Closed), &scores));
            }
            self.checker.check(&self.scheduler);
        }
        self.checker.let_all_go();
        Ok(backend.finish(output)?)
    }
}

fn input(view: View, scores: &Scores) -> GuessInput<'_> {
    let Scores { layer, n_experts, probabilities } = scores;
    GuessInput { view, layer: *layer, n_experts: *n_experts, probabilities }
}
