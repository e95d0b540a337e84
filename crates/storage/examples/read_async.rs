//! Reads experts from tokio tasks, several at a time, and says what came.
//!
//! `cargo run -p forerun-storage --features async --example read_async -- fixtures/pico-q4_k_m.gguf`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_storage::arena::Arena;
use forerun_storage::model::{ExpertKey, ModelShape, SystemClock};
use forerun_storage::{AsyncExpertStore, Catalog, DirectFiles, FileStore, Gguf, PreadBackend, PreadConfig};

/// Experts that are read at once.
const N_SLOTS: usize = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/pico-q4_k_m.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| fixture.into(), PathBuf::from);
    let gguf = Gguf::open(&path)?;
    let shape = ModelShape::from_metadata(&gguf.metadata)?;
    let catalog = Arc::new(Catalog::new(&shape, &gguf)?);
    let (clock, config) = (Arc::new(SystemClock::new()), PreadConfig::default());
    let backend = match DirectFiles::open(gguf.files()) {
        Ok(direct) => PreadBackend::direct(gguf.files(), direct, config, clock.clone())?,
        Err(why) => {
            println!("through the page cache: {why}");
            PreadBackend::new(gguf.files(), config, clock.clone())?
        }
    };
    let store = FileStore::new(Arc::clone(&catalog), gguf.files().clone(), Box::new(backend));
    let arena = Arena::new(N_SLOTS, store.slot_bytes())?;
    let experts = AsyncExpertStore::start(Box::new(store), catalog, arena, clock)?;

    let tasks = shape.layer_ids().map(|layer| {
        let experts = experts.clone();
        tokio::spawn(async move {
            let key = ExpertKey::new(layer.0, 0);
            (key, experts.read(key).await)
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        let (key, record) = task.await?;
        println!("{key}: {} bytes", record?.len());
    }
    Ok(())
}
