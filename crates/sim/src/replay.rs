//! How long a recorded trace takes: the real scheduler over a virtual clock, a modelled disk and a modelled computer.
//!
//! A [`Replay`] walks through the layers as decoding does, call by call; only the arithmetic is replaced by time that
//! passes. The computer and the disk don't slow each other down, and nothing is spent on the scheduler itself, so a
//! replay says what a perfect engine would get out of a schedule: good for comparing schedules, and an upper bound
//! for a machine.

mod compute;
mod report;
mod speculation;
mod store;
mod stretch;
mod walk;

use std::sync::Arc;

use forerun_arena::Arena;
use forerun_model::{Clock as _, Nanos};
use forerun_scheduler::{
    LookaheadConfig, N_SLOTS_MIN, NoPredictor, PolicyName, Predictor, RouterAhead, Scheduler, SchedulerConfig,
};

pub use compute::{Compute, Shares};
pub use report::ReplayReport;
pub use speculation::{Acceptance, Confidence, Lengths, Speculation, SpeculationReport};

use self::store::{Layout, TimedStore};
use self::walk::Walk;
use crate::{Disk, Oracle, RunError, Trace, VirtualClock};

/// What a router that is asked ahead of its turn says. Probabilities fall with the rank; where nothing was recorded,
/// nothing is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// What it said when the trace was recorded.
    #[default]
    Recorded,
    /// What it will say in its turn, for the next layer.
    Truth,
}

/// A machine and how it is used; the routing comes from a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Layers of the model. If they are others than the trace's, its layers from the third on are repeated, each
    /// time at other tokens, or left out.
    pub n_layers: usize,
    /// Slots of all layers together; raised to the fewest that a scheduler works with.
    pub n_slots: usize,
    /// What is kept.
    pub policy: PolicyName,
    /// Which guesses are read.
    pub lookahead: LookaheadConfig,
    /// Bytes of one expert.
    pub record_bytes: u64,
    /// Neighbouring experts that one read may bring; 1 merges nothing.
    pub merged_max: usize,
    /// Guesses are read in pieces of so many bytes at most; `None`: whole.
    pub bite_bytes: Option<u64>,
    /// Where experts come from.
    pub disk: Disk,
    /// How fast they are used.
    pub compute: Compute,
    /// What routers say ahead of their turn.
    pub told: Told,
    /// Tokens that fill the slots and aren't counted.
    pub n_warm: usize,
    /// Tokens that are counted, from the trace's beginning over again when it ends.
    pub n_tokens: usize,
}

impl Replay {
    /// All of `trace`, the first eighth of it uncounted, on `disk` and `compute`, with `n_slots` slots of
    /// `record_bytes`.
    pub fn of(trace: &Trace, n_slots: usize, record_bytes: u64, disk: Disk, compute: Compute) -> Self {
        let n_warm = trace.n_tokens / 8;
        Self {
            n_layers: trace.n_layers,
            n_slots,
            policy: PolicyName::default(),
            lookahead: LookaheadConfig::default(),
            record_bytes,
            merged_max: 1,
            bite_bytes: disk.bite_bytes(record_bytes),
            disk,
            compute,
            told: Told::Recorded,
            n_warm,
            n_tokens: trace.n_tokens - n_warm,
        }
    }

    /// Runs `trace` with `predictor`.
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be had.
    pub fn run(&self, trace: &Trace, predictor: Box<dyn Predictor>) -> Result<ReplayReport, RunError> {
        let clock = VirtualClock::new();
        let mut scheduler = self.scheduler(trace, predictor, &clock)?;
        let mut walk = Walk::new(self, trace, &clock);
        for token in 0..self.n_warm {
            walk.pass(&mut scheduler, &[token])?;
        }
        let (started, before, asked) = (clock.now(), scheduler.stats(), walk.asked);
        for token in self.n_warm..self.n_warm + self.n_tokens {
            walk.pass(&mut scheduler, &[token])?;
        }
        Ok(ReplayReport {
            n_tokens: self.n_tokens,
            time: clock.now() - started,
            compute: Nanos(walk.token_alone().0.saturating_mul(self.n_tokens as u64)),
            asked: walk.asked - asked,
            stats: scheduler.stats().since(&before),
            disk_bytes_per_second: self.disk.bytes_per_second,
        })
    }

    /// Runs `trace` with nobody guessing.
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be had.
    pub fn on_demand(&self, trace: &Trace) -> Result<ReplayReport, RunError> {
        self.run(trace, Box::new(NoPredictor))
    }

    /// Runs `trace` with the routers of the layers to come guessing.
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be had.
    pub fn router_ahead(&self, trace: &Trace) -> Result<ReplayReport, RunError> {
        self.run(trace, Box::new(RouterAhead::default()))
    }

    /// Runs `trace` with a predictor that always knows the next layer's experts, and nothing of the one behind it: what
    /// looking one layer ahead can bring at most.
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be had.
    pub fn oracle(&self, trace: &Trace) -> Result<ReplayReport, RunError> {
        Self { told: Told::Truth, lookahead: LookaheadConfig::open(), ..*self }.run(trace, Box::new(Oracle))
    }

    /// How long a guess holds up demands at most: what can be on the wire of it.
    fn hold(&self) -> Option<Nanos> {
        let bite = self.disk.alone(self.bite_bytes?);
        Some(Nanos(bite.0 * self.disk.depth as u64))
    }

    fn scheduler(
        &self,
        trace: &Trace,
        predictor: Box<dyn Predictor>,
        clock: &VirtualClock,
    ) -> Result<Scheduler, RunError> {
        let layout = Layout {
            n_layers: self.n_layers,
            n_experts: trace.n_experts,
            record_bytes: self.record_bytes,
            merged_max: self.merged_max,
            bite_bytes: self.bite_bytes,
        };
        Ok(Scheduler::new(SchedulerConfig {
            // Nobody touches the bytes, so they are never there.
            arena: Arena::new(self.n_slots.max(N_SLOTS_MIN), 1)?,
            store: Box::new(TimedStore::new(self.disk, layout, clock.clone())),
            predictor,
            policy: self.policy.into(),
            lookahead: LookaheadConfig {
                hold: self.lookahead.hold.or_else(|| self.hold()),
                ..self.lookahead
            },
            clock: Arc::new(clock.clone()),
        })?)
    }
}

#[cfg(test)]
mod tests;
