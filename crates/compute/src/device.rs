//! Names of the devices that a backend may compute on.

use std::fmt;
use std::str::FromStr;

use crate::ComputeError;

/// A device, as it is named on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// This machine's processor.
    #[default]
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
    /// The Metal device of this number.
    Metal(usize),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
            Self::Metal(n) => write!(f, "metal:{n}"),
        }
    }
}

impl FromStr for DeviceName {
    type Err = ComputeError;

    /// Takes `cpu`, `cuda`, `metal`, and a number after a colon; without one it is 0.
    fn from_str(text: &str) -> Result<Self, ComputeError> {
        let unknown = || ComputeError::DeviceName { name: text.to_owned() };
        let (kind, number) = match text.split_once(':') {
            Some((kind, number)) => (kind, number.parse().map_err(|_| unknown())?),
            None => (text, 0),
        };
        match kind {
            "cpu" if !text.contains(':') => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(number)),
            "metal" => Ok(Self::Metal(number)),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for device in [DeviceName::Cpu, DeviceName::Cuda(0), DeviceName::Cuda(3), DeviceName::Metal(1)] {
            assert_eq!(device.to_string().parse::<DeviceName>().unwrap(), device);
        }
        assert_eq!("cuda".parse::<DeviceName>().unwrap(), DeviceName::Cuda(0));
        assert_eq!("metal".parse::<DeviceName>().unwrap(), DeviceName::Metal(0));
    }

    #[test]
    fn other_names_are_refused_with_what_would_be_right() {
        for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "metal:0:1"] {
            let error = name.parse::<DeviceName>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")) && error.contains("cuda:N"), "{error}");
        }
    }
}
