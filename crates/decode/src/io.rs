//! Which way experts are read, and why.

mod bites;
mod probed;

use std::num::NonZeroU64;
use std::sync::Arc;

use forerun_model::Clock;
use forerun_storage::probe::DEPTH_MAX;
use forerun_storage::{
    Catalog, Content, DirectFiles, Gguf, Lendable, MemoryBackend, MergeLimits, MmapBackend, PreadBackend,
    PreadConfig, ReadBackend, StoreConfig, Throttled, Verify,
};

use crate::DecodeError;
use crate::config::{EngineConfig, IoChoice};
use crate::memory_plan::{SlotWish, bytes_text};
use crate::telemetry::Decision;
use probed::Probed;

/// Most reader threads: as many as the deepest queue that a probe tries.
const READERS_MAX: u64 = DEPTH_MAX as u64;
/// Stack and bookkeeping of one reader thread.
const READER_BYTES: u64 = 64 << 10;
/// A touch of a mapped file may make a whole huge page resident until it is dropped, and a range may begin in one
/// and end in another.
const MAPPED_BYTES: u64 = 4 << 20;

/// A choice that can be opened.
#[derive(Debug)]
pub(crate) struct Io {
    way: Way,
    /// Reads that the disk sees at once.
    depth: usize,
    limit: Option<NonZeroU64>,
    /// What the store reads together, and checks.
    pub(crate) store: StoreConfig,
    /// Offsets and lengths of reads are multiples of this.
    pub(crate) align_bytes: u32,
    /// What it takes of the budget.
    pub(crate) bytes: u64,
    /// What needs no reading, if the budget holds all experts.
    pub(crate) lendable: Option<Lendable>,
    pub(crate) disk: Disk,
}

/// What a disk gives and is let give, in bytes a second, and how it is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) limit: Option<u64>,
    pub(crate) probed: Option<u64>,
    /// Reads that it is given at once.
    pub(crate) depth: usize,
    /// The longest read for a guess; `None`: a whole expert.
    pub(crate) bite_bytes: Option<u32>,
    /// The files whose direct reads may turn out otherwise later.
    direct: Option<DirectFiles>,
}

impl Disk {
    /// Bytes a second that can be reckoned with.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.limit.into_iter().chain(self.probed).min()
    }

    /// What the system has decided otherwise since.
    pub(crate) fn fallback(&self) -> Option<Decision> {
        let why = self.direct.as_ref().and_then(DirectFiles::fallback)?;
        Some(Decision::new("io", "another way than chosen", why))
    }
}

#[derive(Debug)]
enum Way {
    Uring(DirectFiles),
    Pread(DirectFiles),
    Cached,
    Mmap,
    Memory,
}

/// Settles how experts of `gguf` are read.
pub(crate) fn choose(
    config: &EngineConfig,
    gguf: &Gguf,
    catalog: &Catalog,
    clock: &Arc<dyn Clock>,
    decisions: &mut Vec<Decision>,
) -> Result<Io, DecodeError> {
    let in_memory = is_in_memory(gguf);
    if in_memory && !matches!(config.io, IoChoice::Auto | IoChoice::Memory) {
        let reason = "the model is inside the program; name a file with -m".to_owned();
        return Err(DecodeError::Io { io: config.io.name(), reason });
    }
    let settings = match (config.io, &config.probe) {
        (IoChoice::Auto, Some(probe)) if !in_memory => {
            probed::settings(probe, gguf, catalog, clock, decisions)?
        }
        _ => Probed::default(),
    };
    let way = if in_memory {
        decisions.push(Decision::new("io", "memory", "the model is inside the program".into()));
        Way::Memory
    } else {
        way(config.io, &settings, gguf, decisions)
    };
    let store = store_config(config, &way, &settings, gguf, catalog, decisions)?;
    if let Some(limit) = config.disk_limit {
        let reason = "asked for: reads are never over sooner than such a disk's".into();
        decisions.push(Decision::new("disk limit", format!("{}/s", bytes_text(limit.get())), reason));
    }
    let align_bytes = match &way {
        Way::Uring(files) | Way::Pread(files) => files.align_bytes(),
        Way::Cached | Way::Mmap | Way::Memory => 1,
    };
    let bytes = store.bytes()
        + match &way {
            Way::Memory if in_memory => 0,
            Way::Memory => gguf.files().files().iter().map(|file| file.len_bytes).sum(),
            Way::Mmap => catalog.slot_bytes(1) as u64 + MAPPED_BYTES,
            Way::Uring(_) | Way::Pread(_) | Way::Cached => READERS_MAX * READER_BYTES,
        };
    let lendable = lendable(config, &way, gguf, catalog, decisions);
    let limit = config.disk_limit;
    // Through the page cache, one thread alone gets half of a disk.
    let depth = if matches!(way, Way::Cached) { PreadConfig::default().n_threads } else { settings.depth };
    let direct = match &way {
        Way::Uring(files) | Way::Pread(files) => Some(files.clone()),
        Way::Cached | Way::Mmap | Way::Memory => None,
    };
    let disk = Disk {
        limit: limit.map(NonZeroU64::get),
        probed: settings.bytes_per_second,
        depth,
        bite_bytes: store.bite_bytes,
        direct,
    };
    Ok(Io { way, depth, limit, store, align_bytes, bytes, lendable, disk })
}

