//! What can go wrong, an enum for each audience: [`StoreError`] for who fetches experts while a model runs,
//! [`OpenError`] for who opens a model, [`HeaderError`] (inside it) for who wants to know which part of a header is bad,
//! [`PackError`] for who packs one, and on Linux `UringError` for who chooses how to read.

mod header;
mod open;
mod pack;
#[cfg(target_os = "linux")]
mod uring;

pub use header::HeaderError;
pub use open::OpenError;
pub use pack::PackError;
#[cfg(target_os = "linux")]
pub use uring::UringError;

use std::io;
use std::path::PathBuf;

use forerun_model::ExpertKey;

/// A fetch that can't be done, or failed after its retries.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The catalog has no such expert.
    #[error("no expert {key}: the file has layers 0..{n_layers}, experts 0..{n_experts}")]
    UnknownExpert {
        /// The key.
        key: ExpertKey,
        /// Layers of the file.
        n_layers: usize,
        /// Experts of a layer.
        n_experts: usize,
    },
    /// The slot can't hold the record.
    #[error("expert {key} needs {need_bytes} bytes but a slot holds {slot_bytes}; raise the slot size")]
    SlotTooSmall {
        /// The key.
        key: ExpertKey,
        /// Bytes of the record.
        need_bytes: u64,
        /// Bytes of the slot.
        slot_bytes: u64,
    },
    /// The system couldn't read.
    #[error("reading expert {key} at byte {offset_bytes} of {path}")]
    Io {
        /// The key.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// First byte that couldn't be read.
        offset_bytes: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The file ends before the record does: truncated or replaced while running.
    #[error(
        "expert {key} ends at byte {end_bytes} of {path}, but the file gave nothing past byte {offset_bytes}; \
         was it truncated or replaced?"
    )]
    Truncated {
        /// The key.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// First byte that isn't there.
        offset_bytes: u64,
        /// Where the range should end.
        end_bytes: u64,
    },
    /// The file isn't what it was when it was opened, and has no checksums to tell whether this expert still is.
    #[error(
        "{path} was written to since it was opened, so expert {key} can't be trusted; start again, and leave the file \
         alone or read a packed copy, whose checksums can tell"
    )]
    Changed {
        /// The key.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
    },
    /// The bytes aren't those that were packed, however often they are read.
    #[error(
        "expert {key} at byte {offset_bytes} of {path} is damaged: its checksum is {found:08x}, not {expected:08x}; \
         get the file again, or pack it again"
    )]
    Corrupt {
        /// The key.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        offset_bytes: u64,
        /// The CRC-32C of what was read.
        found: u32,
        /// What the file says it should be.
        expected: u32,
    },
    /// A guess that was being read was taken back: no failure, for nobody wanted it any more.
    #[error(
        "reading expert {key}, a guess, was given up after {read_bytes} bytes; begin it again if it is wanted"
    )]
    GivenUp {
        /// The key.
        key: ExpertKey,
        /// Bytes that were read for it in vain.
        read_bytes: u64,
    },
}

impl StoreError {
    /// Whether reading again may help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Io { source, .. } if Self::may_pass(source))
    }

    /// Whether the system may say otherwise when it is asked again.
    pub(crate) fn may_pass(source: &io::Error) -> bool {
        use io::ErrorKind as Kind;
        !matches!(
            source.kind(),
            Kind::NotFound | Kind::PermissionDenied | Kind::InvalidInput | Kind::Unsupported
        )
    }
}
