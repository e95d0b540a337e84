//! A machine from one seed: time that moves when told, flash with faults, a backend that checks every byte.
//!
//! [`SimFlash`] is a [`ReadBackend`](forerun_storage::ReadBackend) over bytes in memory and a [`VirtualClock`];
//! [`ToyModel`] writes a small expert file that the real catalog reads, and [`ToyBackend`] computes with it and panics
//! at the first wrong byte. [`Machine`] puts them around the real store and the real scheduler. A seed decides slots,
//! latency, depth, guesses and faults; it must never decide a result.
//!
//! [`Replay`] asks another question: how long the real scheduler would take over a recorded [`Trace`], on a [`Disk`] and
//! a computer that are described by a few numbers.
//!
//! Never here: real files, real time, threads.

pub mod checker;
pub mod clock;
pub mod disks;
pub mod error;
pub mod faults;
pub mod flash;
pub mod guess;
pub mod hits;
pub mod machine;
pub mod recording;
pub mod replay;
pub mod rng;
pub mod routing_stats;
pub mod toy;
pub mod toy_file;
pub mod trace;
pub mod watched;
pub mod workload;

pub use checker::Checker;
pub use clock::VirtualClock;
pub use disks::Disk;
pub use error::{RunError, TraceError};
pub use faults::Faults;
pub use flash::{FlashHandle, FlashLog, FlashProfile, SimFlash};
pub use guess::{Guessing, Oracle, RandomPredictor};
pub use machine::{Machine, Progress, Rig};
pub use recording::Recording;
pub use replay::{
    Acceptance, Compute, Confidence, Lengths, Replay, ReplayReport, Shares, Speculation, SpeculationReport,
    Told,
};
pub use rng::Rng;
pub use routing_stats::Guesses;
pub use toy::ToyBackend;
pub use toy_file::ToyModel;
pub use trace::{Document, Trace, TraceShape};
pub use watched::Watched;
pub use workload::{Synthetic, Workload};
/// Layers below, whose items ours take and give: whoever depends on this crate needs no other.
pub use {
    forerun_compute as compute, forerun_model as model, forerun_scheduler as scheduler,
    forerun_storage as storage,
};
