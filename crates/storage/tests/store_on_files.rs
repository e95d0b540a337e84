//! The real store over real files: every backend hands out the bytes that the file has, and survives losing them.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{ExpertKey, LayerId, ModelShape, Nanos, SystemClock, names};
use forerun_storage::file_store::RETRIES_MAX;
use forerun_storage::repack::{Settings, pack};
use forerun_storage::{
    Catalog, ExpertStore, FileStore, Filled, Gguf, MemoryBackend, MmapBackend, PreadBackend, PreadConfig,
    Priority, ReadBackend, StoreError,
};

const N_SLOTS: u32 = 6;

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

struct Rig {
    gguf: Gguf,
    catalog: Arc<Catalog>,
    store: FileStore,
    arena: Arena,
}

impl Rig {
    fn new(gguf: Gguf, backend: Box<dyn ReadBackend>) -> Self {
        let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
        let catalog = Arc::new(Catalog::new(&shape, &gguf).unwrap());
        let store = FileStore::new(Arc::clone(&catalog), gguf.files().clone(), backend);
        let arena = Arena::new(N_SLOTS as usize, store.slot_bytes()).unwrap();
        Self { gguf, catalog, store, arena }
    }

    fn pread(path: &Path) -> Self {
        let gguf = Gguf::open(path).unwrap();
        let clock = Arc::new(SystemClock::new());
        let backend = PreadBackend::new(gguf.files(), PreadConfig::default(), clock).unwrap();
        Self::new(gguf, Box::new(backend))
    }

    /// Reads all experts, several at a time, and gives each to `look`.
    fn read_all(&mut self, mut look: impl FnMut(&Self, ExpertKey, Result<Filled, StoreError>)) {
        let counts = [self.catalog.n_layers(), self.catalog.n_experts()];
        let [n_layers, n_experts] = counts.map(|n| u16::try_from(n).unwrap());
        let keys = (0..n_layers).flat_map(|layer| (0..n_experts).map(move |e| ExpertKey::new(layer, e)));
        let keys: Vec<ExpertKey> = keys.collect();
        let mut done = Vec::new();
        for chunk in keys.chunks(N_SLOTS as usize) {
            for (slot, key) in (0..N_SLOTS).zip(chunk) {
                self.store
                    .begin(*key, self.arena.try_write(SlotIdx(slot)).unwrap(), Priority::Demand)
                    .unwrap();
            }
            let mut n_over = 0;
            while n_over < chunk.len() {
                self.store.wait(Nanos::MAX, &mut done);
                n_over += done.len();
                for fetched in done.drain(..) {
                    look(self, fetched.key, fetched.result);
                }
            }
        }
    }

    /// A part of `key` as it lies in the file.
    fn part<'a>(&self, file: &'a [u8], key: ExpertKey, part: &str) -> &'a [u8] {
        let tensor = self.gguf.tensor(&names::block(key.layer, part)).unwrap();
        let len = usize::try_from(tensor.len_bytes).unwrap() / self.catalog.n_experts();
        let start = usize::try_from(tensor.offset_bytes).unwrap() + len * key.expert.idx();
        &file[start..start + len]
    }
}

#[test]
fn every_backend_hands_out_the_bytes_of_the_file() {
    let path = fixture("tiny-b-q3_k_m.gguf");
    let file = fs::read(&path).unwrap();
    let in_memory = Gguf::open_bytes("tiny", file.clone().into()).unwrap();
    let memory = MemoryBackend::open(in_memory.files()).unwrap();
    let on_disk = Gguf::open(&path).unwrap();
    let mmap = MmapBackend::new(on_disk.files()).unwrap();
    let rigs = [Rig::pread(&path), Rig::new(in_memory, Box::new(memory)), Rig::new(on_disk, Box::new(mmap))];
    for mut rig in rigs {
        let mut n_seen = 0;
        rig.read_all(|rig, key, result| {
            let filled = result.unwrap();
            for (part, start) in [
                ("ffn_gate_exps", filled.parts.gate),
                ("ffn_up_exps", filled.parts.up),
                ("ffn_down_exps", filled.parts.down),
            ] {
                let expected = rig.part(&file, key, part);
                assert!(filled.lease.bytes()[start..].starts_with(expected), "{key} {part}");
            }
            n_seen += 1;
        });
        let stats = rig.store.stats();
        assert_eq!(n_seen, rig.catalog.n_layers() * rig.catalog.n_experts());
        assert!(stats.n_reads < 3 * n_seen as u64 && stats.n_merged > 0, "neighbours are read together");
        assert!(stats.read_bytes >= rig.catalog.expert_bytes());
    }
}

