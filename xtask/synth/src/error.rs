//! Why no model was written or measured.

use std::io;
use std::path::PathBuf;

use forerun_arena::ArenaError;
use forerun_compute::ComputeError;
use forerun_decode::DecodeError;
use forerun_model::ShapeError;
use forerun_scheduler::SchedulerError;
use forerun_sim::TraceError;
use forerun_storage::{HeaderError, OpenError};

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SynthError {
    /// A number of the shape.
    #[error("{what} {value} can't be written; it must be {right}")]
    Geometry { what: &'static str, value: usize, right: &'static str },
    /// A knob.
    #[error("--{what} {value} makes no sense; it must be {right}")]
    Knob { what: &'static str, value: f32, right: &'static str },
    /// The disk is too small.
    #[error("{} has {free} free and the model takes {need}", path.display())]
    Space { path: PathBuf, free: String, need: String },
    /// A file or folder.
    #[error("can't {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// The tokenizer's file, or the model to measure.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A header.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A header that is to be written.
    #[error("the model's header can't be written")]
    Header(#[from] HeaderError),
    /// Binding the weights.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A layer.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// An expert.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// A routing that a trace can't hold.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The slots.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A file that another tool made.
    #[error("{} has no `{key}`: only models of this tool can be measured", path.display())]
    NotSynthetic { path: PathBuf, key: String },
    /// A key of the tokenizer's file.
    #[error("the tokenizer's file has no usable `{key}`")]
    Tokenizer { key: &'static str },
    /// Ids of a trace are bytes.
    #[error("routings among {found} experts can't be measured, at most {max} can; --measure 0 only writes")]
    TooManyExperts { found: usize, max: usize },
    /// More is asked for than there is.
    #[error("{wanted} tokens can't be measured; the script has {n_script} and the context {context}")]
    TooLong { wanted: usize, n_script: usize, context: usize },
}
