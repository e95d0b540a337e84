//! The backend, and the few reads that it has no place for yet.

use forerun_model::Nanos;

use crate::backend::queue::Waiting;
use crate::{Completed, Limits, Read, ReadBackend, Tag};

/// Takes any number of reads and gives the backend as many as it takes.
///
/// The store begins nothing while the backend is full, but what it has begun may need several reads: those wait here,
/// at most two a fetch, or one for each expert of a merged read that failed, and begin first.
pub(super) struct Port {
    backend: Box<dyn ReadBackend>,
    limits: Limits,
    n_in_flight: usize,
    waiting: Waiting,
}

impl Port {
    pub(super) fn new(backend: Box<dyn ReadBackend>) -> Self {
        let limits = backend.limits();
        Self { backend, limits, n_in_flight: 0, waiting: Waiting::default() }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Reads that aren't over.
    pub(super) fn n_reads(&self) -> usize {
        self.n_in_flight + self.waiting.len()
    }

    pub(super) fn submit(&mut self, read: Read) {
        self.waiting.push(read);
        self.pump();
    }

    /// Takes back a read that hasn't begun.
    pub(super) fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        let waiting = self.waiting.withdraw(tag);
        if waiting.is_some() {
            return waiting;
        }
        let read = self.backend.withdraw(tag)?;
        self.n_in_flight -= 1;
        self.pump();
        Some(read)
    }

    /// As [`ReadBackend::wait`].
    pub(super) fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        let before = done.len();
        self.backend.wait(until, done);
        self.n_in_flight -= done.len() - before;
        self.pump();
    }

    fn pump(&mut self) {
        while self.n_in_flight < self.limits.depth
            && let Some(read) = self.waiting.pop()
        {
            let taken = self.backend.submit(read);
            assert!(taken.is_ok(), "a backend refused a read although fewer than its depth are in flight");
            self.n_in_flight += 1;
        }
    }
}
