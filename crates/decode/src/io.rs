//! Which way experts are read, and why.

use std::sync::Arc;

use forerun_model::Clock;
use forerun_storage::{
    Catalog, Content, Gguf, MemoryBackend, MmapBackend, PreadBackend, PreadConfig, ReadBackend,
};

use crate::DecodeError;
use crate::config::{EngineConfig, IoChoice};
use crate::telemetry::Decision;

/// Stack and bookkeeping of one reader thread.
const READER_BYTES: u64 = 64 << 10;
/// A touch of a mapped file may make a whole huge page resident until it is dropped, and a range may begin in one
/// and end in another.
const MAPPED_BYTES: u64 = 4 << 20;

/// A choice that can be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Io {
    choice: IoChoice,
    /// What it takes of the budget.
    pub(crate) bytes: u64,
}

/// Settles how experts of `gguf` are read.
pub(crate) fn choose(
    config: &EngineConfig,
    gguf: &Gguf,
    catalog: &Catalog,
    decisions: &mut Vec<Decision>,
) -> Result<Io, DecodeError> {
    let in_memory = gguf.files().files().iter().any(|file| matches!(file.content, Content::Bytes(_)));
    let choice = match config.io {
        IoChoice::Auto if in_memory => {
            let reason = "the model is inside the program".to_owned();
            decisions.push(Decision::new("io", "memory", reason));
            IoChoice::Memory
        }
        IoChoice::Auto => {
            let reason = "reads of whole experts on four threads were the fastest where it was measured; this disk was not".to_owned();
            decisions.push(Decision::new("io", "pread", reason));
            IoChoice::Pread
        }
        choice if in_memory && choice != IoChoice::Memory => {
            let reason = "the model is inside the program; name a file with -m".to_owned();
            return Err(DecodeError::Io { io: choice.name(), reason });
        }
        choice => choice,
    };
    let bytes = match choice {
        IoChoice::Memory if in_memory => 0,
        IoChoice::Memory => gguf.files().files().iter().map(|file| file.len_bytes).sum(),
        IoChoice::Mmap => catalog.slot_bytes(1) as u64 + MAPPED_BYTES,
        _ => PreadConfig::default().n_threads as u64 * READER_BYTES,
    };
    Ok(Io { choice, bytes })
}

impl Io {
    /// Opens the backend over the files of `gguf`.
    pub(crate) fn open(
        self,
        gguf: &Gguf,
        clock: &Arc<dyn Clock>,
    ) -> Result<Box<dyn ReadBackend>, DecodeError> {
        let files = gguf.files();
        Ok(match self.choice {
            IoChoice::Mmap => Box::new(MmapBackend::new(files)?),
            IoChoice::Memory => Box::new(MemoryBackend::open(files)?),
            _ => Box::new(PreadBackend::new(files, PreadConfig::default(), Arc::clone(clock))?),
        })
    }
}
