//! The async face: the same bytes, errors for who asked, and futures that may be dropped.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forerun_arena::Arena;
use forerun_model::{ExpertKey, ModelShape, SystemClock};
use forerun_storage::{AsyncExpertStore, Catalog, FileStore, Gguf, MergeLimits, StoreConfig, StoreError};
use forerun_storage::{PreadBackend, PreadConfig, Throttled};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny-b-q3_k_m.gguf")
}

struct Rig {
    experts: AsyncExpertStore,
    catalog: Arc<Catalog>,
    file: Vec<u8>,
}

/// Experts behind a disk of so many bytes per second.
fn rig(bytes_per_second: u64) -> Rig {
    let bytes_per_second = NonZeroU64::new(bytes_per_second).unwrap();
    let gguf = Gguf::open(&fixture()).unwrap();
    let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Arc::new(Catalog::new(&shape, &gguf).unwrap());
    let clock = Arc::new(SystemClock::new());
    let backend = PreadBackend::new(gguf.files(), PreadConfig::default(), clock.clone()).unwrap();
    let backend = Throttled::new(backend, bytes_per_second, clock.clone());
    let config = StoreConfig { merge: MergeLimits::NONE, ..StoreConfig::default() };
    let files = gguf.files().clone();
    let store = FileStore::with_config(Arc::clone(&catalog), files, Box::new(backend), config);
    let arena = Arena::new(3, store.slot_bytes()).unwrap();
    let experts = AsyncExpertStore::start(Box::new(store), Arc::clone(&catalog), arena, clock).unwrap();
    Rig { experts, catalog, file: std::fs::read(fixture()).unwrap() }
}

impl Rig {
    fn keys(&self) -> Vec<ExpertKey> {
        let counts = [self.catalog.n_layers(), self.catalog.n_experts()];
        let [n_layers, n_experts] = counts.map(|n| u16::try_from(n).unwrap());
        (0..n_layers).flat_map(|layer| (0..n_experts).map(move |e| ExpertKey::new(layer, e))).collect()
    }

    fn check(&self, key: ExpertKey, record: &[u8]) {
        let at = self.experts.layout(key.layer).unwrap().offsets();
        let parts = self.catalog.record(key).unwrap().parts;
        for (part, at) in parts.into_iter().zip([at.gate, at.up, at.down]) {
            let start = usize::try_from(part.offset_bytes).unwrap();
            let expected = &self.file[start..start + part.len_bytes as usize];
            assert!(record[at..].starts_with(expected), "{key}");
        }
    }
}

#[tokio::test]
async fn every_expert_arrives_whoever_asks_how_often() {
    let rig = Arc::new(rig(1 << 40));
    let tasks: Vec<_> = (0..3)
        .flat_map(|_| rig.keys())
        .map(|key| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.check(key, &rig.experts.read(key).await.unwrap()) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn what_is_not_there_is_an_error_for_who_asked() {
    let rig = rig(1 << 40);
    let key = ExpertKey::new(9999, 0);
    assert!(matches!(rig.experts.read(key).await, Err(StoreError::UnknownExpert { .. })));
    assert!(rig.experts.layout(key.layer).is_none());
    let key = rig.keys()[0];
    rig.check(key, &rig.experts.read(key).await.unwrap());
}

#[tokio::test]
async fn a_dropped_future_costs_no_slot() {
    let rig = rig(400_000);
    for _ in 0..5 {
        for key in rig.keys().into_iter().take(6) {
            let read = tokio::time::timeout(Duration::from_micros(300), rig.experts.read(key)).await;
            if let Ok(record) = read {
                rig.check(key, &record.unwrap());
            }
        }
    }
    for key in rig.keys().into_iter().rev().take(4) {
        rig.check(key, &rig.experts.read(key).await.unwrap());
    }
}
