//! The layers of a model on a device, over borrowed expert bytes.
//!
//! A [`Backend`] is driven one step at a time, one direction, by a loop that knows the schedule; results of experts
//! are kept by row and rank and added in rank order, so that arrival order can't change a bit. [`Reference`] is the
//! definition of right, [`Cpu`] the fast one; both are a [`Stack`] over different [`products`].
//!
//! Never here: which expert comes next and why it is in memory, files, sampling.

pub mod activation;
pub mod attention;
pub mod backend;
pub mod delta_net;
pub mod dequant;
pub mod device;
pub mod dspark;
pub mod error;
pub mod kernels;
pub mod kv_cache;
mod loops;
pub mod moments;
pub mod ops;
pub mod products;
pub mod quantise;
pub mod rope;
pub mod router;
pub mod sequence;
pub mod stack;
pub mod stepping;
pub mod tap;
pub mod tensor;
pub mod weights;
pub mod workers;

pub use backend::{Backend, ExpertJob, Part, Row, Scores, SequenceIdx, Step, StepOutput, Taps};
pub use device::DeviceName;
pub use dspark::{Dspark, DsparkBytes, DsparkConfig, DsparkWeights};
pub use error::ComputeError;
pub use kv_cache::KvType;
pub use products::Rounding;
pub use sequence::Checkpoint;
pub use stack::{Cpu, Reference, Stack, StackBytes, StackConfig};
pub use tap::{InputTap, Inputs, TapPoint};
pub use tensor::Tensor;
pub use weights::Weights;
/// Layers below, whose items ours take and give: whoever depends on this crate needs no other.
pub use {forerun_arena as arena, forerun_model as model};
