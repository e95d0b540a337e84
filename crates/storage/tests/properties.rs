//! What holds for every file: damage never panics, and the three ways to keep experts give the same records.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use support::{Experts, Model};

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{ExpertKey, ModelShape, Nanos, QuantType};
use forerun_storage::{
    Catalog, ExpertStore, FileStore, Gguf, MemoryBackend, OpenError, Priority, Resident, ResidentMode,
    TensorInfo,
};

/// Opens everything there is to open; what comes of it doesn't matter.
fn open_all(bytes: Vec<u8>) -> Result<(), OpenError> {
    let len = bytes.len() as u64;
    let gguf = Gguf::open_bytes("damaged", Bytes::from(bytes))?;
    let end = |tensor: &TensorInfo| tensor.offset_bytes + tensor.len_bytes;
    assert!(gguf.tensors().iter().all(|tensor| end(tensor) <= len), "a tensor ends past the file");
    let shown: usize = gguf.metadata.entries().iter().map(|entry| entry.1.to_string().len()).sum();
    assert!(shown < 1 << 20);
    let shape = ModelShape::from_metadata(&gguf.metadata)?;
    let catalog = Catalog::new(&shape, &gguf)?;
    for layer in shape.layer_ids() {
        let n_experts = u16::try_from(catalog.n_experts()).unwrap();
        let record = catalog.record(ExpertKey::new(layer.0, n_experts - 1)).unwrap();
        assert!(record.parts.iter().all(|part| part.end_bytes() <= len));
    }
    Resident::load(&shape, &gguf, ResidentMode::Owned)?;
    Ok(())
}

/// The record of `key`, part by part.
fn record(gguf: &Gguf, catalog: &Arc<Catalog>, key: ExpertKey) -> [Vec<u8>; 3] {
    let backend = MemoryBackend::open(gguf.files()).unwrap();
    let mut store = FileStore::new(Arc::clone(catalog), gguf.files().clone(), Box::new(backend));
    let arena = Arena::new(1, store.slot_bytes()).unwrap();
    store.begin(key, arena.try_write(SlotIdx(0)).unwrap(), Priority::Demand).unwrap();
    let mut done = Vec::new();
    store.wait(Nanos::MAX, &mut done);
    let filled = done.pop().unwrap().result.unwrap();
    let layout = catalog.layout(key.layer).unwrap();
    assert_eq!(filled.read_bytes, layout.weight_bytes() as u64);
    let part = |start: usize, len: usize| filled.lease.bytes()[start..start + len].to_vec();
    [
        part(filled.parts.gate, layout.gate.bytes()),
        part(filled.parts.up, layout.up.bytes()),
        part(filled.parts.down, layout.down.bytes()),
    ]
}

#[derive(Clone, Debug)]
enum Damage {
    Byte(usize, u8),
    Word(usize, u32),
    Long(usize, u64),
    Cut(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let extreme = prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(1 << 63), Just(1 << 62), any::<u64>()];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, value)| Damage::Byte(at, value)),
        (any::<usize>(), 0..16u32).prop_map(|(at, value)| Damage::Word(at, value)),
        (any::<usize>(), extreme).prop_map(|(at, value)| Damage::Long(at, value)),
        any::<usize>().prop_map(Damage::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, header_bytes: usize, damage: &Damage) {
    let mut put = |at: usize, value: &[u8]| {
        let at = at % header_bytes;
        for (to, from) in bytes.iter_mut().skip(at).zip(value) {
            *to = *from;
        }
    };
    match damage {
        Damage::Byte(at, value) => put(*at, &[*value]),
        Damage::Word(at, value) => put(*at, &value.to_le_bytes()),
        Damage::Long(at, value) => put(*at, &value.to_le_bytes()),
        Damage::Cut(at) => bytes.truncate(at % (bytes.len() + 1)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn damage_never_panics(damages in prop::collection::vec(damage(), 1..6)) {
        let mut bytes = Model::default().file().write();
        // Most of the damage is to the header, where it hurts.
        let header_bytes = 4000.min(bytes.len());
        for damage in &damages {
            apply(&mut bytes, header_bytes, damage);
        }
        let _ = open_all(bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn all_ways_to_keep_experts_give_the_same_records(
        (quant, unit) in prop_oneof![
            Just((QuantType::F32, 1)),
            Just((QuantType::F16, 1)),
            Just((QuantType::Q8_0, 32)),
            Just((QuantType::Q4_0, 32)),
        ],
        hidden in 1u32..4,
        expert_ff in 1u32..4,
        n_experts in 1u32..5,
    ) {
        for experts in [Experts::Stacked, Experts::Fused, Experts::Apart] {
            let model = Model { hidden: hidden * 32, expert_ff: expert_ff * unit, n_experts, quant, experts };
            let gguf = Gguf::open_bytes("model", model.file().write().into()).unwrap();
            let catalog = Arc::new(Catalog::new(&model.shape(), &gguf).unwrap());
            for layer in 0..2 {
                for expert in 0..u16::try_from(n_experts).unwrap() {
                    let key = ExpertKey::new(layer, expert);
                    let expected = [0, 1, 2].map(|part| model.matrix(key, part));
                    prop_assert_eq!(record(&gguf, &catalog, key), expected, "{:?} {}", experts, key);
                }
            }
        }
    }
}

#[test]
fn a_valid_model_opens_in_every_form() {
    for experts in [Experts::Stacked, Experts::Fused, Experts::Apart] {
        open_all(Model { experts, ..Model::default() }.file().write()).unwrap();
    }
}

#[test]
fn ranges_that_touch_are_one() {
    let model = Model { expert_ff: 2, experts: Experts::Fused, ..Model::default() };
    let gguf = Gguf::open_bytes("model", model.file().write().into()).unwrap();
    let catalog = Catalog::new(&model.shape(), &gguf).unwrap();
    let ranges = catalog.placement(ExpertKey::new(0, 1), 1).unwrap().ranges;
    assert_eq!(ranges.iter().map(|placed| placed.range.len_bytes).collect::<Vec<_>>(), [512, 256]);
}

#[test]
fn experts_of_one_layer_share_a_type() {
    let mut file = Model { experts: Experts::Apart, ..Model::default() }.file();
    let odd = file.tensors.iter_mut().find(|tensor| tensor.name == "blk.1.ffn_up.2.weight").unwrap();
    odd.kind = QuantType::F16.id();
    odd.data.truncate(odd.data.len() / 2);
    let gguf = Gguf::open_bytes("model", file.write().into()).unwrap();
    let error = Catalog::new(&Model::default().shape(), &gguf).unwrap_err();
    assert!(matches!(error, OpenError::ExpertType { .. }), "{error}");
}

#[test]
fn wrong_dimensions_are_refused_by_name() {
    for name in ["blk.0.ffn_up_exps.weight", "blk.1.ffn_gate_inp.weight", "output_norm.weight"] {
        let mut file = Model::default().file();
        let tensor = file.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        tensor.dims[0] /= 2;
        let error = open_all(file.write()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("dimensions"), "{error}");
    }
}
