//! What computes, and on which device.

use clap::ValueEnum;
use forerun_decode::{BackendChoice, DeviceName};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    Cpu,
    Reference,
    Candle,
}

/// What a backend and a device, if one was given, stand for; or why they don't go together.
pub(crate) fn choice(backend: BackendName, device: Option<DeviceName>) -> Result<BackendChoice, String> {
    match (backend, device) {
        (BackendName::Candle, device) => Ok(BackendChoice::Candle(device.unwrap_or_default())),
        (_, Some(device)) => Err(format!(
            "the argument '--device {device}' is for '--backend candle'; the other backends have none"
        )),
        (BackendName::Cpu, None) => Ok(BackendChoice::Cpu),
        (BackendName::Reference, None) => Ok(BackendChoice::EXACT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_candles() {
        let cuda = DeviceName::Cuda(1);
        assert_eq!(choice(BackendName::Candle, Some(cuda)), Ok(BackendChoice::Candle(cuda)));
        assert_eq!(choice(BackendName::Candle, None), Ok(BackendChoice::Candle(DeviceName::Cpu)));
        assert_eq!(choice(BackendName::Cpu, None), Ok(BackendChoice::Cpu));
        assert_eq!(choice(BackendName::Reference, None), Ok(BackendChoice::EXACT));
        for backend in [BackendName::Cpu, BackendName::Reference] {
            let words = choice(backend, Some(cuda)).unwrap_err();
            assert!(words.contains("--device cuda:1") && words.contains("--backend candle"), "{words}");
        }
    }
}
