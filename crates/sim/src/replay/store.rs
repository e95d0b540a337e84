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
    /// Guesses are read in pieces of so many bytes at most, and can be given up between two.
    pub(super) bite_bytes: Option<u64>,
}

/// One read: an expert, or neighbours of one layer, ascending.
struct Request {
    wishes: Vec<(ExpertKey, WriteLease)>,
    priority: Priority,
    /// What is left of the transfer beyond the bite on the wire: nanoseconds at the full rate.
    rest_ns: f64,
    /// Nobody wants it any more.
    given_up: bool,
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
            if read.request.rest_ns > ROUNDING_NS && !read.request.given_up {
                let queue = match read.request.priority {
                    Priority::Demand => &mut self.demands,
                    Priority::Guess => &mut self.guesses,
                };
                queue.push_front(read.request);
                continue;
            }
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
            let mut request = request;
            let is_new = request.rest_ns == self.whole_ns(&request);
            let bite = self.layout.bite_bytes.filter(|_| request.priority == Priority::Guess);
            let left_ns =
                request.rest_ns.min(bite.map_or(f64::MAX, |bite| span_ns(self.disk.transfer(bite))));
            request.rest_ns -= left_ns;
            // Where two are on the wire, the next bite's latency passes while the one before is moved.
            let latency = if is_new || self.disk.depth < 2 { self.disk.latency } else { Nanos(0) };
            self.on_wire.push(OnWire { request, begins_at: self.at + latency, left_ns });
        }
    }

    fn deliver(&mut self, done: &mut Vec<Fetched>) {
        for request in std::mem::take(&mut self.arrived) {
            let is_part = request.rest_ns > ROUNDING_NS;
            let read_bytes = self.moved_bytes(&request) / request.wishes.len() as u64;
            for (key, lease) in request.wishes {
                self.n_taken -= 1;
                let result = if is_part {
                    Err(StoreError::GivenUp { key, read_bytes })
                } else {
                    Ok(Filled { lease: lease.seal(), parts: PartOffsets::default(), read_bytes })
                };
                done.push(Fetched { key, result });
            }
        }
    }

    /// How long the whole transfer takes at the full rate.
    fn whole_ns(&self, request: &Request) -> f64 {
        span_ns(self.disk.transfer(self.layout.record_bytes * request.wishes.len() as u64))
    }

    /// Bytes of a request that were moved.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
    #[expect(clippy::cast_precision_loss, reason = "experts are far smaller than 2^52 bytes")]
    fn moved_bytes(&self, request: &Request) -> u64 {
        let bytes = self.layout.record_bytes * request.wishes.len() as u64;
        let left = request.rest_ns / self.whole_ns(request).max(ROUNDING_NS);
        (bytes as f64 * (1.0 - left)).round() as u64
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
            Some(request) => {
                request.wishes.push((key, lease));
                request.rest_ns += span_ns(self.disk.transfer(self.layout.record_bytes));
            }
            None => {
                let rest_ns = span_ns(self.disk.transfer(self.layout.record_bytes));
                let wishes = vec![(key, lease)];
                queue.push_back(Request { wishes, priority, rest_ns, given_up: false });
            }
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
        if let Some(mut request) = at.and_then(|at| self.guesses.remove(at)) {
            request.priority = Priority::Demand;
            self.demands.push_back(request);
        }
        for read in self.on_wire.iter_mut().filter(|read| has(&read.request) && !read.request.given_up) {
            read.request.priority = Priority::Demand;
        }
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        self.catch_up();
        let is_of = |key: ExpertKey| layer.is_none_or(|layer| key.layer == layer);
        let before = withdrawn.len();
        let batch = self.batch.extract_if(.., |wish| wish.2 == Priority::Guess && is_of(wish.0));
        withdrawn.extend(batch.map(|(key, lease, _)| Withdrawn { key, lease, read_bytes: 0 }));
        for request in std::mem::take(&mut self.guesses) {
            if is_of(request.wishes[0].0) {
                let read_bytes = self.moved_bytes(&request) / request.wishes.len() as u64;
                let wishes = request.wishes.into_iter();
                withdrawn.extend(wishes.map(|(key, lease)| Withdrawn { key, lease, read_bytes }));
            } else {
                self.guesses.push_back(request);
            }
        }
        for read in &mut self.on_wire {
            let request = &mut read.request;
            request.given_up |= request.priority == Priority::Guess && is_of(request.wishes[0].0);
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
