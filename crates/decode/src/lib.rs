//! The token loop: the one place where the layers meet.
//!
//! An [`Engine`] is built from a file and a budget ([`memory_plan`] splits it), runs steps through all layers
//! ([`step`]) and keeps one conversation's caches. A [`Session`] knows which tokens those caches hold; a
//! [`Generation`] reads a prompt and makes an answer, pulled piece by piece by the caller. [`Perplexity`] and [`Bench`]
//! drive the same steps to score a text, and to measure speed.
//!
//! Never here: arguments, terminals, HTTP.

pub mod bench;
pub mod config;
pub mod engine;
pub mod error;
pub mod generation;
mod heap;
mod io;
pub mod memory_plan;
mod meter;
pub mod observe;
pub mod perplexity;
pub mod sampler;
pub mod session;
pub mod step;
pub mod telemetry;
pub mod text;

pub use bench::{Bench, BenchEvent, Pass};
pub use config::{BackendChoice, DiskProbe, EngineConfig, IoChoice, ModelSource, PredictorChoice};
pub use engine::{Engine, Logits, Outlook, Parts, TokenTraffic};
pub use error::DecodeError;
/// Most guesses that may be asked for.
pub use forerun_scheduler::GUESSES_MAX;
/// Who may say which experts stay.
pub use forerun_scheduler::PolicyName;
pub use generation::{Event, FinishReason, Generation, GenerationConfig, Report};
pub use memory_plan::{MemoryPlan, SlotWish, bytes_text, parse_bytes};
pub use observe::RoutingObserver;
pub use perplexity::{Estimate, Perplexity, ScoreEvent, TextLength};
pub use sampler::{Sampler, SamplerConfig, SamplerError};
pub use session::Session;
pub use step::Schedule;
pub use telemetry::{Decision, Process, Telemetry};
