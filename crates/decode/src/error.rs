//! Everything that can end a run, from a file that won't open to a prompt that doesn't fit.

use std::io;
use std::path::PathBuf;

use forerun_arena::ArenaError;
use forerun_compute::ComputeError;
use forerun_model::ShapeError;
use forerun_scheduler::SchedulerError;
use forerun_storage::OpenError;

use crate::memory_plan::MemoryPlan;
use crate::sampler::SamplerError;
use crate::text::TextError;

/// A model that can't be opened, or a request that can't be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The file can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The header describes no model that runs here.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The vocabulary, the template, or a text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A sampler setting.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The arithmetic.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The experts can't be had.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// The slots can't be allocated.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The budget is too small; the plan says where it goes.
    #[error(
        "the memory budget of {budget} is too small; the smallest that works here is {smallest}\n{plan}",
        budget = crate::memory_plan::bytes_text(*budget_bytes),
        smallest = crate::memory_plan::bytes_text(*smallest_bytes)
    )]
    Budget {
        /// What was given.
        budget_bytes: u64,
        /// What would do.
        smallest_bytes: u64,
        /// The smallest plan.
        plan: Box<MemoryPlan>,
    },
    /// More context than the model was trained for, or none.
    #[error("a context of {context} tokens is not possible; this model takes 1 to {context_max}")]
    Context {
        /// What was asked for.
        context: usize,
        /// The model's own.
        context_max: usize,
    },
    /// A prompt longer than the context.
    #[error(
        "the prompt has {prompt_tokens} tokens, but the context holds {context} and at least one must be left \
         for the answer; raise --ctx or shorten the prompt"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A prompt so long that it isn't worth tokenising.
    #[error(
        "the prompt has {prompt_bytes} bytes, so at least {tokens_min} tokens, but the context holds {context}; \
         raise --ctx or shorten the prompt"
    )]
    PromptTooLarge {
        /// Bytes of the prompt.
        prompt_bytes: usize,
        /// Fewest tokens that these can be.
        tokens_min: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A session whose tokens the engine no longer holds.
    #[error(
        "the engine no longer holds this session's {n_tokens} tokens: another session was started; begin anew"
    )]
    StaleSession {
        /// Tokens that the session believes are held.
        n_tokens: usize,
    },
    /// Nothing to answer.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A read backend that can't serve this model.
    #[error("--io {io} can't be used: {reason}")]
    Io {
        /// The backend's name.
        io: &'static str,
        /// Why.
        reason: String,
    },
    /// Reads that can't be verified.
    #[error("{path} has no checksums to verify reads with; `forerun pack` makes a copy that has")]
    NoChecksums {
        /// The model.
        path: PathBuf,
    },
    /// A chat without a template.
    #[error("{path} has no chat template; use --raw to send the prompt as it is")]
    NoTemplate {
        /// The model.
        path: PathBuf,
    },
    /// The system.
    #[error("can't {doing}")]
    System {
        /// What was attempted.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}
