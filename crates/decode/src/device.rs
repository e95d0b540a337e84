//! Candle's devices in builds that have them, and what a build says that hasn't.

use forerun_arena::Arena;
#[cfg(feature = "candle")]
use forerun_candle::CandleStack;
use forerun_compute::{Backend, ComputeError, DeviceName, StackBytes, StackConfig, Taps, Weights};
use forerun_model::{ExpertLayout, ModelShape};

use crate::DecodeError;
use crate::config::{BackendChoice, EngineConfig};

/// Whether this build has what `config` wants of its backend.
///
/// # Errors
/// [`ComputeError::DeviceMissing`] names the feature that the build lacks, [`DecodeError::BackendLacks`] what the backend
/// can't do.
pub(crate) fn check(config: &EngineConfig) -> Result<(), DecodeError> {
    let backend = config.backend;
    if config.pin_slots && !matches!(backend, BackendChoice::Candle(DeviceName::Cuda(_))) {
        let (what, right) = ("take page-locked slots", "--backend candle --device cuda:N");
        return Err(DecodeError::BackendLacks { backend, what, right });
    }
    let BackendChoice::Candle(device) = backend else { return Ok(()) };
    if !cfg!(feature = "candle") {
        return Err(missing(device).into());
    }
    if config.collects.is_some() {
        let (what, right) = ("show what its matrices are multiplied with", "--backend cpu or reference");
        return Err(DecodeError::BackendLacks { backend, what, right });
    }
    Ok(())
}

/// A build without any of candle's devices.
fn missing(device: DeviceName) -> ComputeError {
    let feature = match device {
        DeviceName::Cpu => "candle",
        DeviceName::Cuda(_) => "cuda",
        DeviceName::Metal(_) => "metal",
    };
    let reason = format!("this program was built without it; `cargo build --features {feature}` has it");
    ComputeError::DeviceMissing { device, reason }
}

/// What the backend's stack allocates, its weights apart.
pub(crate) fn stack_bytes(
    backend: BackendChoice,
    config: &StackConfig,
    (shape, experts): (&ModelShape, &[ExpertLayout]),
) -> StackBytes {
    match backend {
        // What is tapped is the drafter's.
        #[cfg(feature = "candle")]
        BackendChoice::Candle(device) => CandleStack::bytes(shape, experts, config, &Taps::default(), device),
        _ => {
            let _ = experts;
            config.bytes(shape)
        }
    }
}

/// Whether the device holds on to the slots' memory: a GPU that reads them by itself does.
pub(crate) fn keeps_slots(config: &EngineConfig) -> bool {
    config.pin_slots || matches!(config.backend, BackendChoice::Candle(DeviceName::Metal(_)))
}

/// How often a step's logits are held: candle's are a tensor before they are read.
pub(crate) fn logits_held(backend: BackendChoice) -> usize {
    if matches!(backend, BackendChoice::Candle(_)) { 2 } else { 1 }
}

/// What the backend's own copies of resident weights take.
pub(crate) fn copies_bytes(backend: BackendChoice, weights: &Weights) -> u64 {
    match backend {
        #[cfg(feature = "candle")]
        BackendChoice::Candle(_) => CandleStack::weight_bytes(weights),
        _ => {
            let _ = weights;
            0
        }
    }
}

/// A stack on `device` with copies of `weights`; page-locks the slots that it is given.
///
/// # Errors
/// [`ComputeError`]: no such device, or a model that it can't compute.
#[cfg(feature = "candle")]
pub(crate) fn stack(
    device: DeviceName,
    weights: &Weights,
    config: StackConfig,
    (taps, slots): (Taps, Option<&Arena>),
) -> Result<Box<dyn Backend + Send>, ComputeError> {
    let mut stack = CandleStack::new(weights, config, taps, device)?;
    if let Some(slots) = slots {
        stack.pin(slots)?;
    }
    Ok(Box::new(stack))
}

/// A build without any of candle's devices.
///
/// # Errors
/// [`ComputeError::DeviceMissing`], always.
#[cfg(not(feature = "candle"))]
pub(crate) fn stack(
    device: DeviceName,
    _: &Weights,
    _: StackConfig,
    _: (Taps, Option<&Arena>),
) -> Result<Box<dyn Backend + Send>, ComputeError> {
    Err(missing(device))
}
