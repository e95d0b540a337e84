//! What can go wrong on the way, before it is known on which device.

use forerun_compute::{ComputeError, DeviceName};

/// A device's failure, or a refusal that has its name already.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What the device said.
    #[error(transparent)]
    Device(#[from] candle_core::Error),
    /// Everything else.
    #[error(transparent)]
    Compute(#[from] ComputeError),
}

impl Failure {
    /// The error for whoever drives the backend. What a device says may have a backtrace behind its first line, which stays
    /// behind.
    pub(crate) fn on(self, device: DeviceName) -> ComputeError {
        match self {
            Self::Device(error) => {
                let text = error.to_string();
                let reason = text.lines().next().unwrap_or("no reason given").to_owned();
                ComputeError::Device { device, reason }
            }
            Self::Compute(error) => error,
        }
    }
}
