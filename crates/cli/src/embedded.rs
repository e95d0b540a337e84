//! The small model inside the program.

use std::path::PathBuf;

use forerun_decode::ModelSource;

/// Whether a model was named.
pub(crate) fn source(model: Option<&PathBuf>) -> Result<ModelSource, Box<dyn std::error::Error>> {
    match model {
        Some(path) => Ok(ModelSource::Path(path.clone())),
        None => embedded(),
    }
}

#[cfg(feature = "embed")]
fn embedded() -> Result<ModelSource, Box<dyn std::error::Error>> {
    static PICO: &[u8] = include_bytes!("../../../fixtures/pico-q4_k_m.gguf");
    Ok(ModelSource::Embedded { name: "pico (embedded)", bytes: bytes::Bytes::from_static(PICO) })
}

#[cfg(not(feature = "embed"))]
fn embedded() -> Result<ModelSource, Box<dyn std::error::Error>> {
    Err("this build carries no model (feature `embed`); name one with -m".into())
}
