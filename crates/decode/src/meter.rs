//! Counts from one moment to another, for the figures of whatever ran between them.

use forerun_model::Nanos;
use forerun_scheduler::SchedulerStats;
use forerun_storage::StoreStats;

use crate::engine::Engine;
use crate::telemetry::{Memory, Process, Telemetry};

/// The engine's counts at the moment when something began.
#[derive(Debug)]
pub(crate) struct Meter {
    scheduler: SchedulerStats,
    store: StoreStats,
    /// The scheduler's counts before the decode step under way.
    step: SchedulerStats,
    /// Time that decode steps waited.
    decode_stall: Nanos,
    /// Time that decode steps spent on asking routers ahead of their turn.
    decode_asking: Nanos,
    /// Bytes of experts that decode steps used.
    decode_bytes: u64,
    /// Bytes of experts that decode steps read.
    decode_read_bytes: u64,
}

/// What was done since, as its driver knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Tokens of prompts.
    pub(crate) prompt_tokens: usize,
    /// Those of them that were held already.
    pub(crate) reused_tokens: usize,
    /// Time to read the others.
    pub(crate) prompt_time: Nanos,
    /// Tokens generated.
    pub(crate) decode_tokens: usize,
    /// Those that were read in steps.
    pub(crate) tokens_read: usize,
    /// Decode steps.
    pub(crate) decode_steps: usize,
    /// Tokens that were drafted and verified.
    pub(crate) draft_tokens: usize,
    /// Those that were accepted.
    pub(crate) accepted_tokens: usize,
    /// Time spent on drafting, a part of `decode_time`.
    pub(crate) draft_time: Nanos,
    /// Time of these steps and of drafting.
    pub(crate) decode_time: Nanos,
}

impl Meter {
    /// Begins to count.
    pub(crate) fn start(engine: &Engine) -> Self {
        let scheduler = engine.scheduler_stats();
        let store = engine.store_stats();
        Self {
            scheduler,
            store,
            step: scheduler,
            decode_stall: Nanos(0),
            decode_asking: Nanos(0),
            decode_bytes: 0,
            decode_read_bytes: 0,
        }
    }

    /// A decode step begins, with the drafting before it.
    pub(crate) fn step_begins(&mut self, engine: &Engine) {
        self.step = engine.scheduler_stats();
    }

    /// It is over.
    pub(crate) fn step_ends(&mut self, engine: &Engine) {
        let step = engine.scheduler_stats().since(&self.step);
        self.decode_stall = self.decode_stall + step.stall;
        self.decode_asking = self.decode_asking + step.asking;
        self.decode_bytes += step.useful_bytes();
        self.decode_read_bytes += step.bytes_demand + step.bytes_guess;
    }

    /// See [`Telemetry::overlap_efficiency`].
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
    fn overlap_efficiency(&self, rate: Option<u64>, decode_ms: f64) -> Option<f64> {
        let compute_ms = decode_ms - (self.decode_stall + self.decode_asking).as_millis_f64();
        let read_ms = self.decode_bytes as f64 * 1e3 / rate? as f64;
        (decode_ms > 0.0).then(|| (compute_ms.max(read_ms) / decode_ms).min(1.0))
    }

    /// Figures of `work`, which is all that `engine` did since.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
    pub(crate) fn telemetry(&self, engine: &Engine, work: &Work) -> Telemetry {
        let scheduler = engine.scheduler_stats().since(&self.scheduler);
        let (store, disk) = (engine.store_stats(), engine.disk());
        let decode_ms = work.decode_time.as_millis_f64();
        let loop_ms = work.prompt_time.as_millis_f64() + decode_ms;
        let stall_ms = scheduler.stall.as_millis_f64();
        let process = Process::read();
        Telemetry {
            prompt_tokens: work.prompt_tokens,
            prompt_ms: work.prompt_time.as_millis_f64(),
            prompt_reused_tokens: work.reused_tokens,
            decode_tokens: work.decode_tokens,
            decode_ms,
            tokens_per_step: work.tokens_read as f64 / work.decode_steps.max(1) as f64,
            draft_tokens: work.draft_tokens,
            accepted_tokens: work.accepted_tokens,
            draft_ms: work.draft_time.as_millis_f64(),
            tokens_per_second: if decode_ms > 0.0 { work.tokens_read as f64 * 1e3 / decode_ms } else { 0.0 },
            bytes_demand: scheduler.bytes_demand,
            bytes_guess: scheduler.bytes_guess,
            bytes_wasted: scheduler.bytes_wasted,
            bytes_decode: self.decode_read_bytes,
            bytes_decode_used: self.decode_bytes,
            reads: store.n_reads - self.store.n_reads,
            merged_reads: store.n_merged - self.store.n_merged,
            disk_limit: disk.limit,
            disk_rate: disk.probed,
            experts_again: scheduler.again,
            hit_rate: scheduler.hit_rate(),
            lent: scheduler.lent,
            guess_recall: scheduler.guess_recall(),
            guess_precision: scheduler.guess_precision(),
            guess_ms: scheduler.asking.as_millis_f64(),
            overlap_efficiency: self.overlap_efficiency(disk.rate(), decode_ms),
            stall_ms,
            compute_ms: (loop_ms - stall_ms).max(0.0),
            memory: Memory::of(engine.plan(), process),
            swap_bytes: process.map(|process| process.swap_bytes),
            decisions: engine.decisions(),
        }
    }
}
