//! Why a model can't be packed, unpacked or verified.

use std::io;
use std::path::PathBuf;

use forerun_model::ExpertKey;

use super::{HeaderError, OpenError};

/// A packing or unpacking that can't be begun, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The source is no model that can be used here.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The header can't be written.
    #[error("the header of {path} can't be written: {problem}")]
    Header {
        /// The target.
        path: PathBuf,
        /// What is wrong.
        problem: HeaderError,
    },
    /// Unpacking a file that isn't packed.
    #[error("{path} isn't packed: it has no key `forerun.pack.version`")]
    NotPacked {
        /// The file.
        path: PathBuf,
    },
    /// More entries than a header may list.
    #[error("the model has {found} {what}; a packed file lists at most {max}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// Most that are accepted.
        max: usize,
    },
    /// An order that has no row for each layer, or no place for each expert.
    #[error("the order has {found} {what}; the model has {expected}")]
    OrderSize {
        /// What is counted.
        what: &'static str,
        /// How many the order has.
        found: usize,
        /// How many the model has.
        expected: usize,
    },
    /// An order that puts two experts into one place, or one nowhere.
    #[error("the order of layer {layer} names position {position} twice, or past the last one")]
    Order {
        /// The layer.
        layer: usize,
        /// The position.
        position: u32,
    },
    /// A list of the source's tensors that doesn't fit what the packed file holds.
    #[error("key `forerun.pack.source_tensors` of {path} can't be followed: {problem}")]
    SourceTensors {
        /// The packed file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A target that is there already.
    #[error("{path} exists; --force replaces it")]
    TargetExists {
        /// The target.
        path: PathBuf,
    },
    /// A target that is one of the source's files.
    #[error("{path} is the source itself; name another target")]
    TargetIsSource {
        /// The target.
        path: PathBuf,
    },
    /// A target that is there and no ordinary file, such as a device.
    #[error("{path} is there and is no ordinary file, so it is never replaced; name another target")]
    TargetKind {
        /// The target.
        path: PathBuf,
    },
    /// A target that can't be a file.
    #[error("{path} is not a name for a file; name the file to write")]
    TargetName {
        /// The target.
        path: PathBuf,
    },
    /// Another process makes the same target, or has taken over what was written for it.
    #[error("another process is making {path}; wait for it, or stop it")]
    Busy {
        /// The target.
        path: PathBuf,
    },
    /// Too little room on the disk.
    #[error(
        "{path} needs {need_bytes} bytes more, but its disk has {free_bytes} free: {} are missing",
        need_bytes.saturating_sub(*free_bytes)
    )]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// Bytes that it still needs.
        need_bytes: u64,
        /// Bytes that there are.
        free_bytes: u64,
    },
    /// A quota, or a limit on the size of a file.
    #[error("{path} needs {need_bytes} bytes more, which a quota or a limit on file sizes forbids")]
    Limit {
        /// The target.
        path: PathBuf,
        /// Bytes that it still needs.
        need_bytes: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The source can't be read.
    #[error("reading {len_bytes} bytes at byte {offset_bytes} of {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// First byte of the read.
        offset_bytes: u64,
        /// Bytes of the read.
        len_bytes: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The target can't be written.
    #[error("cannot {doing} for {path}")]
    Write {
        /// What was attempted, as a verb with its object.
        doing: &'static str,
        /// The target.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A record of the source that isn't what was packed.
    #[error(
        "expert {key} at byte {offset_bytes} of {path} is damaged: its checksum is {found:#010x}, not {expected:#010x}"
    )]
    Checksum {
        /// The expert.
        key: ExpertKey,
        /// The source's file.
        path: PathBuf,
        /// Where its record begins.
        offset_bytes: u64,
        /// Of the bytes that were read.
        found: u32,
        /// What the header says.
        expected: u32,
    },
    /// The source was written, cut or replaced while it was read.
    #[error("{path} was changed while it was read; the copy was thrown away")]
    SourceChanged {
        /// The file.
        path: PathBuf,
    },
    /// Other types for a packed file.
    #[error("{path} is packed, and records keep their types; `forerun unpack` it first")]
    PackedSource {
        /// The file.
        path: PathBuf,
    },
    /// Values that can't have the type that was asked for.
    #[error("{path} can't be encoded")]
    Recode {
        /// The source, its first file if there are several.
        path: PathBuf,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