/// Without checksums a file that was written to can't be trusted again, whatever is in it now.
#[test]
fn a_file_that_changes_while_running_is_not_trusted() {
    let copy = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    fs::copy(fixture("tiny-b-q3_k_m.gguf"), copy.path()).unwrap();
    let whole = fs::read(copy.path()).unwrap();
    let mut rig = Rig::pread(copy.path());
    rig.read_all(|_, _, result| assert!(result.is_ok()));
    let last = LayerId(u16::try_from(rig.catalog.n_layers() - 1).unwrap());
    let cut = rig.gguf.tensor(&names::block(last, "ffn_up_exps")).unwrap().offset_bytes + 100;
    OpenOptions::new().write(true).open(copy.path()).unwrap().set_len(cut).unwrap();
    let (mut n_truncated, mut n_changed) = (0, 0);
    rig.read_all(|rig, key, result| match result {
        Err(StoreError::Truncated { key: named, path, offset_bytes, .. }) => {
            assert!(named == key && path == copy.path() && offset_bytes >= cut);
            n_truncated += 1;
        }
        Err(StoreError::Changed { key: named, path }) => {
            assert!(named == key && path == copy.path());
            n_changed += 1;
        }
        Ok(_) => panic!("{key} was trusted after {} reads", rig.store.stats().n_reads),
        Err(error) => panic!("{error}"),
    });
    assert!(n_truncated > 0 && n_changed > 0);
    assert_eq!(rig.store.stats().n_failed, n_truncated + n_changed);
    fs::write(copy.path(), whole).unwrap();
    rig.read_all(|_, _, result| assert!(matches!(result, Err(StoreError::Changed { .. }))));
}

/// Case 96: another file under the old name is none of this model's business.
#[test]
fn a_file_that_is_replaced_under_its_name_is_read_on() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("model.gguf"), folder.path().join("other"));
    fs::copy(fixture("tiny-b-q3_k_m.gguf"), &path).unwrap();
    let file = fs::read(&path).unwrap();
    let mut rig = Rig::pread(&path);
    fs::write(&other, "not a model").unwrap();
    fs::rename(&other, &path).unwrap();
    rig.read_all(|rig, key, result| {
        let filled = result.unwrap();
        let expected = rig.part(&file, key, "ffn_gate_exps");
        assert!(filled.lease.bytes()[filled.parts.gate..].starts_with(expected), "{key}");
    });
    fs::remove_file(&path).unwrap();
    rig.read_all(|_, _, result| assert!(result.is_ok()));
}

/// With checksums a file that was written to is read on as long as its experts are what they were; damage is named.
#[test]
fn a_packed_file_is_trusted_by_its_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed.gguf");
    let source = Gguf::open(&fixture("tiny-b-q3_k_m.gguf")).unwrap();
    pack(&source, &path, &Settings::default()).unwrap().finish().unwrap();
    let mut rig = Rig::pread(&path);
    rig.read_all(|_, _, result| assert!(result.is_ok()));
    // Touched, and no byte changed.
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    rig.read_all(|_, _, result| assert!(result.is_ok()));
    assert_eq!(rig.store.stats().n_corrupt, 0);
    // One bit of one expert.
    let bad = ExpertKey::new(1, 3);
    let at = rig.catalog.record(bad).unwrap().parts[2].offset_bytes + 7;
    let mut bytes = fs::read(&path).unwrap();
    bytes[usize::try_from(at).unwrap()] ^= 4;
    fs::write(&path, &bytes).unwrap();
    rig.read_all(|_, key, result| match result {
        Ok(_) => assert!(key != bad),
        Err(StoreError::Corrupt { key: named, path: file, offset_bytes, found, expected }) => {
            assert!(named == bad && key == bad && file == path && offset_bytes <= at && found != expected);
        }
        Err(error) => panic!("{error}"),
    });
    let stats = rig.store.stats();
    assert_eq!((stats.n_failed, stats.n_corrupt), (1, u64::from(RETRIES_MAX)));
    // Healed, and the same store goes on.
    bytes[usize::try_from(at).unwrap()] ^= 4;
    fs::write(&path, &bytes).unwrap();
    rig.read_all(|_, _, result| assert!(result.is_ok()));
}
