//! A store with one wire: what is on it is read to its end, then the oldest demand, then the oldest guess. It completes
//! something only while somebody sleeps, and writes down what happens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forerun_arena::{Arena, WriteLease};
use forerun_model::{Clock, ExpertKey, LayerId, Nanos, PartOffsets};
use forerun_scheduler::{LookaheadConfig, PolicyName, Predictor, Scheduler, SchedulerConfig};
use forerun_storage::{
    ExpertStore, Fetched, Filled, Priority, Refused, RefusedReason, StoreStats, Withdrawn,
};

use crate::support::{RECORD_BYTES, pattern};

/// What happened in a [`Wire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Demand(ExpertKey),
    Guess(ExpertKey),
    Promoted(ExpertKey),
    Withdrawn(ExpertKey),
    Done(ExpertKey),
}

/// The events of a [`Wire`], for the test that made it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    fn push(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    /// The events since this was asked last.
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// The experts that were begun on demand since anything was taken.
    pub(crate) fn take_demands(&self) -> Vec<ExpertKey> {
        let demand = |event| if let Event::Demand(key) = event { Some(key) } else { None };
        self.take().into_iter().filter_map(demand).collect()
    }
}

/// A clock that stands still until somebody moves it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hand(Arc<AtomicU64>);

impl Hand {
    pub(crate) fn advance(&self, span: Nanos) {
        self.0.fetch_add(span.0, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) struct Wire {
    depth: usize,
    log: Log,
    clock: Hand,
    /// The first is on the wire.
    reads: Vec<(ExpertKey, WriteLease, Priority)>,
    stats: StoreStats,
}

/// Time of one read.
pub(crate) const READ: Nanos = Nanos::from_millis(1);

impl Wire {
    fn next(&mut self) {
        // `min_by_key` finds the first of equals.
        if let Some(next) = (0..self.reads.len()).min_by_key(|&i| self.reads[i].2) {
            let read = self.reads.remove(next);
            self.reads.insert(0, read);
        }
    }
}

impl ExpertStore for Wire {
    fn begin(&mut self, key: ExpertKey, lease: WriteLease, priority: Priority) -> Result<(), Refused> {
        assert!(self.reads.iter().all(|read| read.0 != key), "{key} is in flight");
        if self.reads.len() == self.depth {
            return Err(Refused { lease, reason: RefusedReason::QueueFull });
        }
        self.log.push(match priority {
            Priority::Demand => Event::Demand(key),
            Priority::Guess => Event::Guess(key),
        });
        self.reads.push((key, lease, priority));
        Ok(())
    }

    fn start(&mut self) {}

    fn promote(&mut self, key: ExpertKey) {
        self.log.push(Event::Promoted(key));
        self.reads.iter_mut().filter(|read| read.0 == key).for_each(|read| read.2 = Priority::Demand);
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        for i in (1..self.reads.len()).rev() {
            let (key, _, priority) = self.reads[i];
            if priority == Priority::Guess && layer.is_none_or(|layer| layer == key.layer) {
                self.log.push(Event::Withdrawn(key));
                let lease = self.reads.remove(i).1;
                withdrawn.push(Withdrawn { key, lease, read_bytes: 0 });
            }
        }
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        if until < Nanos::MAX || self.reads.is_empty() {
            return;
        }
        self.clock.advance(READ);
        let (key, mut lease, _) = self.reads.remove(0);
        self.next();
        lease.bytes_mut().fill(pattern(key));
        self.stats.n_reads += 1;
        self.stats.read_bytes += RECORD_BYTES;
        self.log.push(Event::Done(key));
        let filled = Filled { lease: lease.seal(), parts: PartOffsets::default(), read_bytes: RECORD_BYTES };
        done.push(Fetched { key, result: Ok(filled) });
    }

    fn stats(&self) -> StoreStats {
        self.stats
    }
}

/// A scheduler over a [`Wire`] that takes `depth` reads.
pub(crate) fn wired(
    (n_slots, depth): (usize, usize),
    predictor: Box<dyn Predictor>,
    policy: PolicyName,
    lookahead: LookaheadConfig,
) -> (Scheduler, Log, Hand) {
    let (log, clock) = (Log::default(), Hand::default());
    let store = Wire {
        depth,
        log: log.clone(),
        clock: clock.clone(),
        reads: Vec::new(),
        stats: StoreStats::default(),
    };
    let config = SchedulerConfig {
        arena: Arena::new(n_slots, 64).unwrap(),
        store: Box::new(store),
        predictor,
        policy: policy.into(),
        lookahead,
        clock: Arc::new(clock.clone()),
    };
    (Scheduler::new(config).unwrap(), log, clock)
}
