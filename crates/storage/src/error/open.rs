//! Why a model's files can't be opened.

use std::io;
use std::path::PathBuf;

use forerun_model::{QuantType, ShapeError};

use super::HeaderError;

/// A file, folder or set of files that is no model this program can use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {doing} {path}")]
    Io {
        /// What was attempted, as a verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A device, socket or pipe.
    #[error("{path} is neither a file nor a folder")]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// The header is malformed or promises too much.
    #[error("{path}, byte {offset_bytes}: {problem}")]
    Header {
        /// The file.
        path: PathBuf,
        /// How far the header had been read.
        offset_bytes: u64,
        /// What is wrong.
        problem: HeaderError,
    },
    /// A folder without any model.
    #[error("{path} holds no .gguf file")]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A folder with several models.
    #[error("{path} holds several models, name one of them: {}", found.join(", "))]
    SeveralModels {
        /// The folder.
        path: PathBuf,
        /// One file of each, sorted.
        found: Vec<String>,
    },
    /// A shard that isn't there.
    #[error("{path} is missing: the model is split into {n_shards} files and needs all of them")]
    MissingShard {
        /// The file that isn't there.
        path: PathBuf,
        /// Files of the set.
        n_shards: usize,
    },
    /// A shard under a name that doesn't say so: renamed, or several joined into one file.
    #[error(
        "{path} holds shard {shard} of {n_shards} but is not named -{shard:05}-of-{n_shards:05}.gguf; shards can \
         be neither renamed nor joined by concatenation: keep them as they were, or merge them with a GGUF tool"
    )]
    ShardName {
        /// The file.
        path: PathBuf,
        /// What the header says, counted from 1.
        shard: u64,
        /// What the header says.
        n_shards: u64,
    },
    /// A shard whose header contradicts its name or its siblings.
    #[error("{path}: metadata key `{key}` is {found} but must be {expected} in this file")]
    ShardKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The file's value, or "absent".
        found: String,
        /// What it must be.
        expected: u64,
    },
    /// A name that claims an impossible position.
    #[error("{path} is named as shard {shard} of {n_shards}, which is impossible")]
    ShardNumber {
        /// The file.
        path: PathBuf,
        /// What the name says, counted from 1.
        shard: u64,
        /// What the name says.
        n_shards: u64,
    },
    /// A tensor that two shards hold.
    #[error("tensor `{name}` occurs in {first} and again in {second}")]
    TensorTwice {
        /// Its name.
        name: String,
        /// One file.
        first: PathBuf,
        /// Another file.
        second: PathBuf,
    },
    /// The header describes no model of ours, or a tensor is missing or has other dimensions.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Experts of one layer that are stored in different types.
    #[error("tensor `{name}` is {found} but the other experts of its layer are {expected}")]
    ExpertType {
        /// The tensor.
        name: String,
        /// Its type.
        found: QuantType,
        /// Type of the layer's first expert.
        expected: QuantType,
    },
    /// Packed records that are stored as something else than bytes.
    #[error("tensor `{name}` is {found}; packed records are {expected}")]
    PackedType {
        /// The tensor.
        name: String,
        /// Its type.
        found: QuantType,
        /// The type of records.
        expected: QuantType,
    },
    /// An expert too large for a slot.
    #[error("an expert of layer {layer} has {bytes} bytes; at most {max} are supported")]
    ExpertSize {
        /// The layer.
        layer: usize,
        /// Bytes of its three matrices.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A key of a packed file that is missing, or isn't what it must be.
    #[error("key `{key}` of a packed file is {found}; it must be {expected}")]
    PackKey {
        /// The key.
        key: &'static str,
        /// The file's value, or "absent".
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A number in a list of a packed file that can't be right.
    #[error("key `{key}` of a packed file holds {found} for layer {layer}; it must be {expected}")]
    PackValue {
        /// The key.
        key: &'static str,
        /// The layer.
        layer: usize,
        /// The number.
        found: u32,
        /// What it must be.
        expected: String,
    },
    /// Packed experts that direct reads can't reach.
    #[error("tensor `{name}` begins at byte {offset_bytes}, which is not a multiple of {align_bytes}")]
    PackOffset {
        /// The tensor.
        name: String,
        /// Where it begins in its file.
        offset_bytes: u64,
        /// What it must be a multiple of.
        align_bytes: u64,
    },
    /// A backend that can't read such files.
    #[error("{path} can't be read through {backend}: {reason}")]
    Backend {
        /// The file.
        path: PathBuf,
        /// The backend's name.
        backend: &'static str,
        /// Why.
        reason: &'static str,
    },
}
