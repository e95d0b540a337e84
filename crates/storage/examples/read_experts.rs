//! Reads a few experts of a GGUF file with nothing but this layer: open, catalog, store, slots.
//!
//! `cargo run -p forerun-storage --example read_experts [FILE.gguf]`

#![expect(clippy::print_stdout, reason = "an example shows what it read")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_storage::arena::{Arena, SlotIdx};
use forerun_storage::model::{ExpertKey, ModelShape, Nanos, SystemClock};
use forerun_storage::{Catalog, ExpertStore, FileStore, Gguf, PreadBackend, PreadConfig, Priority};

const N_SLOTS: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/pico-q4_k_m.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| fixture.into(), PathBuf::from);
    let gguf = Gguf::open(&path)?;
    let shape = ModelShape::from_metadata(&gguf.metadata)?;
    let catalog = Arc::new(Catalog::new(&shape, &gguf)?);
    println!("{}: {} layers of {} experts", path.display(), catalog.n_layers(), catalog.n_experts());

    let backend = PreadBackend::new(gguf.files(), PreadConfig::default(), Arc::new(SystemClock::new()))?;
    let mut store = FileStore::new(Arc::clone(&catalog), gguf.files().clone(), Box::new(backend));
    let arena = Arena::new(N_SLOTS as usize, store.slot_bytes())?;
    for (slot, layer) in (0..N_SLOTS).zip(shape.layer_ids()) {
        let lease = arena.try_write(SlotIdx(slot)).ok_or("a new arena's slots are free")?;
        let key = ExpertKey::new(layer.0, 0);
        store
            .begin(key, lease, Priority::Demand)
            .map_err(|refused| format!("{key}: {:?}", refused.reason))?;
    }
    let mut done = Vec::new();
    while done.len() < N_SLOTS.min(u32::try_from(catalog.n_layers())?) as usize {
        store.wait(Nanos::MAX, &mut done);
    }
    for fetched in done {
        let filled = fetched.result?;
        let layout = catalog.layout(fetched.key.layer).ok_or("the layer was read a moment ago")?;
        let record = &filled.lease.bytes()[..layout.record_bytes()];
        let types = format!("{}/{}/{}", layout.gate.quant, layout.up.quant, layout.down.quant);
        println!("{}: {} bytes, {types}, fnv {:016x}", fetched.key, filled.read_bytes, fnv(record));
    }
    println!("{:?}", store.stats());
    Ok(())
}

/// A checksum to compare runs by.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
