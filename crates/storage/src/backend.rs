//! One way to read byte ranges of a file set into slots; implementations are in the modules below.

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
/// The caller submits at most [`Limits::depth`] reads, then waits. Reads complete in any order. A backend never
/// retries and never decides what an error means: short reads and errors come back as they are.
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
