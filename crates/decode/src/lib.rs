//! The token loop: the one place where the layers meet.
//!
//! An [`Engine`] is built from a file and a budget ([`memory_plan`] splits it), runs steps through all layers
//! ([`step`]) and keeps one conversation's caches. A [`Session`] knows which tokens those caches hold; a
//! [`Generation`] reads a prompt and makes an answer, pulled piece by piece by the caller; a [`Batch`] makes several, each
//! expert read once for all of them. [`Perplexity`],
//! [`Divergence`], [`Calibration`] and [`Bench`] drive the same steps to score a text, to compare two models over it, to see
//! which columns of matrices matter to it, and to measure speed.
//!
//! Never here: arguments, terminals, HTTP.

pub mod batch;
pub mod bench;
pub mod calibration;
mod cgroup;
mod commit;
pub mod config;
mod device;
pub mod divergence;
pub mod draft;
pub mod engine;
pub mod error;
pub mod generation;
pub mod grammar;
mod heap;
pub mod input_sums;
mod io;
pub mod memory_plan;
mod meter;
pub mod observe;
pub mod perplexity;
pub mod prefix;
pub mod sampler;
pub mod session;
pub mod step;
pub mod telemetry;
pub mod text;
mod windows;

pub use batch::{Admitted, Batch, BatchEvent, Ticket};
pub use bench::{Bench, BenchEvent, Pass};
pub use calibration::{Calibration, ReadEvent};
pub use config::{BackendChoice, DiskProbe, EngineConfig, IoChoice, ModelSource, PredictorChoice};
pub use divergence::{Comparison, Divergence, Interval, split_budget};
pub use engine::{
    Engine, ExpertState, Logits, MemoryWatch, Outlook, Parts, TokenTraffic, UseMap, system_memory,
};
pub use error::DecodeError;
pub use forerun_compute::{DeviceName, Inputs};
/// Most guesses that may be asked for.
pub use forerun_scheduler::GUESSES_MAX;
/// Who may say which experts stay.
pub use forerun_scheduler::PolicyName;
/// What a scheduler counts.
pub use forerun_scheduler::SchedulerStats;
pub use generation::{Event, FinishReason, Generation, GenerationConfig, Logprobs, Piece, Report};
pub use grammar::{Grammar, GrammarBegin, GrammarError, GrammarFactory, GrammarSpec, ToolCallSpec};
pub use input_sums::{Collect, InputSums, Sums};
pub use memory_plan::{MemoryPlan, SlotWish, bytes_text, parse_bytes};
pub use observe::RoutingObserver;
pub use perplexity::{Estimate, Perplexity, ScoreEvent, TextLength};
pub use prefix::{PrefixConfig, PrefixDisk, PrefixStats, PrefixWarning};
pub use sampler::{Sampler, SamplerConfig, SamplerError};
pub use session::Session;
pub use step::Schedule;
pub use telemetry::{Decision, Process, Telemetry};
/// Layers below, whose items ours take and give: whoever depends on this crate needs no other.
pub use {
    forerun_compute as compute, forerun_model as model, forerun_scheduler as scheduler,
    forerun_storage as storage,
};
