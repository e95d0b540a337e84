//! Experts from a file into slots, through each way to read. Unit of work: bytes of experts.
//!
//! The file has just been opened and is small, so what isn't read directly comes from the system's page cache: this
//! measures the store and its backends. The disk is what `disk` measures.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forerun_arena::{Arena, SlotIdx};
use forerun_model::{ExpertKey, ModelShape, Nanos, SystemClock};
use forerun_storage::{
    Catalog, DirectFiles, ExpertStore, Fetched, FileStore, Gguf, MemoryBackend, MmapBackend, PreadBackend,
    PreadConfig, Priority, ReadBackend,
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/pico-q4_k_m.gguf");
/// Experts of one pass: what a token wants of the small model's layers.
const N_SLOTS: usize = 32;

/// A store over one model, and the slots that it fills.
struct Rig {
    store: FileStore,
    arena: Arena,
    keys: Vec<ExpertKey>,
    done: Vec<Fetched>,
}

impl Rig {
    fn new(gguf: &Gguf, backend: Box<dyn ReadBackend>) -> Self {
        let shape = ModelShape::from_metadata(&gguf.metadata).expect("the fixture has a shape");
        let catalog = Arc::new(Catalog::new(&shape, gguf).expect("the fixture has experts"));
        let store = FileStore::new(Arc::clone(&catalog), gguf.files().clone(), backend);
        let arena = Arena::new(N_SLOTS, store.slot_bytes()).expect("there is memory for a few slots");
        // Far apart in the file, as a router's choices are.
        let experts =
            shape.layer_ids().flat_map(|layer| (0..4).map(move |i| ExpertKey::new(layer.0, 7 * i + 3)));
        let keys = experts.take(N_SLOTS).collect();
        Self { store, arena, keys, done: Vec::new() }
    }

    /// Reads every key once; returns the bytes.
    fn pass(&mut self) -> u64 {
        let (mut n_begun, mut n_done, mut bytes) = (0, 0, 0);
        while n_done < self.keys.len() {
            while let Some(&key) = self.keys.get(n_begun) {
                let slot = SlotIdx(u32::try_from(n_begun).expect("there are few slots"));
                let lease = self.arena.try_write(slot).expect("nobody reads the slot");
                if self.store.begin(key, lease, Priority::Demand).is_err() {
                    break;
                }
                n_begun += 1;
            }
            self.store.wait(Nanos::MAX, &mut self.done);
            for fetched in self.done.drain(..) {
                bytes += fetched.result.expect("the fixture can be read").read_bytes;
                n_done += 1;
            }
        }
        bytes
    }
}

fn read(c: &mut Criterion) {
    let on_disk = Gguf::open(Path::new(MODEL)).expect("the fixture opens");
    let bytes = fs::read(MODEL).expect("the fixture can be read");
    let in_memory = Gguf::open_bytes("pico", bytes.into()).expect("the fixture opens");
    let clock = Arc::new(SystemClock::new());
    let pread = PreadBackend::new(on_disk.files(), PreadConfig::default(), clock).expect("threads start");
    let mmap = MmapBackend::new(on_disk.files()).expect("the fixture can be mapped");
    let memory = MemoryBackend::open(in_memory.files()).expect("the file is in memory");
    let mut rigs = vec![
        ("pread", Rig::new(&on_disk, Box::new(pread))),
        ("mmap", Rig::new(&on_disk, Box::new(mmap))),
        ("memory", Rig::new(&in_memory, Box::new(memory))),
    ];
    if let Ok(direct) = DirectFiles::open(on_disk.files()) {
        let clock = Arc::new(SystemClock::new());
        let direct = PreadBackend::direct(on_disk.files(), direct, PreadConfig::default(), clock);
        rigs.push(("pread, direct", Rig::new(&on_disk, Box::new(direct.expect("threads start")))));
    }
    let mut group = c.benchmark_group("read");
    for (name, mut rig) in rigs {
        group.throughput(Throughput::Bytes(rig.pass()));
        group.bench_function(name, |b| b.iter(|| rig.pass()));
    }
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
