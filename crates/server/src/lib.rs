//! A model over HTTP: requests in, answers streamed out.
//!
//! A request in some API's shape becomes an `Ask`, that becomes jobs, the [`Desk`] hands jobs to the one thread that
//! owns the engine, and an `Answer` turns what comes back into deltas, which the API renders in its own shape. So a
//! new API is a parser and a renderer; it knows neither engine nor queue.
//!
//! Never here: arguments, files, a terminal; arithmetic, schedules. Tokio never waits for the engine, and the engine never
//! waits for a reader.

mod answer;
mod anthropic;
mod ask;
mod chance;
pub mod config;
mod date;
pub mod desk;
pub mod error;
mod fields;
mod health;
mod http;
mod metrics;
mod ollama;
mod openai;
mod page;
mod refusal;
pub mod server;
pub mod upstream;

pub use config::{Keys, Limits, ServerConfig};
pub use desk::{Answering, Bound, Defaults, Desk, DeskConfig, Facts, Failure, Job, Piece, Refused, Status};
pub use error::ServerError;
pub use server::Server;
pub use upstream::{Patience, UpstreamConfig, UpstreamKey, UpstreamRule, UpstreamUrl};
