//! An expert store of times: reads take as long as a disk would, and bring no bytes.
//!
//! At most `depth` reads are on the wire. Each waits for the disk's latency, then shares the rate evenly with the
//! others that are being transferred. When one is over the oldest demand follows, or the oldest guess if there is none.
//! What has happened by now is worked out when somebody asks, so nothing here needs a thread.

use std::collections::VecDeque;

use forerun_arena::WriteLease;
use forerun_model::{Clock as _, ExpertKey, LayerId, Nanos, PartOffsets};
use forerun_storage::{
    ExpertStore, Fetched, Filled, Priority, Refused, RefusedReason, StoreError, StoreStats, Withdrawn,
};

use crate::{Disk, VirtualClock};

/// Experts that are taken on at once, those on the wire among them.
pub(super) const TAKEN_MAX: usize = 64;

/// What a store reads, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) n_layers: usize,
    pub(super) n_experts: usize,
    /// Bytes of one expert.
    pub(super) record_bytes: u64,
    /// Neighbours that one read may bring.
    pub(super) merged_max: usize,
}

/// One read: an expert, or neighbours of one layer, ascending.
struct Request {
    wishes: Vec<(ExpertKey, WriteLease)>,
}

struct OnWire {
    request: Request,
    begins_at: Nanos,
    /// What is left of the transfer: nanoseconds at the full rate.
    left_ns: f64,
}

pub(super) struct TimedStore {
    disk: Disk,
    layout: Layout,
    clock: VirtualClock,
    /// Up to when everything has been worked out.
    at: Nanos,
    /// Begun, not started.
    batch: Vec<(ExpertKey, WriteLease, Priority)>,
    demands: VecDeque<Request>,
    guesses: VecDeque<Request>,
    on_wire: Vec<OnWire>,
    arrived: Vec<Request>,
    n_taken: usize,
    stats: StoreStats,
}

impl TimedStore {
    pub(super) fn new(disk: Disk, layout: Layout, clock: VirtualClock) -> Self {
        Self {
            disk,
            layout,
            at: clock.now(),
            clock,
            batch: Vec::new(),
            demands: VecDeque::new(),
            guesses: VecDeque::new(),
            on_wire: Vec::new(),
            arrived: Vec::new(),
            n_taken: 0,
            stats: StoreStats::default(),
        }
    }

    /// Works out what has happened by now.
    fn catch_up(&mut self) {
        let now = self.clock.now();
        while self.event(now) {}
    }

    /// Goes on to the next event by `until`, or to `until` if there is none; says whether there was one.
    fn event(&mut self, until: Nanos) -> bool {
        self.fill_wire();
        let at = self.at;
        let n_moving = self.on_wire.iter().filter(|read| read.begins_at <= at).count();
        let sharers = f64::from(u32::try_from(n_moving).unwrap_or(u32::MAX));
        let due = |read: &OnWire| match read.begins_at {
            begins_at if begins_at > at => begins_at,
            _ => at + whole_nanos(read.left_ns * sharers),
        };
        let next = self.on_wire.iter().map(due).min().filter(|&next| next <= until);
        let Some(to) = next.or_else(|| (until != Nanos::MAX).then_some(until)) else { return false };
        let share_ns = span_ns(to - at) / sharers;
        for read in self.on_wire.iter_mut().filter(|read| read.begins_at <= at) {
            read.left_ns -= share_ns;
        }
        self.at = at.max(to);
        let over = |read: &mut OnWire| read.begins_at <= at && read.left_ns < ROUNDING_NS;
        for read in self.on_wire.extract_if(.., over) {
            self.stats.n_reads += 1;
            self.stats.n_merged += u64::from(read.request.wishes.len() > 1);
            self.stats.read_bytes += self.layout.record_bytes * read.request.wishes.len() as u64;
            self.arrived.push(read.request);
        }
        self.fill_wire();
        next.is_some()
    }

    fn fill_wire(&mut self) {
        while self.on_wire.len() < self.disk.depth.max(1)
            && let Some(request) = self.demands.pop_front().or_else(|| self.guesses.pop_front())
        {
            let bytes = self.layout.record_bytes * request.wishes.len() as u64;
            let left_ns = span_ns(self.disk.transfer(bytes));
            self.on_wire.push(OnWire { request, begins_at: self.at + self.disk.latency, left_ns });
        }
    }

