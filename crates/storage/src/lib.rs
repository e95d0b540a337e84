//! Bytes from files into slots: a hardened GGUF reader, a catalog of expert records, and the store over it.
//!
//! [`Gguf`] opens a model's files, [`Catalog`] says where each expert lies in them, [`Resident`] hands out the tensors
//! that stay in memory. A [`ReadBackend`] moves byte ranges of the files into slots; [`FileStore`] turns keys into
//! ranges, retries what may be retried, checks lengths, and hands out sealed slots through the [`ExpertStore`] trait.
//!
//! ```
//! use forerun_storage::Gguf;
//!
//! // A file that is no model is refused by name, with what is wrong.
//! let error = Gguf::open_bytes("note.txt", "not a model".into()).unwrap_err();
//! assert!(error.to_string().contains("note.txt"));
//! ```
//!
//! Never here: what a model computes, which expert should be read next.

#[cfg(feature = "async")]
pub mod async_store;
pub mod backend;
mod bites;
pub mod catalog;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod error;
pub mod exclusive;
pub mod expert_name;
pub mod file_store;
pub mod files;
pub mod gguf;
pub mod mapped;
pub mod merge;
pub mod packed;
pub mod placement;
pub mod probe;
pub mod repack;
pub mod resident;
pub mod store;
#[cfg(test)]
mod testing;

#[cfg(feature = "async")]
pub use async_store::AsyncExpertStore;
pub use backend::{
    Completed, DirectFiles, Limits, MemoryBackend, MmapBackend, PreadBackend, PreadConfig, Priority, Read,
    ReadBackend, Tag, Throttled,
};
#[cfg(target_os = "linux")]
pub use backend::{UringBackend, UringConfig};
pub use bites::bite_bytes;
pub use catalog::{ByteRange, Catalog, Record};
#[cfg(target_os = "linux")]
pub use error::UringError;
pub use error::{HeaderError, OpenError, PackError, StoreError};
pub use file_store::{FileStore, StoreConfig, Verify};
pub use files::{Content, DataFile, FileSet};
pub use gguf::{Gguf, Metadata, TensorInfo};
pub use mapped::{Lendable, Mapped};
pub use merge::MergeLimits;
pub use placement::{Placed, Placement};
pub use probe::{ProbeCache, ProbeConfig, ProbeReport, probe};
pub use resident::{Resident, ResidentMode, ResidentTensor};
pub use store::{ExpertStore, Fetched, Filled, Lent, Refused, RefusedReason, StoreStats, Withdrawn};
/// Layers below, whose items ours take and give: whoever depends on this crate needs no other.
pub use {forerun_arena as arena, forerun_model as model};
