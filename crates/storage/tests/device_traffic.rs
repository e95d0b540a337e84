//! Case 92: the device is read for what was asked, and for nothing else. A hint to the page cache beside direct reads
//! would make it twice as much.
//!
//! The system counts the bytes of a whole process, so this file has one test.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use std::fs::{self, File};
use std::sync::Arc;

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{ExpertKey, Nanos, SystemClock};
use forerun_storage::{
    Catalog, DirectFiles, ExpertStore, FileStore, Gguf, MergeLimits, PreadBackend, PreadConfig, Priority,
    StoreConfig,
};
use rustix::fs::{Advice, fadvise};
use support::Model;

const N_SLOTS: u32 = 8;

/// Bytes that the devices gave this process so far.
fn device_bytes() -> Option<u64> {
    let counts = fs::read_to_string("/proc/self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

struct Rig {
    gguf: Gguf,
    catalog: Arc<Catalog>,
    direct: DirectFiles,
    pages: File,
}

/// What the device gave, what the store read, and what its experts need with their blocks.
#[derive(Debug)]
struct Traffic {
    device: u64,
    store: u64,
    experts: u64,
    weights: u64,
    n_merged: u64,
}

impl Rig {
    /// Reads half of all experts, several at a time.
    fn read(&self, merge: MergeLimits) -> Traffic {
        let config = PreadConfig { n_threads: 2, depth: 64 };
        let clock = Arc::new(SystemClock::new());
        let backend = PreadBackend::direct(self.gguf.files(), self.direct.clone(), config, clock).unwrap();
        let (catalog, files) = (Arc::clone(&self.catalog), self.gguf.files().clone());
        let config = StoreConfig { merge, ..StoreConfig::default() };
        let mut store = FileStore::with_config(catalog, files, Box::new(backend), config);
        let arena = Arena::new(N_SLOTS as usize, store.slot_bytes()).unwrap();
        let n_experts = u16::try_from(self.catalog.n_experts()).unwrap();
        let keys: Vec<ExpertKey> = (0..n_experts).map(|expert| ExpertKey::new(expert % 2, expert)).collect();
        // Or what a hint brought before would hide that it brings it again.
        fadvise(&self.pages, 0, None, Advice::DontNeed).unwrap();
        let before = device_bytes().unwrap();
        let (mut experts, mut weights, mut done) = (0, 0, Vec::new());
        for chunk in keys.chunks(N_SLOTS as usize) {
            for (slot, key) in (0..).map(SlotIdx).zip(chunk) {
                store.begin(*key, arena.try_write(slot).unwrap(), Priority::Demand).unwrap();
                let parts = self.catalog.record(*key).unwrap().parts;
                weights += parts.iter().map(|part| u64::from(part.len_bytes)).sum::<u64>();
            }
            let mut n_over = 0;
            while n_over < chunk.len() {
                store.wait(Nanos::MAX, &mut done);
                n_over += done.len();
                experts += done.drain(..).map(|fetched| fetched.result.unwrap().read_bytes).sum::<u64>();
            }
        }
        let device = device_bytes().unwrap() - before;
        let stats = store.stats();
        Traffic { device, store: stats.read_bytes, experts, weights, n_merged: stats.n_merged }
    }
}

#[test]
fn the_device_reads_what_was_asked_and_no_more() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = Model { hidden: 256, expert_ff: 32, n_experts: 48, ..Model::default() };
    fs::write(file.path(), model.file().write()).unwrap();
    let gguf = Gguf::open(file.path()).unwrap();
    let Some(direct) = DirectFiles::open(gguf.files()).map_err(|why| eprintln!("skipped: {why}")).ok() else {
        return;
    };
    if device_bytes().is_none() {
        return eprintln!("skipped: this system doesn't count what devices read");
    }
    let pages = File::open(file.path()).unwrap();
    pages.sync_all().unwrap();
    let catalog = Arc::new(Catalog::new(&model.shape(), &gguf).unwrap());
    let rig = Rig { gguf, catalog, direct, pages };
    // Once for the program's own pages, which may come from a disk too.
    rig.read(MergeLimits::NONE);
    let apart = rig.read(MergeLimits::NONE);
    if apart.device < apart.store / 2 {
        return eprintln!("skipped: this file system's reads aren't counted ({apart:?})");
    }
    // Three ranges an expert, each widened by less than a block at either end.
    let n_experts = rig.catalog.n_experts() as u64;
    let declared = n_experts * 3 * 2 * u64::from(rig.direct.align_bytes());
    // The file's last block is a whole one for the device, and a part of one for the store.
    assert!(apart.store <= apart.experts && apart.device <= apart.experts, "{apart:?}");
    assert!(apart.experts <= apart.weights + declared, "{apart:?}");
    let together = rig.read(MergeLimits::default());
    let last_block = u64::from(rig.direct.align_bytes());
    assert!(together.n_merged > 0 && together.device <= together.store + last_block, "{together:?}");
}
