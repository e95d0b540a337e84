//! Where a target is made: data in any order, a journal of what is safe, and at last the final name.

use std::io;

/// A target in the making. What was written before [`Output::sync`] returned outlives a crash; what was written after
/// may be there, in part or not at all.
pub(crate) trait Output: Send {
    /// The journal that an earlier run left; `None` when there is none, or its data isn't `len_bytes` long.
    fn earlier(&mut self, len_bytes: u64) -> io::Result<Option<Vec<u8>>>;

    /// Starts afresh: an empty journal, and data of `len_bytes` zeros, with room reserved for it where the system can.
    ///
    /// # Errors
    /// `StorageFull` when there is too little room.
    fn begin(&mut self, len_bytes: u64) -> io::Result<()>;

    /// Goes on with what [`Output::earlier`] found; the journal is cut to `journal_bytes`, and `left_bytes` of the data
    /// are still to be written.
    ///
    /// # Errors
    /// `StorageFull` when there is too little room for those; what there is stays.
    fn resume(&mut self, journal_bytes: u64, left_bytes: u64) -> io::Result<()>;

    /// Writes data.
    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> io::Result<()>;

    /// Returns when all data written so far is safe.
    fn sync(&mut self) -> io::Result<()>;

    /// Adds to the journal; returns when that is safe.
    fn note(&mut self, entry: &[u8]) -> io::Result<()>;

    /// Makes the data appear, whole and safe, under its final name, and removes the journal.
    ///
    /// # Errors
    /// `AlreadyExists` when a target that must stay appeared meanwhile; `ResourceBusy` when data or journal are no longer
    /// those of this run.
    fn publish(&mut self) -> io::Result<()>;

    /// Removes data and journal, as far as they are those of this run.
    fn discard(&mut self) -> io::Result<()>;

    /// Bytes that there is room for, if the system says.
    fn free_bytes(&self) -> Option<u64>;
}

/// Too little room, as it was measured: what a `StorageFull` error carries where the numbers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{need_bytes} bytes are needed and {free_bytes} are free")]
pub(crate) struct Shortage {
    /// Bytes that are still to be written.
    pub(crate) need_bytes: u64,
    /// Bytes that there are for them.
    pub(crate) free_bytes: u64,
}

impl Shortage {
    /// What `error` carries.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<Shortage> for io::Error {
    fn from(shortage: Shortage) -> Self {
        Self::new(io::ErrorKind::StorageFull, shortage)
    }
}
