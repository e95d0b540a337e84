//! A model's layers over candle's devices: its CPU, CUDA and Metal.
//!
//! [`CandleStack`] is a [`Backend`](forerun_compute::Backend) like [`forerun_compute::Stack`], with the same bookkeeping and the same
//! limits, over `candle_core` tensors. Resident matrices are copied to the device when it is made; an expert's bytes
//! are copied out of its slot for each use, but on [Metal](metal), where they are read in it. In a layer it waits for the device once, for the router's logits; with page-locked slots also once an expert.
//!
//! On candle's CPU device a row's bits depend on its sequence's tokens alone, as everywhere. GPU kernels choose by the number of
//! rows, so there a bound holds instead.
//!
//! Never here: which expert comes next and why it is in memory, files, sampling.

mod attention;
mod bytes;
mod chunks;
mod delta_net;
mod device;
mod entry;
mod error;
mod experts;
mod matrix;
pub mod metal;
mod mixer;
mod ops;
#[cfg(feature = "cuda")]
mod pinned;
mod recurrence;
mod saved;
mod stack;
mod state;
mod step;
mod weights;

pub use device::open;
pub use stack::CandleStack;
