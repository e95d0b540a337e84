//! What can go wrong, in three enums for three audiences: [`StoreError`] for who fetches experts while a model runs,
//! [`OpenError`] for who opens a model, [`HeaderError`] (inside it) for who wants to know which part of a header is bad.

mod header;
mod open;

pub use header::HeaderError;
pub use open::OpenError;

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
}

impl StoreError {
    /// Whether reading again may help.
    pub fn is_transient(&self) -> bool {
        use io::ErrorKind as Kind;
        match self {
            Self::Io { source, .. } => !matches!(
                source.kind(),
                Kind::NotFound | Kind::PermissionDenied | Kind::InvalidInput | Kind::Unsupported
            ),
            _ => false,
        }
    }
}
