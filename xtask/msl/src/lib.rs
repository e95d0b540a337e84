//! Runs the project's Metal kernels on this machine's CPU.
//!
//! `cargo xtask msl` compiles the kernels to a shared library; [`Library`] runs its functions as a GPU would: the threads of a
//! threadgroup are fibers, which wait for each other at barriers and shuffles. The tests of this package hold every kernel to its twin
//! in the compute crate, and whole models that are computed with them to the goldens.
//!
//! Proven so: types, address spaces, arithmetic, bounds of what is written, and that threads don't depend on their order. Not proven:
//! what Apple's compiler makes of the kernels, nor how fast they are.

pub mod error;
mod fibers;
#[path = "../../../crates/candle/src/metal/host.rs"]
pub mod host;
#[path = "../../../crates/candle/src/metal/launch.rs"]
pub mod launch;
mod library;
pub mod products;

pub use error::MslError;
pub use fibers::Order;
pub use library::Library;
