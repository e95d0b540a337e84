//! The fixture models open, and their experts and resident tensors are found.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use forerun_model::{ExpertKey, LayerId, ModelShape};
use forerun_storage::gguf::{Array, Value};
use forerun_storage::{Catalog, Gguf, Resident, ResidentMode};

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

#[test]
fn every_fixture_opens_whole() {
    for name in ["tiny-a-f32.gguf", "tiny-b-q3_k_m.gguf", "pico-q4_k_m.gguf"] {
        let gguf = Gguf::open(&fixture(name)).unwrap();
        let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
        let catalog = Catalog::new(&shape, &gguf).unwrap();
        let mapped = Resident::load(&shape, &gguf, ResidentMode::Mapped).unwrap();
        let owned = Resident::load(&shape, &gguf, ResidentMode::Owned).unwrap();
        assert_eq!(mapped.unknown(), [""; 0], "{name}");
        for (a, b) in mapped.tensors().iter().zip(owned.tensors()) {
            assert_eq!((&a.name, &a.bytes), (&b.name, &b.bytes));
        }
        let prediction = format!("blk.{}.", shape.n_layers());
        let trunk = gguf.tensors().iter().filter(|tensor| !tensor.name.starts_with(&prediction));
        let all: u64 = trunk.map(|tensor| tensor.len_bytes).sum();
        assert_eq!(all, mapped.len_bytes() + catalog.expert_bytes(), "{name}");
    }
}

#[test]
fn a_model_in_memory_is_the_model_in_the_file() {
    let path = fixture("pico-q4_k_m.gguf");
    let from_file = Gguf::open(&path).unwrap();
    let from_memory = Gguf::open_bytes("pico", Bytes::from(std::fs::read(&path).unwrap())).unwrap();
    assert_eq!(from_file.tensors(), from_memory.tensors());
    assert_eq!(from_file.metadata.entries(), from_memory.metadata.entries());
    let shape = ModelShape::from_metadata(&from_memory.metadata).unwrap();
    let [a, b] = [&from_file, &from_memory].map(|g| Resident::load(&shape, g, ResidentMode::Mapped).unwrap());
    assert!(a.tensors().iter().zip(b.tensors()).all(|(a, b)| a.bytes == b.bytes));
}

#[test]
fn records_of_layers_differ_in_size() {
    let gguf = Gguf::open(&fixture("pico-q4_k_m.gguf")).unwrap();
    let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Catalog::new(&shape, &gguf).unwrap();
    let sizes: Vec<usize> =
        shape.layer_ids().map(|layer| catalog.layout(layer).unwrap().record_bytes()).collect();
    assert!(sizes.contains(&110_592) && sizes.contains(&127_488), "{sizes:?}");
    assert_eq!(catalog.slot_bytes(1), 127_488);
    assert_eq!(catalog.placement(ExpertKey::new(0, 0), 1).unwrap().ranges.len(), 3);
    let n_experts = u16::try_from(catalog.n_experts()).unwrap();
    assert!(catalog.record(ExpertKey::new(0, n_experts)).is_none());
    assert!(catalog.record(ExpertKey::new(u16::MAX, 0)).is_none());
    assert!(catalog.layout(LayerId(u16::MAX)).is_none());
}

#[test]
fn taken_arrays_are_gone() {
    let mut gguf = Gguf::open(&fixture("pico-q4_k_m.gguf")).unwrap();
    let tokens = gguf.metadata.take("tokenizer.ggml.tokens").unwrap();
    assert!(matches!(tokens, Value::Array(Array::Text(texts)) if !texts.is_empty()));
    assert!(gguf.metadata.take("tokenizer.ggml.tokens").is_none());
    assert!(gguf.metadata.value("general.architecture").is_some());
}
