//! Decides which expert sits in which slot, and hands out the ready ones first.
//!
//! A [`Scheduler`] is owned by one thread. [`Scheduler::open_layer`] turns a routing into a [`Turn`]; the token loop
//! pulls from it until every expert of the layer was handed out once. What to do is decided in `plan`, pure functions over
//! the table in `slots`, and what to give up for it by a [`CachePolicy`]; moving is in `scheduler`. What a [`Predictor`] guesses fills slots that nobody needs and can
//! change nothing but time.
//!
//! Never here: files, threads, a clock of its own, arithmetic on weights.

pub mod error;
mod plan;
pub mod policy;
pub mod predict;
mod rank;
mod scheduler;
mod slots;
pub mod stats;
pub mod turn;

pub use error::SchedulerError;
pub use policy::{CachePolicy, Keep, PolicyName};
pub use predict::none::NoPredictor;
pub use predict::{GUESSES_MAX, Guess, GuessInput, Predictor};
pub use scheduler::{N_SLOTS_MIN, Scheduler, SchedulerConfig};
pub use stats::SchedulerStats;
pub use turn::{Ready, Turn};
