//! Decides which expert sits in which slot, and hands out the ready ones first.
//!
//! A [`Scheduler`] is owned by one thread. [`Scheduler::open_layer`] turns a routing into a [`Turn`]; the token loop
//! pulls from it until every expert of the layer was handed out once. What to do is decided in `plan`, pure functions
//! over the table in `slots`, and what to give up for it by a [`CachePolicy`]; moving is in `scheduler`. What a
//! [`Predictor`] guesses is read as far as it pays (`lookahead`), into slots that nobody needs, and can change nothing but
//! time.
//!
//! Never here: files, threads, a clock of its own, arithmetic on weights.

mod admit;
mod allowance;
mod calibrate;
pub mod draft;
pub mod error;
mod lookahead;
mod pace;
mod plan;
pub mod policy;
pub mod predict;
mod rank;
mod scheduler;
mod slots;
pub mod stats;
mod trial;
pub mod turn;

pub use draft::{DraftConfig, DraftRule, DraftedStep};
pub use error::SchedulerError;
pub use lookahead::{Change, Gate, LookaheadConfig};
pub use policy::{CachePolicy, Keep, PolicyName};
pub use predict::blend::Blend;
pub use predict::none::NoPredictor;
pub use predict::recent::Recent;
pub use predict::router_ahead::RouterAhead;
pub use predict::{GUESSES_MAX, Guess, GuessInput, Predictor, View};
pub use scheduler::{N_SLOTS_MIN, ROWS_GUESSED_MAX, Scheduler, SchedulerConfig};
pub use stats::SchedulerStats;
pub use turn::{Listener, Ready, Turn};
/// Layers below, whose items ours take and give: whoever depends on this crate needs no other.
pub use {forerun_arena as arena, forerun_model as model, forerun_storage as storage};
