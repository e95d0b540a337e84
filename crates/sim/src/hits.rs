//! A recorded routing through the real scheduler: what a cache policy makes of it, without time.

use std::sync::Arc;

use forerun_arena::{Arena, WriteLease};
use forerun_model::{ExpertKey, LayerId, Nanos, PartOffsets, Routing};
use forerun_scheduler::{Keep, LookaheadConfig, NoPredictor, Scheduler, SchedulerConfig};
use forerun_storage::{ExpertStore, Fetched, Filled, Priority, Refused, StoreStats, Withdrawn};

use crate::{RunError, Trace, VirtualClock};

/// Has every expert at once, without touching the slot: for whoever counts or times the scheduler alone.
#[derive(Debug, Default)]
pub struct AtOnce {
    begun: Vec<(ExpertKey, WriteLease)>,
}

impl ExpertStore for AtOnce {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, _priority: Priority) -> Result<(), Refused> {
        self.begun.push((key, slot));
        Ok(())
    }

    fn start(&mut self) {}

    fn promote(&mut self, _key: ExpertKey) {}

    fn withdraw_guesses(&mut self, _layer: Option<LayerId>, _withdrawn: &mut Vec<Withdrawn>) {}

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Fetched>) {
        done.extend(self.begun.drain(..).map(|(key, lease)| {
            let filled = Filled { lease: lease.seal(), parts: PartOffsets::default(), read_bytes: 1 };
            Fetched { key, result: Ok(filled) }
        }));
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// Share of the uses in all layers of `trace` that hit when `keep` decides over `n_slots` slots, counted from token
/// `from` on: those before fill them. A token's hits are found before its misses push anything out.
///
/// # Errors
/// [`RunError`] when the slots can't be allocated or are too few.
pub fn hits(trace: &Trace, keep: impl Into<Keep>, n_slots: usize, from: usize) -> Result<f64, RunError> {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        arena: Arena::new(n_slots, 1)?,
        store: Box::<AtOnce>::default(),
        predictor: Box::new(NoPredictor),
        policy: keep.into(),
        lookahead: LookaheadConfig::default(),
        clock: Arc::new(VirtualClock::new()),
    })?;
    let (mut routing, mut before) = (Routing::default(), scheduler.stats());
    for token in 0..trace.n_tokens {
        if token == from {
            before = scheduler.stats();
        }
        for layer in trace.layers() {
            trace.routing(token, layer, &mut routing);
            let mut turn = scheduler.open_layer(layer, &routing)?;
            while turn.next_ready()?.is_some() {}
        }
    }
    Ok(scheduler.stats().since(&before).hit_rate())
}
