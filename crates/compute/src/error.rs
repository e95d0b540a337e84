//! What a backend refuses.

use std::io;

use forerun_model::{LayerId, ShapeError};

use crate::DeviceName;

/// A step that can't be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// A tensor is missing or has the wrong dimensions.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A tensor's type has no kernel.
    #[error("tensor `{name}` is stored as {quant}, which can't be computed with; supported: {supported}")]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        quant: &'static str,
        /// What would be right.
        supported: &'static str,
    },
    /// A tensor holds fewer bytes than its dimensions need.
    #[error("tensor `{name}` has {found_bytes} bytes but its dimensions need {need_bytes}")]
    TensorBytes {
        /// The tensor.
        name: String,
        /// Bytes found.
        found_bytes: usize,
        /// Bytes needed.
        need_bytes: usize,
    },
    /// A token id that the vocabulary doesn't have.
    #[error("token {token} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Entries of the vocabulary.
        n_vocab: usize,
    },
    /// No room for the rows of a step.
    #[error("{past} tokens and {rows} more do not fit a context of {context}")]
    ContextFull {
        /// Tokens held.
        past: usize,
        /// Tokens of the step.
        rows: usize,
        /// Room for this many.
        context: usize,
    },
    /// A step with no rows, or more than there is scratch for.
    #[error("a step has {rows} rows; it must have 1 to {rows_max}")]
    Rows {
        /// Rows of the step.
        rows: usize,
        /// Most rows.
        rows_max: usize,
    },
    /// Parts that don't have a step's rows.
    #[error("the parts of a step have {counted} rows and the step {rows}; they must have as many")]
    Counted {
        /// Rows of the step.
        rows: usize,
        /// Rows of its parts.
        counted: usize,
    },
    /// A step that doesn't continue what was accepted.
    #[error("the step continues from {past} tokens but the sequence holds {held}")]
    Past {
        /// What the step says.
        past: usize,
        /// What the sequence holds.
        held: usize,
    },
    /// Parts that don't make up a step.
    #[error("part {part} of a step: {rule}")]
    Part {
        /// The part's index.
        part: usize,
        /// What must hold.
        rule: &'static str,
    },
    /// A checkpoint that isn't one of the sequence's.
    #[error(
        "a checkpoint of {checkpoint} tokens can't be restored: the sequence holds {held}, or its model is another"
    )]
    Checkpoint {
        /// Tokens of the checkpoint.
        checkpoint: usize,
        /// Tokens that the sequence holds.
        held: usize,
    },
    /// Rows to be saved that the sequence doesn't hold.
    #[error("rows {first}..{end} can't be saved: the sequence holds {held} tokens")]
    SavedRows {
        /// The first.
        first: usize,
        /// The one after the last.
        end: usize,
        /// Tokens held.
        held: usize,
    },
    /// A saved state of another model.
    #[error("a saved state has {found} values; those of this model have {need}")]
    SavedState {
        /// Values found.
        found: usize,
        /// Values that would be right.
        need: usize,
    },
    /// Saved rows that can't be read or written.
    #[error("can't move the keys and values of a saved sequence")]
    SavedBytes {
        /// The other side's reason.
        source: io::Error,
    },
    /// A sequence that the backend wasn't made for.
    #[error("no sequence {sequence}: this backend keeps {n_sequences}")]
    Sequence {
        /// The index.
        sequence: usize,
        /// Sequences kept.
        n_sequences: usize,
    },
    /// More rows accepted than there are, or fewer without having said so, or no finished step.
    #[error("can't accept {accepted} of {rows} rows: {rule}")]
    Accept {
        /// Rows accepted.
        accepted: usize,
        /// Rows of the step.
        rows: usize,
        /// What must hold.
        rule: &'static str,
    },
    /// A slot or a layer that doesn't fit the model.
    #[error("an expert of {layer} needs {need_bytes} bytes of its slot, which has {slot_bytes}")]
    Slot {
        /// The layer.
        layer: LayerId,
        /// Bytes needed.
        need_bytes: usize,
        /// Bytes of the slot.
        slot_bytes: usize,
    },
    /// The arithmetic left the finite numbers: broken weights.
    #[error("{what} is not finite at {layer}; the weights are damaged or the file is not what it says")]
    NotFinite {
        /// Which quantity.
        what: &'static str,
        /// Where.
        layer: LayerId,
    },
    /// Worker threads can't be started.
    #[error("{n_threads} worker threads can't be started")]
    Threads {
        /// Threads asked for.
        n_threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A device that there is no word for.
    #[error("`{name}` names no device; right would be cpu, cuda:N or metal:N, with a number for N")]
    DeviceName {
        /// The name.
        name: String,
    },
    /// A device that isn't there, or that this build can't use.
    #[error("device {device} can't be used: {reason}")]
    DeviceMissing {
        /// The device.
        device: DeviceName,
        /// Why, and what would be right.
        reason: String,
    },
    /// A device that failed.
    #[error("device {device} failed: {reason}")]
    Device {
        /// The device.
        device: DeviceName,
        /// What it said.
        reason: String,
    },
}
