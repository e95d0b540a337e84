//! One way to read byte ranges of a file set into slots; implementations are in the modules below.

pub mod direct;
pub mod memory;
pub mod mmap;
mod pool;
pub mod pread;
pub(crate) mod queue;
pub mod throttle;
#[cfg(target_os = "linux")]
pub mod uring;

pub use direct::DirectFiles;
pub use memory::MemoryBackend;
pub use mmap::MmapBackend;
pub use pread::{PreadBackend, PreadConfig};
pub use throttle::Throttled;
#[cfg(target_os = "linux")]
pub use uring::{UringBackend, UringConfig};

use std::io::{self, IoSliceMut};

use forerun_arena::Window;
use forerun_model::Nanos;

/// What a backend can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Reads that may be submitted and not yet completed.
    pub depth: usize,
    /// Offset, and start and length of each window, are multiples of this power of two; 1 for no such demand.
    pub align_bytes: u32,
}

/// Names a read among those in flight; the submitter chooses it and makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// Which of two waiting reads goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    Demand,
    /// Somebody may want it soon.
    Guess,
}

/// A range of one file, and the parts of slots that it fills, one after the other. The windows belong to the backend
/// until they come back in [`Completed`].
#[derive(Debug)]
pub struct Read {
    /// The submitter's name for it.
    pub tag: Tag,
    /// Demands go before guesses.
    pub priority: Priority,
    /// Index of the file in its set.
    pub file: u16,
    /// First byte in the file.
    pub offset_bytes: u64,
    /// Where the bytes go: the first window is filled first.
    pub windows: Vec<Window>,
}

/// A read that is over, well or not.
#[derive(Debug)]
pub struct Completed {
    /// The read as it was submitted, its windows filled as far as `result` says.
    pub read: Read,
    /// Bytes read: fewer than asked for is a short read, which the caller resumes; none is the end of the file.
    pub result: io::Result<u64>,
}

/// Moves bytes from a file set into slots.
///
/// The caller submits at most [`Limits::depth`] reads, then waits; a read that came back, or was withdrawn, has freed
/// its place. Reads begin in the order of their priority, then of submission, and complete in any order. A backend
/// never retries and never decides what an error means: short reads and errors come back as they are, an error only
/// when nothing was read before it. A read past the end of its file is no error: it comes back short.
pub trait ReadBackend: Send {
    /// What this backend can take; constant.
    fn limits(&self) -> Limits;

    /// Starts `read`, with one call of the system where the system allows it.
    ///
    /// # Errors
    /// Gives the read back when the queue is full.
    fn submit(&mut self, read: Read) -> Result<(), Read>;

    /// Takes back a read that hasn't begun; `None` when it has, or is over, or was never there. A backend may always
    /// say that it has.
    fn withdraw(&mut self, tag: Tag) -> Option<Read>;

    /// Moves finished reads into `done`. Sleeps until there is one, or the clock passes `until`, or nothing is in
    /// flight.
    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>);
}

impl<B: ReadBackend + ?Sized> ReadBackend for Box<B> {
    fn limits(&self) -> Limits {
        (**self).limits()
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        (**self).submit(read)
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        (**self).withdraw(tag)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        (**self).wait(until, done);
    }
}

impl Read {
    /// Bytes that it asks for.
    pub fn len_bytes(&self) -> u64 {
        self.windows.iter().map(|window| window.len() as u64).sum()
    }

    /// Panics when the read isn't aligned as [`Limits::align_bytes`] demands: the submitter has a bug.
    pub(crate) fn assert_aligned(&self, align_bytes: u32) {
        let align = u64::from(align_bytes);
        let is_aligned = |window: &Window| {
            (window.start() as u64).is_multiple_of(align) && (window.len() as u64).is_multiple_of(align)
        };
        assert!(
            self.offset_bytes.is_multiple_of(align) && self.windows.iter().all(is_aligned),
            "{self:?} isn't aligned to {align_bytes}"
        );
    }

    /// Reads through `read_at`, which is given a file, buffers to fill one after the other, and an offset.
    pub(crate) fn perform(
        &mut self,
        read_at: impl FnOnce(u16, &mut [IoSliceMut<'_>], u64) -> io::Result<usize>,
    ) -> io::Result<u64> {
        let mut buffers: Vec<_> =
            self.windows.iter_mut().map(|window| IoSliceMut::new(window.bytes_mut())).collect();
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(0);
        }
        read_at(self.file, &mut buffers, self.offset_bytes).map(|n| n as u64)
    }
}

/// Fills `buffers`, one after the other, from the front of `bytes`.
pub(crate) fn copy_into(buffers: &mut [IoSliceMut<'_>], mut bytes: &[u8]) -> usize {
    let before = bytes.len();
    for buffer in buffers {
        let (now, later) = bytes.split_at(buffer.len().min(bytes.len()));
        buffer[..now.len()].copy_from_slice(now);
        bytes = later;
    }
    before - bytes.len()
}
