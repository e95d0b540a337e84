//! Positioned reads on a few threads: works on every system and disk.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use forerun_model::{Clock, Nanos};

use super::pool::{Pool, Queue, perform};
use super::{Completed, DirectFiles, Limits, Read, ReadBackend, Tag};
use crate::OpenError;
use crate::files::FileSet;

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
        Self { n_threads: 4, depth: 128 }
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

    /// The same for another thread.
    fn for_another_thread(&self) -> io::Result<Self> {
        match self {
            Self::Cached(files) => Ok(Self::Cached(files.clone())),
            Self::Direct(files) => files.for_another_thread().map(Self::Direct),
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
pub struct PreadBackend(Pool);

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
        let limits = Limits { depth: config.depth, align_bytes: way.align_bytes() };
        let refused = |source| OpenError::Io { doing: "start a reader of", path: files.path(0), source };
        let ways = (0..config.n_threads).map(|_| way.for_another_thread()).collect::<io::Result<Vec<_>>>();
        let workers = ways.map_err(refused)?.into_iter().enumerate().map(|(i, way)| {
            let work = move |queue: &Queue, done: &SyncSender<Completed>| work(&way, queue, done);
            (format!("read-{i}"), work)
        });
        Pool::start(limits, clock, workers).map(Self).map_err(refused)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every backend")]
impl ReadBackend for PreadBackend {
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        self.0.submit(read)
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        self.0.withdraw(tag)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        self.0.wait(until, done);
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
        let (_folder, files) = testing::named(&["x".into()]);
        if let Err(why) = DirectFiles::open(&files) {
            eprintln!("skipped: {why}");
            return;
        }
        let mut folders = Vec::new();
        for (n_threads, depth) in [(1, 1), (3, 2), (4, 16)] {
            conformance::check(|files| {
                let (folder, files) = testing::named(files);
                folders.push(folder);
                let direct = DirectFiles::open(&files).unwrap();
                let config = PreadConfig { n_threads, depth };
                PreadBackend::direct(&files, direct, config, Arc::new(SystemClock::new())).unwrap()
            });
        }
    }

    #[test]
    fn pread_conforms_on_bytes_in_memory() {
        conformance::check(|files| backend(&testing::in_memory(files), 2, 8));
    }
}
