//! Why an arena can't be made.

use std::io;

/// An arena that can't be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// No slots, no bytes, or more than the address space holds.
    #[error("{n_slots} slots of {slot_bytes} bytes is not a size that can be allocated")]
    Size {
        /// Slots asked for.
        n_slots: usize,
        /// Bytes per slot asked for.
        slot_bytes: usize,
    },
    /// The system refused the memory.
    #[error("the system refused {bytes} bytes for expert slots")]
    Refused {
        /// Bytes asked for.
        bytes: usize,
        /// The system's reason.
        source: io::Error,
    },
}
