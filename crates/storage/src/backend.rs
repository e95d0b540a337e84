//! One way to read byte ranges of a file set into slots; implementations are in the modules below.

pub mod memory;
pub mod mmap;
pub mod pread;

pub use memory::MemoryBackend;
pub use mmap::MmapBackend;
pub use pread::{PreadBackend, PreadConfig};

use std::io;

use forerun_arena::WriteLease;
use forerun_model::Nanos;

/// What a backend can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Reads that may be submitted and not yet completed.
    pub depth: usize,
}

/// Names a read among those in flight; the submitter chooses it and makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// A range of one file and the place in the slot where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the file in its set.
    pub file: u16,
    /// First byte in the file.
    pub offset_bytes: u64,
    /// Bytes to read.
    pub len_bytes: u32,
    /// First byte in the slot.
    pub slot_offset_bytes: u32,
}

/// Up to three ranges that fill one slot. The lease belongs to the backend until it comes back in [`Completed`].
#[derive(Debug)]
pub struct Read {
    /// The submitter's name for it.
    pub tag: Tag,
    /// Ranges, in the order in which they are to be read.
    pub segments: Vec<Segment>,
    /// The slot to fill.
    pub lease: WriteLease,
}

/// A read that is over, well or not.
#[derive(Debug)]
pub struct Completed {
    /// The submitter's name for it.
    pub tag: Tag,
    /// The slot, filled as far as `result` says.
    pub lease: WriteLease,
    /// Bytes read, in the order of the segments: fewer than asked for is a short read, which the caller resumes.
    pub result: io::Result<u64>,
}

/// Moves bytes from a file set into slots.
///
/// A segment that ends past its slot is the caller's bug, and `submit` panics. A segment past the end of its file is
/// not: it comes back short.
///
/// The caller submits at most [`Limits::depth`] reads, then waits; a read that came back has freed its place. Reads
/// complete in any order. A backend never retries and never decides what an error means: short reads and errors come
/// back as they are, an error only when nothing was read before it.
pub trait ReadBackend: Send {
    /// What this backend can take; constant.
    fn limits(&self) -> Limits;

    /// Starts `read`.
    ///
    /// # Errors
    /// Gives the read back when the queue is full.
    fn submit(&mut self, read: Read) -> Result<(), Read>;

    /// Moves finished reads into `done`. Sleeps until there is one, or the clock passes `until`, or nothing is in
    /// flight.
    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>);
}

impl Read {
    /// Bytes that the segments ask for.
    pub fn len_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.len_bytes)).sum()
    }

    /// Panics when a segment doesn't fit the slot: the submitter has a bug.
    pub(crate) fn assert_fits(&mut self) {
        let slot_bytes = self.lease.bytes_mut().len() as u64;
        for segment in &self.segments {
            let end = u64::from(segment.slot_offset_bytes) + u64::from(segment.len_bytes);
            assert!(end <= slot_bytes, "{segment:?} ends past a slot of {slot_bytes} bytes");
        }
    }

    /// Reads segment by segment through `read_at`, which is given a file, a buffer and an offset, until all is read
    /// or one comes back short. An error after the first byte is a short read: the caller meets it when it resumes.
    pub(crate) fn perform(
        mut self,
        read_at: impl FnMut(u16, &mut [u8], u64) -> io::Result<usize>,
    ) -> Completed {
        let result = self.fill(read_at);
        Completed { tag: self.tag, lease: self.lease, result }
    }

    /// The part of [`Read::perform`] that may panic, and leaves the lease where it is.
    fn fill(&mut self, mut read_at: impl FnMut(u16, &mut [u8], u64) -> io::Result<usize>) -> io::Result<u64> {
        let mut result = Ok(0);
        for segment in &self.segments {
            let (start, len) = (segment.slot_offset_bytes as usize, segment.len_bytes as usize);
            let buffer = &mut self.lease.bytes_mut()[start..start + len];
            let read = read_at(segment.file, buffer, segment.offset_bytes).map(|n| n as u64);
            let whole = matches!(read, Ok(n) if n == len as u64);
            result = match (result, read) {
                (Ok(before), Ok(n)) => Ok(before + n),
                (Ok(before), Err(_)) if before > 0 => Ok(before),
                (_, error) => error,
            };
            if !whole {
                break;
            }
        }
        result
    }
}
