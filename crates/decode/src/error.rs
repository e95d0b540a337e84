//! Everything that can end a run, from a file that won't open to a prompt that doesn't fit.

use std::io;
use std::path::PathBuf;

use forerun_arena::ArenaError;
use forerun_compute::ComputeError;
use forerun_model::ShapeError;
use forerun_scheduler::SchedulerError;
use forerun_storage::OpenError;

use crate::config::BackendChoice;
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
    /// Drafts of a prediction block that the file hasn't.
    #[error(
        "`--draft mtp` needs a prediction block (`nextn_predict_layers`), and the file has none; `ngram` needs nothing"
    )]
    NoPredictionBlock,
    /// Something that a backend can't do.
    #[error("{backend} can't {what}; {right} can")]
    BackendLacks {
        /// The backend.
        backend: BackendChoice,
        /// What it can't.
        what: &'static str,
        /// Who can.
        right: &'static str,
    },
    /// A budget can't be lowered while a device holds the slots.
    #[error(
        "a budget can't be lowered while a device holds the slots; open the model without `pin_slots` and not on Metal"
    )]
    SlotsPinned,
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
    /// A drafter that can't be used with the model.
    #[error("{} can't draft for this model", path.display())]
    Drafter {
        /// The drafter's file.
        path: PathBuf,
        /// The key or tensor, what it is, and what would be right.
        source: ComputeError,
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
    /// More rows of logits than memory was planned for.
    #[error("the logits of {rows} rows were asked for, but memory is planned for {rows_max}")]
    LogitRows {
        /// Rows of the step.
        rows: usize,
        /// Rows planned for.
        rows_max: usize,
    },
    /// A text that can't be read.
    #[error("reading the text")]
    ReadText {
        /// The system's reason.
        source: io::Error,
    },
    /// A text that is none.
    #[error("the text is not UTF-8 at byte {offset_bytes}")]
    NotUtf8 {
        /// Where it isn't.
        offset_bytes: u64,
    },
    /// A text that can't be read piece by piece.
    #[error(
        "the text has neither a space between words nor a line end in more than {bytes_max} bytes from byte \
         {offset_bytes} on; break its lines"
    )]
    NoCut {
        /// Where the long stretch begins.
        offset_bytes: u64,
        /// Longest stretch.
        bytes_max: usize,
    },
    /// A text shorter than one window.
    #[error(
        "the text has {n_tokens} tokens, but a window has {window}, and only whole windows count; use a longer \
         text or a smaller --ctx"
    )]
    TextTooShort {
        /// Tokens of the text.
        n_tokens: u64,
        /// Tokens of a window.
        window: usize,
    },
    /// A window in which nothing much is predicted.
    #[error("a window of {window} tokens is too short to score; --ctx must be at least {window_min}")]
    WindowTooShort {
        /// Tokens asked for.
        window: usize,
        /// Fewest tokens.
        window_min: usize,
    },
    /// A text that became shorter between two readings.
    #[error("the text changed while it was scored: it had {n_windows} windows and has fewer now")]
    TextChanged {
        /// Windows at the first reading.
        n_windows: u64,
    },
    /// Two models whose predictions can't be compared.
    #[error("the two models don't have the same vocabulary: {difference}")]
    OtherVocabulary {
        /// The first difference.
        difference: String,
    },
    /// Two models that were opened with different windows.
    #[error("the model's window has {context} tokens, the base's {base_context}; --ctx sets both")]
    OtherContext {
        /// The model's.
        context: usize,
        /// The base's.
        base_context: usize,
    },
    /// A budget that doesn't hold two models at once.
    #[error(
        "the memory budget of {budget} is too small for two models at once; the smallest that works here is \
         {smallest}, of which {base} are the base's",
        budget = crate::memory_plan::bytes_text(*budget_bytes),
        smallest = crate::memory_plan::bytes_text(*smallest_bytes),
        base = crate::memory_plan::bytes_text(*base_bytes)
    )]
    BudgetOfTwo {
        /// What was given.
        budget_bytes: u64,
        /// What would do.
        smallest_bytes: u64,
        /// The base's part of that.
        base_bytes: u64,
    },
    /// A measurement longer than the context.
    #[error("prompt and tokens are {need} together, but the context holds {context}; raise --ctx")]
    BenchContext {
        /// Tokens of a pass.
        need: usize,
        /// Tokens of the context.
        context: usize,
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
    /// A folder for kept conversations that can't be used.
    #[error("can't use {} for conversations that are kept", path.display())]
    PrefixFolder {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Conversations on disk without the memory that they pass through.
    #[error(
        "conversations that are kept on disk pass through memory: {need} at least, and {found} are planned for those that \
         are kept",
        need = crate::memory_plan::bytes_text(*need_bytes),
        found = crate::memory_plan::bytes_text(*found_bytes)
    )]
    PrefixMemory {
        /// Planned.
        found_bytes: u64,
        /// What would do.
        need_bytes: u64,
    },
    /// A model that can't be named, so that what is kept for it on disk wouldn't be found again.
    #[error("the model's file can't be named for conversations on disk; see the decisions for the reason")]
    PrefixModel,
    /// The system.
    #[error("can't {doing}")]
    System {
        /// What was attempted.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}
