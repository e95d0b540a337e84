//! Any bytes: opened as a model, and where they are one, with all their experts and resident tensors.
//!
//! `cargo +nightly fuzz run gguf_open corpus/gguf_open seeds/gguf_open -- -max_len=65536 -max_total_time=30`

#![no_main]

use bytes::Bytes;
use forerun_model::{ExpertKey, ModelShape};
use forerun_storage::{Catalog, Gguf, Resident, ResidentMode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(gguf) = Gguf::open_bytes("fuzz", Bytes::copy_from_slice(data)) else { return };
    for tensor in gguf.tensors() {
        assert!(tensor.offset_bytes + tensor.len_bytes <= data.len() as u64);
    }
    for (_, value) in gguf.metadata.entries() {
        assert!(value.to_string().len() < 1 << 20);
    }
    let Ok(shape) = ModelShape::from_metadata(&gguf.metadata) else { return };
    if let Ok(catalog) = Catalog::new(&shape, &gguf) {
        for layer in shape.layer_ids() {
            let last = u16::try_from(catalog.n_experts() - 1).unwrap();
            for align_bytes in [1, 512, 4096] {
                let placement = catalog.placement(ExpertKey::new(layer.0, last), align_bytes).unwrap();
                assert!(placement.slot_bytes() <= catalog.slot_bytes(align_bytes));
                for placed in placement.ranges {
                    let end = placed.range.offset_bytes + u64::from(placed.need_bytes);
                    assert!(end <= data.len() as u64);
                }
            }
        }
    }
    let _ = Resident::load(&shape, &gguf, ResidentMode::Owned);
});
