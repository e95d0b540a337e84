//! Any bytes: opened as a packed model, its own keys read, every record's place looked up, and its checksums verified.
//!
//! `cargo +nightly fuzz run packed_open corpus/packed_open seeds/packed_open -- -max_len=131072 -max_total_time=30`

#![no_main]

use std::path::Path;

use bytes::Bytes;
use forerun_model::{ExpertKey, ModelShape};
use forerun_storage::repack::{self, Settings, Verification};
use forerun_storage::{Catalog, Gguf, packed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(gguf) = Gguf::open_bytes("fuzz", Bytes::copy_from_slice(data)) else { return };
    if !packed::is_packed(&gguf.metadata) {
        return;
    }
    // In a folder that isn't there, so that both end once everything is planned.
    let target = Path::new("absent-folder/target.gguf");
    assert!(repack::pack(&gguf, target, &Settings::default()).is_err());
    assert!(repack::unpack(&gguf, target, &Settings::default()).is_err());
    let Ok(shape) = ModelShape::from_metadata(&gguf.metadata) else { return };
    let Ok(catalog) = Catalog::new(&shape, &gguf) else { return };
    let len = data.len() as u64;
    for layer in shape.layer_ids() {
        let mut places: Vec<u64> = (0..u16::try_from(catalog.n_experts()).unwrap())
            .map(|expert| {
                let record = catalog.record(ExpertKey::new(layer.0, expert)).unwrap();
                let whole = record.whole.unwrap();
                assert!(whole.end_bytes() <= len && whole.offset_bytes.is_multiple_of(4096));
                for part in record.parts {
                    assert!(part.offset_bytes >= whole.offset_bytes && part.end_bytes() <= whole.end_bytes());
                }
                whole.offset_bytes
            })
            .collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), catalog.n_experts(), "two experts in one place");
    }
    let mut verification = Verification::new(&gguf).unwrap();
    while verification.step().unwrap() {}
});
