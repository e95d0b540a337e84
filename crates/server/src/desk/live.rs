//! What those see who watch the machine at work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forerun_decode::{Decision, Engine, ExpertState, Process, SchedulerStats, UseMap};
use serde::Serialize;

use super::queue::Shared;
use super::worker::Progress;

/// Time from one look to the next while something runs.
const EVERY: Duration = Duration::from_millis(250);

/// What the machine does at a moment; rates are those since the look before.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Tick {
    /// Milliseconds since the server started.
    ms: u64,
    /// A string for each layer with a digit for each expert: 0 on disk, 1 in memory, 2 being read, 3 used by the last step.
    experts: Vec<String>,
    hit_rate: Option<f64>,
    bytes_per_second: f64,
    stall_share: Option<f64>,
    tokens_per_second: Option<f64>,
    prompt_tokens_per_second: Option<f64>,
    active: Vec<Answering>,
    peak: Option<u64>,
    decisions: Vec<Decision>,
}

/// A job that has a seat.
#[derive(Clone, Debug, Serialize)]
struct Answering {
    id: u64,
    phase: &'static str,
    read: usize,
    of: usize,
    made: usize,
}

/// Looks at the machine now and then.
pub(super) struct Watch {
    uses: UseMap,
    started: Instant,
    /// The last look: when, with the counts then, and the tokens that jobs had read and made.
    last: Option<(Instant, SchedulerStats, u64, u64)>,
    states: Vec<ExpertState>,
}

impl Watch {
    pub(super) fn new(uses: UseMap) -> Self {
        Self { uses, started: Instant::now(), last: None, states: Vec::new() }
    }

    /// Whether the last look is long enough ago.
    pub(super) fn is_due(&self) -> bool {
        self.last.is_none_or(|(at, ..)| at.elapsed() >= EVERY)
    }

    /// Looks; `read` and `made` are the tokens of prompts and of answers so far.
    pub(super) fn tick(
        &mut self,
        engine: &Engine,
        jobs: impl Iterator<Item = (u64, Progress)>,
        (read, made): (u64, u64),
    ) -> Tick {
        let (now, counts) = (Instant::now(), engine.scheduler_stats());
        let mut tick = Tick {
            ms: whole_ms(now - self.started),
            experts: self.experts(engine),
            active: jobs.map(Answering::of).collect(),
            peak: Process::read().map(|process| process.peak_bytes.saturating_sub(process.program_bytes)),
            decisions: engine.decisions(),
            ..Tick::default()
        };
        if let Some((then, before, read_before, made_before)) = self.last {
            let seconds = (now - then).as_secs_f64().max(1e-3);
            let since = counts.since(&before);
            let per_second = |n: u64, n_before: u64| n.saturating_sub(n_before) as f64 / seconds;
            tick.bytes_per_second = (since.bytes_demand + since.bytes_guess) as f64 / seconds;
            let is_at_work = since.hits + since.misses > 0;
            tick.hit_rate = is_at_work.then(|| since.hit_rate());
            tick.stall_share = is_at_work.then(|| (since.stall.as_millis_f64() / 1e3 / seconds).min(1.0));
            tick.tokens_per_second = is_at_work.then(|| per_second(made, made_before));
            tick.prompt_tokens_per_second = is_at_work.then(|| per_second(read, read_before));
        }
        self.last = Some((now, counts, read, made));
        tick
    }

    /// A string for each layer, a digit for each expert.
    fn experts(&mut self, engine: &Engine) -> Vec<String> {
        engine.expert_states(&self.uses, &mut self.states);
        let digit = |state: &ExpertState| match state {
            ExpertState::Away => '0',
            ExpertState::Resident => '1',
            ExpertState::Reading => '2',
            ExpertState::Used => '3',
        };
        let n_experts = engine.shape().moe.n_experts.max(1);
        self.states.chunks(n_experts).map(|layer| layer.iter().map(digit).collect()).collect()
    }
}

impl Answering {
    fn of((id, progress): (u64, Progress)) -> Self {
        let Progress { read, of, made } = progress;
        Self { id, phase: if read < of { "reading" } else { "answering" }, read, of, made }
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The last look, for whoever watches.
#[derive(Debug, Default)]
pub(super) struct Board {
    n_watching: AtomicUsize,
    last: Mutex<(u64, Option<Arc<Tick>>)>,
}

impl Board {
    pub(super) fn is_watched(&self) -> bool {
        self.n_watching.load(Ordering::Relaxed) > 0
    }

    /// Replaces the last look.
    pub(super) fn show(&self, tick: Tick) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (last.0 + 1, Some(Arc::new(tick)));
    }
}

/// Somebody who watches, as long as it isn't dropped.
pub(crate) struct Watching {
    shared: Arc<Shared>,
}

impl Watching {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.board.n_watching.fetch_add(1, Ordering::Relaxed);
        Self { shared }
    }

    /// The last look and its number; `None` before the engine's thread has begun.
    pub(crate) fn look(&self) -> (u64, Option<Arc<Tick>>) {
        self.shared.board.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Jobs that wait now.
    pub(crate) fn n_queued(&self) -> usize {
        self.shared.status().queued
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shared.board.n_watching.fetch_sub(1, Ordering::Relaxed);
    }
}
