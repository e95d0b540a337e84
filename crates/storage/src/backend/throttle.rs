//! Makes any backend as slow as a disk of a given rate, to stand for another device's flash.
//!
//! Reads go to the backend inside at once, but are handed out only when the disk that they stand for would
//! have brought them: it reads one after the other, demands first, at its rate. It needs no thread, since what it does
//! follows from when it is asked.
//!
//! Real time only: what it sleeps is the machine's time, whatever the clock says. A simulation has a disk of its own.

mod disk;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use forerun_model::{Clock, Nanos};

use super::{Completed, Limits, Read, ReadBackend, Tag};
use disk::Disk;

/// Busy systems wake sleepers late, and a caller that is woken late submits late, which no disk would have waited for: its
/// reads begin when they would have, as long as it is no more behind than this. So no stretch of time sees more than
/// this much of the rate too many.
const LAG_MAX: Nanos = Nanos::from_millis(10);

/// Any backend, its reads no faster than a rate.
///
/// The disk that it plays adds no latency of its own, and charges a read that fails or comes back short for all that
/// was asked. A read can be withdrawn while that disk hasn't begun it, unless the backend inside is just at it.
pub struct Throttled<B> {
    inner: B,
    limits: Limits,
    clock: Arc<dyn Clock>,
    disk: Disk,
    /// Reads that the backend inside has.
    n_inside: usize,
    /// Over inside, not yet handed out.
    landed: Vec<Completed>,
    /// How far the caller is behind, since it was woken late.
    lag: Nanos,
    pause: Box<dyn FnMut(Nanos) + Send>,
}

impl<B: ReadBackend> Throttled<B> {
    /// Slows `inner` down to `bytes_per_second`. `clock` is the one that `inner` has, and must pass as the machine's
    /// time does.
    pub fn new(inner: B, bytes_per_second: NonZeroU64, clock: Arc<dyn Clock>) -> Self {
        Self::with_pause(inner, bytes_per_second, clock, Box::new(sleep))
    }

    fn with_pause(
        inner: B,
        bytes_per_second: NonZeroU64,
        clock: Arc<dyn Clock>,
        pause: Box<dyn FnMut(Nanos) + Send>,
    ) -> Self {
        let limits = inner.limits();
        let landed = Vec::with_capacity(limits.depth);
        let disk = Disk::new(bytes_per_second);
        Self { inner, limits, clock, disk, n_inside: 0, landed, lag: Nanos(0), pause }
    }

    /// Takes what is over inside; with `until`, as [`ReadBackend::wait`].
    fn collect(&mut self, until: Nanos) {
        let before = self.landed.len();
        self.inner.wait(until, &mut self.landed);
        self.n_inside -= self.landed.len() - before;
    }

    /// Moves what is due, and over inside, into `done`; says when the last of it was due.
    fn hand_out(&mut self, now: Nanos, done: &mut Vec<Completed>) -> Option<Nanos> {
        let Self { disk, landed, .. } = self;
        disk.take_due(now, |tag| match landed.iter().position(|completed| completed.read.tag == tag) {
            Some(at) => {
                done.push(landed.swap_remove(at));
                true
            }
            None => false,
        })
    }

    /// Sleeps until `until`, or something is over inside.
    fn sleep(&mut self, until: Nanos) {
        if self.n_inside > 0 {
            self.collect(until);
        } else {
            (self.pause)(until - self.clock.now());
        }
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every backend")]
impl<B: ReadBackend> ReadBackend for Throttled<B> {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        if self.disk.n_reads() == self.limits.depth {
            return Err(read);
        }
        let (tag, priority, len_bytes) = (read.tag, read.priority, read.len_bytes());
        // Before the backend inside gets it, since some read as it is submitted.
        let now = self.clock.now() - self.lag;
        self.inner.submit(read)?;
        self.n_inside += 1;
        self.disk.submit(now, tag, priority, len_bytes);
        Ok(())
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        self.disk.advance(self.clock.now());
        if !self.disk.is_waiting(tag) {
            return None;
        }
        let read = self.inner.withdraw(tag);
        self.n_inside -= usize::from(read.is_some());
        let read = read.or_else(|| {
            self.collect(Nanos(0));
            let at = self.landed.iter().position(|completed| completed.read.tag == tag)?;
            Some(self.landed.swap_remove(at).read)
        })?;
        self.disk.withdraw(tag);
        Some(read)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        let asked = self.clock.now() - self.lag;
        self.collect(Nanos(0));
        loop {
            let now = self.clock.now();
            self.disk.advance(now);
            let woken = match self.hand_out(now, done) {
                Some(due) => due,
                None if self.disk.n_reads() == 0 => now,
                None if now >= until => until,
                None => {
                    self.sleep(self.disk.next_due(now).min(until));
                    continue;
                }
            };
            self.lag = (now - woken.max(asked)).min(LAG_MAX);
            return;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "called by `wait`, until a completion is due")]
fn sleep(span: Nanos) {
    std::thread::sleep(Duration::from_nanos(span.0));
}

#[cfg(test)]
mod tests;
