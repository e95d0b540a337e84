//! Writes GGUF files for tests, good ones and bad ones, and counts what opening them allocates.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]
#![allow(dead_code, unused_imports, reason = "each test program uses its own part of this")]
#![allow(unreachable_pub, reason = "the test program around this decides what is reachable")]

pub mod allocations;
pub mod model;
pub mod raw;

pub use model::{Experts, Model};
pub use raw::{File, Raw, Tensor};
