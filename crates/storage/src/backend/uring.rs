//! Direct reads through Linux's `io_uring`: one thread, which the disk keeps asleep.
//!
//! The caller computes while reads are in flight, so it never drives the ring: a thread does, `reader`, which hands
//! everything that can begin to the kernel in one call and sleeps in the same call until something is over. All memory
//! that the kernel may write is kept by `ring`, the only unsafe part.

mod reader;
mod ring;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use forerun_arena::Arena;
use forerun_model::{Clock, Nanos};

use super::pool::{Pool, Queue};
use super::{Completed, DirectFiles, Limits, Read, ReadBackend, Tag};
use crate::UringError;
use reader::Reader;
use ring::{BUFFER_BYTES_MAX, Ring};

/// How many reads at once. Whether the kernel pins the slots is the `pinned` of [`UringBackend::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringConfig {
    /// Reads that the kernel has at once; at least 1. More fill a disk that wants it, and let a demand wait for more
    /// guesses.
    pub device_depth: usize,
    /// Reads that may be submitted and not yet completed; at least `device_depth` to keep the disk busy.
    pub depth: usize,
}

impl Default for UringConfig {
    /// Two at the disk: the one that was measured gave as much to one read of 1.3 MiB as to eight, and a demand that
    /// came while guesses were read took 2.6 ms with two, 6.5 with four, 10 with eight. A faster disk may want more.
    fn default() -> Self {
        Self { device_depth: 2, depth: 128 }
    }
}

/// Reads through `io_uring` past the page cache. Dropping it waits for what the kernel has begun.
pub struct UringBackend {
    pool: Pool,
    unpinned: Option<UringError>,
    shared: Arc<Shared>,
}

/// What the thread tells.
#[derive(Debug, Default)]
struct Shared {
    n_fixed: AtomicU64,
    broken: OnceLock<String>,
}

impl UringBackend {
    /// Makes a ring and starts the thread that owns it. `clock` is what `until` of [`ReadBackend::wait`] is compared
    /// with; its time must pass as the machine's does.
    ///
    /// `pinned` registers the slots of an arena with the kernel, which then needn't look up and pin their pages for
    /// each read. All of its memory becomes resident *now*, which takes as long as writing it once, can't be swapped
    /// out, and counts against the limit of locked memory: for an arena whose size somebody chose. The arena's memory
    /// then lives as long as the backend, and none of it may be given back to the system meanwhile
    /// ([`WriteLease::release_pages`](forerun_arena::WriteLease::release_pages)), for the kernel would go on to fill the
    /// pages that it pinned. When the kernel refuses, reads work without, and [`Self::unpinned`] says why.
    ///
    /// # Errors
    /// [`UringError`] when there is no `io_uring` to be had: the caller falls back and says so.
    ///
    /// # Panics
    /// When `config` asks for no depth.
    pub fn new(
        files: DirectFiles,
        config: UringConfig,
        pinned: Option<&Arena>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, UringError> {
        assert!(config.device_depth > 0 && config.depth > 0, "{config:?} can't read anything");
        let limits = Limits { depth: config.depth, align_bytes: files.align_bytes() };
        let mut ring = Ring::new(files, config.device_depth)?;
        let unpinned = pinned.and_then(|arena| ring.pin(arena, BUFFER_BYTES_MAX).err());
        let shared = Arc::new(Shared::default());
        let reader = Reader::new(ring, Arc::clone(&shared))?;
        let work = move |queue: &Queue, done: &SyncSender<Completed>| reader.run(queue, done);
        let pool = Pool::start(limits, clock, [("read-uring".to_owned(), work)])
            .map_err(|reason| UringError::Thread { reason })?;
        Ok(Self { pool, unpinned, shared })
    }

    /// Why the slots aren't pinned, when that was asked for and the kernel refused.
    pub fn unpinned(&self) -> Option<&UringError> {
        self.unpinned.as_ref()
    }

    /// Why the ring isn't used any more, should the kernel have stopped to serve it: its thread then reads without.
    pub fn broken(&self) -> Option<&str> {
        self.shared.broken.get().map(String::as_str)
    }

    /// Reads so far that went into pinned slots.
    pub fn n_fixed(&self) -> u64 {
        self.shared.n_fixed.load(Ordering::Relaxed)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every backend")]
impl ReadBackend for UringBackend {
    fn limits(&self) -> Limits {
        self.pool.limits()
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        self.pool.submit(read)
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        self.pool.withdraw(tag)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        self.pool.wait(until, done);
    }
}

#[cfg(test)]
mod tests;
