//! Which way experts are read, and why.

use std::sync::Arc;

use forerun_model::Clock;
use forerun_storage::{
    Catalog, Content, DirectFiles, Gguf, MemoryBackend, MergeLimits, MmapBackend, PreadBackend, PreadConfig,
    ReadBackend, StoreConfig, Verify,
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
#[derive(Debug)]
pub(crate) struct Io {
    way: Way,
    /// What the store reads together, and checks.
    pub(crate) store: StoreConfig,
    /// Offsets and lengths of reads are multiples of this.
    pub(crate) align_bytes: u32,
    /// What it takes of the budget.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
enum Way {
    Direct(DirectFiles),
    Cached,
    Mmap,
    Memory,
}

/// Settles how experts of `gguf` are read.
pub(crate) fn choose(
    config: &EngineConfig,
    gguf: &Gguf,
    catalog: &Catalog,
    decisions: &mut Vec<Decision>,
) -> Result<Io, DecodeError> {
    let way = way(config, gguf, decisions)?;
    let merge = match &way {
        // Copying from memory or a mapping is as fast in pieces.
        Way::Memory | Way::Mmap => MergeLimits::NONE,
        Way::Direct(_) | Way::Cached => MergeLimits::default(),
    };
    let verify = if config.verify_reads { Verify::Always } else { Verify::Suspicious };
    if config.verify_reads && !catalog.has_checksums() {
        return Err(DecodeError::NoChecksums { path: gguf.files().files()[0].path.clone() });
    }
    let store = StoreConfig { merge, verify };
    let align_bytes = if let Way::Direct(files) = &way { files.align_bytes() } else { 1 };
    let bytes = store.bytes()
        + match &way {
            Way::Memory if is_in_memory(gguf) => 0,
            Way::Memory => gguf.files().files().iter().map(|file| file.len_bytes).sum(),
            Way::Mmap => catalog.slot_bytes(1) as u64 + MAPPED_BYTES,
            Way::Direct(_) | Way::Cached => PreadConfig::default().n_threads as u64 * READER_BYTES,
        };
    Ok(Io { way, store, align_bytes, bytes })
}

fn is_in_memory(gguf: &Gguf) -> bool {
    gguf.files().files().iter().any(|file| matches!(file.content, Content::Bytes(_)))
}

fn way(config: &EngineConfig, gguf: &Gguf, decisions: &mut Vec<Decision>) -> Result<Way, DecodeError> {
    let mut decide = |choice: &str, reason: String| decisions.push(Decision::new("io", choice, reason));
    if is_in_memory(gguf) {
        if !matches!(config.io, IoChoice::Auto | IoChoice::Memory) {
            let reason = "the model is inside the program; name a file with -m".to_owned();
            return Err(DecodeError::Io { io: config.io.name(), reason });
        }
        decide("memory", "the model is inside the program".into());
        return Ok(Way::Memory);
    }
    Ok(match config.io {
        IoChoice::Memory => Way::Memory,
        IoChoice::Mmap => Way::Mmap,
        IoChoice::Cached => Way::Cached,
        IoChoice::Auto | IoChoice::Pread => match DirectFiles::open(gguf.files()) {
            Ok(files) => {
                let block = files.align_bytes();
                decide("pread, direct", format!("past the page cache, in blocks of {block} bytes"));
                Way::Direct(files)
            }
            Err(why) => {
                decide("pread, cached", why);
                Way::Cached
            }
        },
    })
}

impl Io {
    /// Opens the backend over the files of `gguf`.
    pub(crate) fn open(
        self,
        gguf: &Gguf,
        clock: &Arc<dyn Clock>,
    ) -> Result<Box<dyn ReadBackend>, DecodeError> {
        let (files, clock, config) = (gguf.files(), Arc::clone(clock), PreadConfig::default());
        Ok(match self.way {
            Way::Mmap => Box::new(MmapBackend::new(files)?),
            Way::Memory => Box::new(MemoryBackend::open(files)?),
            Way::Cached => Box::new(PreadBackend::new(files, config, clock)?),
            Way::Direct(direct) => Box::new(PreadBackend::direct(files, direct, config, clock)?),
        })
    }
}
