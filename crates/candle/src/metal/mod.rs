//! The project's own Metal kernels, and calls of those of candle that read an expert where it lies.
//!
//! A call is made in `launch` from sizes alone; on a Mac `Pipelines` checks it against its buffers and encodes it. `SlotBuffer`
//! shows an arena's slots to the GPU without a copy; `InFlight` keeps the leases of what was encoded until the GPU is done, so that
//! nobody fills a slot that is being read. `docs/metal.md` says what is proven of this on other machines, and what isn't.

pub mod borrowed;
pub mod host;
pub mod launch;

#[cfg(not(all(feature = "metal", target_os = "macos")))]
mod absent;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod error;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod gpu;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod in_stack;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod pipelines;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod slots;

#[cfg(not(all(feature = "metal", target_os = "macos")))]
pub(crate) use absent::{InSlots, own_kernels};
#[cfg(all(feature = "metal", target_os = "macos"))]
pub use error::MetalError;
#[cfg(all(feature = "metal", target_os = "macos"))]
pub use gpu::Gpu;
#[cfg(all(feature = "metal", target_os = "macos"))]
pub(crate) use in_stack::{InSlots, own_kernels};
#[cfg(all(feature = "metal", target_os = "macos"))]
pub use pipelines::{Bound, Pipelines};
#[cfg(all(feature = "metal", target_os = "macos"))]
pub use slots::{InFlight, SlotBuffer};
