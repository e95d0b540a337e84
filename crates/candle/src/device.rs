//! Devices by name, and what differs between them.

use candle_core::{DType, Device, Tensor};
use forerun_compute::{ComputeError, DeviceName, KvType};

use crate::error::Failure;

/// Opens a device.
///
/// # Errors
/// [`ComputeError::DeviceMissing`] when this build has no code for it, or it isn't there.
pub fn open(name: DeviceName) -> Result<Device, ComputeError> {
    let missing = |reason: String| ComputeError::DeviceMissing { device: name, reason };
    let without = |kind: &str| missing(format!("this build has no {kind}; build with `--features {kind}`"));
    let failed = |error: candle_core::Error| {
        let text = error.to_string();
        missing(text.lines().next().unwrap_or("no reason given").to_owned())
    };
    match name {
        DeviceName::Cpu => Ok(Device::Cpu),
        DeviceName::Cuda(_) if !candle_core::utils::cuda_is_available() => Err(without("cuda")),
        DeviceName::Cuda(ordinal) => Device::new_cuda(ordinal).map_err(failed),
        DeviceName::Metal(_) if !candle_core::utils::metal_is_available() => Err(without("metal")),
        DeviceName::Metal(ordinal) => {
            let n = metal_devices();
            if ordinal >= n {
                return Err(missing(format!(
                    "this machine has {n} Metal devices, of which the first is metal:0"
                )));
            }
            Device::new_metal(ordinal).map_err(failed)
        }
    }
}

/// How many there are: candle takes no other number without a panic.
fn metal_devices() -> usize {
    #[cfg(all(feature = "metal", target_os = "macos"))]
    return candle_metal_kernels::metal::Device::all().len();
    #[cfg(not(all(feature = "metal", target_os = "macos")))]
    0
}

/// A device that was opened.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: DeviceName,
    pub(crate) device: Device,
    /// Whether it reads slots by itself, after the call that asks for it.
    pub(crate) reads_slots: bool,
}

impl Machine {
    pub(crate) fn open(name: DeviceName) -> Result<Self, ComputeError> {
        Ok(Self { name, device: open(name)?, reads_slots: false })
    }

    /// A vector on the device.
    pub(crate) fn vector(&self, values: &[f32]) -> Result<Tensor, Failure> {
        Ok(Tensor::from_slice(values, values.len(), &self.device)?)
    }

    /// Rows of `width` values on the device.
    pub(crate) fn rows(&self, values: &[f32], width: usize) -> Result<Tensor, Failure> {
        Ok(Tensor::from_slice(values, (values.len() / width.max(1), width), &self.device)?)
    }

    /// Indices on the device.
    pub(crate) fn indices(&self, values: &[u32]) -> Result<Tensor, Failure> {
        Ok(Tensor::from_slice(values, values.len(), &self.device)?)
    }
}

/// Most scores of one attention product on a device that is fed whole blocks of queries.
pub(crate) const SCORES_MAX: usize = 1 << 25;

/// Queries whose scores are computed at once, over `seen` keys of `n_heads` heads. On the processor one: how candle's products of
/// floats sum there depends on how many rows they have, and a row's bits may not. Elsewhere as many as fit.
pub(crate) fn query_block(name: DeviceName, n_heads: usize, seen: usize) -> usize {
    match name {
        DeviceName::Cpu => 1,
        DeviceName::Cuda(_) | DeviceName::Metal(_) => (SCORES_MAX / (n_heads * seen).max(1)).max(1),
    }
}

/// The type that keys and values are stored in.
pub(crate) fn stored_type(kv: KvType) -> DType {
    match kv {
        KvType::F32 => DType::F32,
        KvType::F16 => DType::F16,
    }
}

/// All values of a tensor, row by row, once the device has them.
pub(crate) fn read(tensor: &Tensor) -> Result<Vec<f32>, Failure> {
    Ok(tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
}
