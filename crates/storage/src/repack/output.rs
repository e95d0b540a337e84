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

    /// Goes on with what [`Output::earlier`] found; the journal is cut to `journal_bytes`.
    fn resume(&mut self, journal_bytes: u64) -> io::Result<()>;

    /// Writes data.
    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> io::Result<()>;

    /// Returns when all data written so far is safe.
    fn sync(&mut self) -> io::Result<()>;

    /// Adds to the journal; returns when that is safe.
    fn note(&mut self, entry: &[u8]) -> io::Result<()>;

    /// Makes the data appear, whole and safe, under its final name, and removes the journal.
    fn publish(&mut self) -> io::Result<()>;

    /// Removes data and journal.
    fn discard(&mut self) -> io::Result<()>;

    /// Bytes that there is room for, if the system says.
    fn free_bytes(&self) -> Option<u64>;
}
