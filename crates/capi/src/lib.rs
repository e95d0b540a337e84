//! Forerun for programs in C: a model is opened, generates with a callback, is cancelled from another thread, and closed.
//!
//! `include/forerun.h` is the contract; it is written by hand, and a test compares it with [`abi`] field by field. What C hands
//! over is looked at in `borrow` only; [`exports`] has the functions, each a call of an [`Engine`], which is
//! safe Rust and knows no pointer. A panic ends at the boundary, and so does the engine that had it.
//!
//! Never here: printing, signals, the environment. A program that embeds this has its own ways.

pub mod abi;
mod answer;
mod borrow;
mod engine;
pub mod error;
pub mod exports;
mod last_error;
mod request;

pub use engine::Engine;
pub use error::CapiError;
