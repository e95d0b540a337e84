//! Positioned reads on a few threads: works on every system and disk.

use std::io::{self, IoSliceMut};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forerun_model::{Clock, Nanos};

use super::queue::Waiting;
use super::{Completed, DirectFiles, Limits, Read, ReadBackend, Tag};
use crate::OpenError;
use crate::files::FileSet;

/// A worker calls the system and copies nothing: it needs next to no stack.
const STACK_BYTES: usize = 64 << 10;

/// How many reads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreadConfig {
    /// Threads, so reads that the disk sees at once; at least 1.
    pub n_threads: usize,
    /// Reads that may be submitted and not yet completed; at least `n_threads` to keep them busy.
    pub depth: usize,
}

impl Default for PreadConfig {
    /// Four threads: cold reads through the page cache gave 0.91 GB/s with one and 1.77 with four on the disk that was
    /// measured.
    fn default() -> Self {
        Self { n_threads: 4, depth: 64 }
    }
}

/// How the threads read.
#[derive(Clone, Debug)]
enum Way {
    /// Through the page cache.
    Cached(FileSet),
    /// Past it.
    Direct(DirectFiles),
}

impl Way {
    fn read_at(&self, file: u16, buffers: &mut [IoSliceMut<'_>], offset_bytes: u64) -> io::Result<usize> {
        match self {
            Self::Cached(files) => {
                let file = files.files().get(usize::from(file)).ok_or(io::ErrorKind::NotFound)?;
                file.read_vectored_at(buffers, offset_bytes)
            }
            Self::Direct(files) => files.read_at(file, buffers, offset_bytes),
        }
    }

    fn align_bytes(&self) -> u32 {
        match self {
            Self::Cached(_) => 1,
            Self::Direct(files) => files.align_bytes(),
        }
    }
}

/// Reads through the system's `pread` on threads of its own, which end with it.
pub struct PreadBackend {
    config: PreadConfig,
    align_bytes: u32,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
    done: Receiver<Completed>,
    workers: Vec<JoinHandle<()>>,
    n_in_flight: usize,
}

impl PreadBackend {
    /// Starts threads that read through the system's page cache. `clock` is what `until` of [`ReadBackend::wait`] is
    /// compared with; its time must pass as the machine's does.
    ///
    /// # Errors
    /// [`OpenError::Io`] when the system refuses a thread.
    ///
    /// # Panics
    /// When `config` asks for no threads or no depth.
    pub fn new(files: &FileSet, config: PreadConfig, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::start(files, &Way::Cached(files.clone()), config, clock)
    }

    /// Starts threads that read past the page cache.
    ///
    /// # Errors
    /// As [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn direct(
        files: &FileSet,
        direct: DirectFiles,
        config: PreadConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        Self::start(files, &Way::Direct(direct), config, clock)
    }

    fn start(
        files: &FileSet,
        way: &Way,
        config: PreadConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        assert!(config.n_threads > 0 && config.depth > 0, "{config:?} can't read anything");
        let refused = |source| OpenError::Io { doing: "start a reader of", path: files.path(0), source };
        // As deep as the queue, so that a worker never waits to hand over what it read.
        let (sender, done) = mpsc::sync_channel(config.depth);
        let (queue, align_bytes) = (Arc::new(Queue::default()), way.align_bytes());
        let mut backend =
            Self { config, align_bytes, clock, queue, done, workers: Vec::new(), n_in_flight: 0 };
        for i in 0..config.n_threads {
            let (way, queue, sender) = (way.clone(), Arc::clone(&backend.queue), sender.clone());
            let thread = thread::Builder::new().name(format!("read-{i}")).stack_size(STACK_BYTES);
            let worker = thread.spawn(move || work(&way, &queue, &sender));
            backend.workers.push(worker.map_err(refused)?);
        }
        Ok(backend)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every backend")]
impl ReadBackend for PreadBackend {
    fn limits(&self) -> Limits {
        Limits { depth: self.config.depth, align_bytes: self.align_bytes }
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        if self.n_in_flight == self.config.depth {
            return Err(read);
        }
        read.assert_aligned(self.align_bytes);
        self.queue.push(read);
        self.n_in_flight += 1;
        Ok(())
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        let read = self.queue.withdraw(tag);
        self.n_in_flight -= usize::from(read.is_some());
        read
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        let before = done.len();
        done.extend(self.done.try_iter());
        if done.len() == before && self.n_in_flight > 0 {
            // Workers hold the sender until this value is dropped, so an error is only a timeout.
            let first = match until {
                Nanos::MAX => self.done.recv().ok(),
                _ => self.done.recv_timeout(Duration::from_nanos((until - self.clock.now()).0)).ok(),
            };
            done.extend(first);
            done.extend(self.done.try_iter());
        }
        self.n_in_flight -= done.len() - before;
    }
}

impl Drop for PreadBackend {
    fn drop(&mut self) {
        self.queue.close();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so on stderr; there is nobody left to tell.
            let _ = worker.join();
        }
    }
}

/// Reads that no worker has begun.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    reads: Waiting,
    closed: bool,
}