    fn deliver(&mut self, done: &mut Vec<Fetched>) {
        for (key, lease) in self.arrived.drain(..).flat_map(|request| request.wishes) {
            self.n_taken -= 1;
            let filled = Filled {
                lease: lease.seal(),
                parts: PartOffsets::default(),
                read_bytes: self.layout.record_bytes,
            };
            done.push(Fetched { key, result: Ok(filled) });
        }
    }

    /// Adds `wish` to the last request if one read can bring both.
    fn queue(&mut self, (key, lease, priority): (ExpertKey, WriteLease, Priority), is_first: bool) {
        let queue = match priority {
            Priority::Demand => &mut self.demands,
            Priority::Guess => &mut self.guesses,
        };
        let merged_max = self.layout.merged_max;
        let fits = |request: &&mut Request| {
            let next = request.wishes.last().map(|(last, _)| (last.layer, last.expert.0 + 1));
            request.wishes.len() < merged_max && next == Some((key.layer, key.expert.0))
        };
        match queue.back_mut().filter(|_| !is_first).filter(fits) {
            Some(request) => request.wishes.push((key, lease)),
            None => queue.push_back(Request { wishes: vec![(key, lease)] }),
        }
    }
}

/// Less is nothing: sums of shares miss whole nanoseconds by far less.
const ROUNDING_NS: f64 = 1e-3;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
fn whole_nanos(ns: f64) -> Nanos {
    Nanos((ns - ROUNDING_NS).ceil().max(0.0) as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a span of 2^53 nanoseconds is a hundred days")]
fn span_ns(span: Nanos) -> f64 {
    span.0 as f64
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every store")]
impl ExpertStore for TimedStore {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused> {
        let Layout { n_layers, n_experts, .. } = self.layout;
        if key.layer.idx() >= n_layers || key.expert.idx() >= n_experts {
            let reason = RefusedReason::Never(StoreError::UnknownExpert { key, n_layers, n_experts });
            return Err(Refused { lease: slot, reason });
        }
        if self.n_taken >= TAKEN_MAX {
            return Err(Refused { lease: slot, reason: RefusedReason::QueueFull });
        }
        self.n_taken += 1;
        self.batch.push((key, slot, priority));
        Ok(())
    }

    fn start(&mut self) {
        self.catch_up();
        let mut batch = std::mem::take(&mut self.batch);
        batch.sort_by_key(|&(key, _, priority)| (priority, key));
        let mut last = None;
        for wish in batch.drain(..) {
            let priority = wish.2;
            self.queue(wish, last != Some(priority));
            last = Some(priority);
        }
        self.batch = batch;
        self.fill_wire();
    }

    fn promote(&mut self, key: ExpertKey) {
        self.catch_up();
        for wish in self.batch.iter_mut().filter(|wish| wish.0 == key) {
            wish.2 = Priority::Demand;
        }
        let has = |request: &Request| request.wishes.iter().any(|wish| wish.0 == key);
        let at = self.guesses.iter().position(has);
        self.demands.extend(at.and_then(|at| self.guesses.remove(at)));
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        self.catch_up();
        let is_of = |key: ExpertKey| layer.is_none_or(|layer| key.layer == layer);
        let before = withdrawn.len();
        let batch = self.batch.extract_if(.., |wish| wish.2 == Priority::Guess && is_of(wish.0));
        withdrawn.extend(batch.map(|(key, lease, _)| Withdrawn { key, lease, read_bytes: 0 }));
        for request in std::mem::take(&mut self.guesses) {
            if is_of(request.wishes[0].0) {
                let wishes = request.wishes.into_iter();
                withdrawn.extend(wishes.map(|(key, lease)| Withdrawn { key, lease, read_bytes: 0 }));
            } else {
                self.guesses.push_back(request);
            }
        }
        let n_withdrawn = withdrawn.len() - before;
        self.n_taken -= n_withdrawn;
        self.stats.n_withdrawn += n_withdrawn as u64;
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        self.start();
        while self.arrived.is_empty() && self.n_taken > 0 && self.at < until && self.event(until) {}
        self.clock.advance_to(self.at);
        self.deliver(done);
    }

    fn lend(&mut self, _key: ExpertKey) -> Option<forerun_storage::Lent> {
        None
    }

    fn can_lend(&self, _key: ExpertKey) -> bool {
        false
    }

    fn check_lent(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn stop_lending(&mut self) {}

    fn stats(&self) -> StoreStats {
        self.stats
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
