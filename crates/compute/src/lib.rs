//! The layers of a model on a device, over borrowed expert bytes.
//!
//! A [`Backend`] is driven one step at a time, one direction, by a loop that knows the schedule; results of experts
//! are kept by row and rank and added in rank order, so that arrival order can't change a bit.
//!
//! Never here: which expert comes next and why it is in memory, files, sampling.

pub mod backend;
pub mod error;

pub use backend::{Backend, ExpertJob, Row, Scores, SequenceIdx, Stage, Step, StepOutput};
pub use error::ComputeError;