impl Queue {
    fn push(&self, read: Read) {
        self.lock().reads.push(read);
        self.changed.notify_one();
    }

    /// The next read, as soon as there is one; `None` once closed.
    fn pop(&self) -> Option<Read> {
        let state = self.changed.wait_while(self.lock(), |state| state.reads.is_empty() && !state.closed);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.closed { None } else { state.reads.pop() }
    }

    fn withdraw(&self, tag: Tag) -> Option<Read> {
        self.lock().reads.withdraw(tag)
    }

    /// Drops what no worker has begun, which frees its slots, and ends the workers.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.reads.clear();
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn work(way: &Way, queue: &Queue, done: &SyncSender<Completed>) {
    while let Some(read) = queue.pop() {
        let completed = perform(read, |file, buffers, offset_bytes| way.read_at(file, buffers, offset_bytes));
        if done.send(completed).is_err() {
            return;
        }
    }
}

/// Like [`Read::perform`], but a panic is a failed read: whoever waits must hear of it, and the slot must come back.
fn perform(
    mut read: Read,
    read_at: impl FnOnce(u16, &mut [IoSliceMut<'_>], u64) -> io::Result<usize>,
) -> Completed {
    // Unwind safe: after a panic the slot's bytes mean nothing, which is what an error says.
    let result = panic::catch_unwind(AssertUnwindSafe(|| read.perform(read_at)));
    let result = result.unwrap_or_else(|_| Err(io::Error::other("a reader thread panicked")));
    Completed { read, result }
}

#[cfg(test)]
mod tests {
    use forerun_model::SystemClock;

    use super::*;
    use crate::{conformance, testing};

    fn backend(files: &FileSet, n_threads: usize, depth: usize) -> PreadBackend {
        PreadBackend::new(files, PreadConfig { n_threads, depth }, Arc::new(SystemClock::new())).unwrap()
    }

    #[test]
    fn pread_conforms() {
        for (n_threads, depth) in [(1, 1), (3, 2), (4, 16)] {
            conformance::check(|files| backend(&testing::temporary(files), n_threads, depth));
        }
    }

    #[test]
    fn direct_pread_conforms_where_the_file_system_takes_it() {
        if let Err(why) = DirectFiles::open(&testing::temporary(&["x".into()])) {
            eprintln!("skipped: {why}");
            return;
        }
        for (n_threads, depth) in [(1, 1), (3, 2), (4, 16)] {
            conformance::check(|files| {
                let files = testing::temporary(files);
                let direct = DirectFiles::open(&files).unwrap();
                let config = PreadConfig { n_threads, depth };
                PreadBackend::direct(&files, direct, config, Arc::new(SystemClock::new())).unwrap()
            });
        }
    }

    #[test]
    fn a_panic_is_a_failed_read_and_gives_the_slot_back() {
        let read = testing::read(Tag(9), 0, testing::window(1));
        let completed = perform(read, |_, _, _| panic!("a bug in reading"));
        assert_eq!((completed.read.tag, completed.read.windows.len()), (Tag(9), 1));
        assert_eq!(completed.result.unwrap_err().kind(), io::ErrorKind::Other);
    }

    #[test]
    fn pread_conforms_on_bytes_in_memory() {
        conformance::check(|files| backend(&testing::in_memory(files), 2, 8));
    }
}