/// What is read together, what in pieces, and what is checked.
fn store_config(
    config: &EngineConfig,
    way: &Way,
    settings: &Probed,
    gguf: &Gguf,
    catalog: &Catalog,
    decisions: &mut Vec<Decision>,
) -> Result<StoreConfig, DecodeError> {
    let verify = if config.verify_reads { Verify::Always } else { Verify::Suspicious };
    if config.verify_reads && !catalog.has_checksums() {
        return Err(DecodeError::NoChecksums { path: gguf.files().files()[0].path.clone() });
    }
    Ok(match way {
        // Copying from memory or a mapping is as fast in pieces, and over as soon as it has begun.
        Way::Memory | Way::Mmap => StoreConfig { merge: MergeLimits::NONE, verify, bite_bytes: None },
        Way::Uring(_) | Way::Pread(_) | Way::Cached => {
            let rates = [settings.bytes_per_second, config.disk_limit.map(NonZeroU64::get)];
            let rate = rates.into_iter().flatten().min().filter(|_| config.looks_ahead());
            let bite_bytes = bites::choose(rate, catalog, decisions);
            StoreConfig { merge: settings.merge, verify, bite_bytes }
        }
    })
}

/// What can be used where it is mapped, unless something else was asked for that only copies can give.
fn lendable(
    config: &EngineConfig,
    way: &Way,
    gguf: &Gguf,
    catalog: &Catalog,
    decisions: &mut Vec<Decision>,
) -> Option<Lendable> {
    if !matches!(way, Way::Mmap) {
        return None;
    }
    let copied = match config {
        EngineConfig { slots: SlotWish::PerLayer(_), .. } => "--slots asks for slots",
        EngineConfig { verify_reads: true, .. } => "--verify-reads compares what is read",
        EngineConfig { disk_limit: Some(_), .. } => "--disk-limit slows what is read",
        _ => return Some(Lendable::of(catalog, gguf.files())),
    };
    decisions.push(Decision::new("experts", "copied into slots", copied.to_owned()));
    None
}

fn is_in_memory(gguf: &Gguf) -> bool {
    gguf.files().files().iter().any(|file| matches!(file.content, Content::Bytes(_)))
}

fn way(choice: IoChoice, settings: &Probed, gguf: &Gguf, decisions: &mut Vec<Decision>) -> Way {
    match choice {
        IoChoice::Memory => return Way::Memory,
        IoChoice::Mmap => return Way::Mmap,
        IoChoice::Cached => return Way::Cached,
        IoChoice::Auto if !settings.direct => return Way::Cached,
        IoChoice::Auto | IoChoice::Uring | IoChoice::Pread => {}
    }
    match DirectFiles::open(gguf.files()) {
        Ok(files) if choice == IoChoice::Uring || choice == IoChoice::Auto && settings.uring => {
            Way::Uring(files)
        }
        Ok(files) => Way::Pread(files),
        Err(why) => {
            decisions.push(Decision::new("page cache", "cached", why));
            Way::Cached
        }
    }
}

/// The ring, or why there is none to be had.
#[cfg(target_os = "linux")]
fn ring(
    direct: &DirectFiles,
    config: PreadConfig,
    clock: &Arc<dyn Clock>,
) -> Result<Box<dyn ReadBackend>, String> {
    use forerun_storage::{UringBackend, UringConfig};
    let ring = UringConfig { device_depth: config.n_threads, depth: config.depth };
    // The slots aren't pinned: it would save a third of the little CPU that reads cost, and their memory could no longer
    // be given back when a budget is lowered.
    match UringBackend::new(direct.clone(), ring, None, Arc::clone(clock)) {
        Ok(backend) => Ok(Box::new(backend)),
        Err(why) => Err(why.to_string()),
    }
}

#[cfg(not(target_os = "linux"))]
fn ring(_: &DirectFiles, _: PreadConfig, _: &Arc<dyn Clock>) -> Result<Box<dyn ReadBackend>, String> {
    Err("only Linux has io_uring".to_owned())
}

impl Io {
    /// Opens the backend over the files of `gguf`.
    pub(crate) fn open(
        self,
        gguf: &Gguf,
        clock: &Arc<dyn Clock>,
        decisions: &mut Vec<Decision>,
    ) -> Result<Box<dyn ReadBackend>, DecodeError> {
        let files = gguf.files();
        let config = PreadConfig { n_threads: self.depth, ..PreadConfig::default() };
        let threads = |direct| PreadBackend::direct(files, direct, config, Arc::clone(clock)).map(Box::new);
        let backend: Box<dyn ReadBackend> = match self.way {
            Way::Mmap => Box::new(MmapBackend::new(files)?),
            Way::Memory => Box::new(MemoryBackend::open(files)?),
            Way::Cached => Box::new(PreadBackend::new(files, config, Arc::clone(clock))?),
            Way::Pread(direct) => threads(direct)?,
            Way::Uring(direct) => match ring(&direct, config, clock) {
                Ok(ring) => ring,
                Err(why) => {
                    decisions.retain(|decision| decision.what != "io");
                    decisions.push(Decision::new("io", "pread", why));
                    threads(direct)?
                }
            },
        };
        Ok(match self.limit {
            Some(limit) => Box::new(Throttled::new(backend, limit, Arc::clone(clock))),
            None => backend,
        })
    }
}
