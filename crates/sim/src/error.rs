//! What can stop a simulation.

use forerun_arena::ArenaError;
use forerun_compute::ComputeError;
use forerun_scheduler::SchedulerError;

/// A step that a simulated machine couldn't finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The backend refused.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The slots can't be had.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// An expert can't be had.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
}

/// A routing trace that can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The header isn't the JSON that the format asks for.
    #[error("the trace's header can't be read")]
    Header {
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// The file is something else.
    #[error("the header says format `{format}` version {version}; it must be `routing-trace` version 1")]
    Format {
        /// What it says.
        format: String,
        /// Its version.
        version: u64,
    },
    /// A number is outside what a trace may have.
    #[error("the header says {what} {value}; it must be in {min}..={max}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The smallest that makes sense.
        min: u64,
        /// The largest that is accepted.
        max: u64,
    },
    /// An array is missing or of another kind.
    #[error("the trace has no array `{name}` of {expected}")]
    Array {
        /// Its name.
        name: &'static str,
        /// What it must be.
        expected: String,
    },
    /// The arrays end early.
    #[error("the array `{name}` needs bytes {start}..{end} but the trace has {found_bytes}")]
    End {
        /// Its name.
        name: &'static str,
        /// First byte.
        start: u64,
        /// First byte behind it.
        end: u64,
        /// Bytes of the file.
        found_bytes: u64,
    },
    /// A document with tokens that the trace doesn't have.
    #[error("a document has {count} tokens from {first} on, but the trace has {n_tokens}")]
    Document {
        /// Its first token.
        first: usize,
        /// Its tokens.
        count: usize,
        /// Tokens of the trace.
        n_tokens: usize,
    },
    /// An expert that the model doesn't have.
    #[error("token {token}, layer {layer} names expert {expert}; there are {n_experts}, from 0 on")]
    Expert {
        /// The token.
        token: usize,
        /// The layer.
        layer: usize,
        /// The expert.
        expert: u8,
        /// Experts of a layer.
        n_experts: usize,
    },
    /// An expert twice in one row.
    #[error("token {token}, layer {layer} names expert {expert} twice; each may be named once")]
    Twice {
        /// The token.
        token: usize,
        /// The layer.
        layer: usize,
        /// The expert.
        expert: u8,
    },
}
