//! Packed files hold what their sources held, bit for bit, and say so when they don't.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use forerun_model::{ExpertKey, ModelShape, QuantType};
use forerun_storage::gguf::{Array, HeaderWriter, TensorSpec, Value};
use forerun_storage::repack::{Checked, Comparison, Existing, Order, Settings, Verification, pack, unpack};
use forerun_storage::{Catalog, Gguf, PackError, TensorInfo};
use proptest::prelude::*;
use support::{Experts, Model};

const FIXTURES: [&str; 3] = ["tiny-a-f32.gguf", "tiny-b-q3_k_m.gguf", "pico-q4_k_m.gguf"];

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

fn packed(source: &Gguf, target: &Path, settings: &Settings) -> Gguf {
    pack(source, target, settings).unwrap().finish().unwrap();
    Gguf::open(target).unwrap()
}

fn unpacked(source: &Gguf, target: &Path) -> Gguf {
    unpack(source, target, &Settings::default()).unwrap().finish().unwrap();
    Gguf::open(target).unwrap()
}

fn verified(gguf: &Gguf) -> Checked {
    let mut verification = Verification::new(gguf).unwrap();
    while verification.step().unwrap() {}
    verification.checked().clone()
}

fn compared(file: &Gguf, other: &Gguf) -> Checked {
    let mut comparison = Comparison::new(file, other);
    while comparison.step().unwrap() {}
    comparison.checked().clone()
}

#[track_caller]
fn same(file: &Gguf, other: &Gguf) {
    for (a, b) in [(file, other), (other, file)] {
        let checked = compared(a, b);
        assert_eq!(checked.differences, [], "{checked:?}");
        assert!(checked.bytes > 0);
    }
}

/// Every layer's experts, last first.
fn reversed(source: &Gguf) -> Order {
    let shape = ModelShape::from_metadata(&source.metadata).unwrap();
    let row: Vec<u32> = (0..u32::try_from(shape.moe.n_experts).unwrap()).rev().collect();
    Order::Given(vec![row; shape.n_layers()])
}

fn bytes(gguf: &Gguf, tensor: &TensorInfo) -> Bytes {
    let file = gguf.files().files()[usize::from(tensor.file)].to_bytes().unwrap();
    let start = usize::try_from(tensor.offset_bytes).unwrap();
    file.slice(start..start + usize::try_from(tensor.len_bytes).unwrap())
}

#[test]
fn every_fixture_comes_back_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    for name in FIXTURES {
        let source = Gguf::open(&fixture(name)).unwrap();
        let want = std::fs::read(fixture(name)).unwrap();
        for order in [Order::File, reversed(&source)] {
            let settings = Settings { order, existing: Existing::Replace, ..Settings::default() };
            let pack = packed(&source, &folder.path().join("packed.gguf"), &settings);
            assert_eq!(verified(&pack).differences, []);
            same(&pack, &source);
            let back = folder.path().join("back.gguf");
            same(&unpacked(&pack, &back), &source);
            let found = std::fs::read(&back).unwrap();
            assert_eq!(found.len(), want.len(), "{name}");
            assert!(found == want, "{name}");
            std::fs::remove_file(&back).unwrap();
        }
    }
}

#[test]
fn a_packed_file_has_one_aligned_record_per_expert() {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::open(&fixture("pico-q4_k_m.gguf")).unwrap();
    let pack = packed(&source, &folder.path().join("p.gguf"), &Settings::default());
    let shape = ModelShape::from_metadata(&pack.metadata).unwrap();
    let catalog = Catalog::new(&shape, &pack).unwrap();
    assert_eq!(pack.tensors().len(), source.tensors().len() - 2 * shape.n_layers());
    let mut end = 0;
    for expert in 0..32 {
        let record = catalog.record(ExpertKey::new(3, expert)).unwrap();
        let whole = record.whole.unwrap();
        assert!(whole.offset_bytes.is_multiple_of(4096) && whole.len_bytes.is_multiple_of(4096));
        assert!(expert == 0 || whole.offset_bytes == end, "records follow each other");
        end = whole.end_bytes();
        for part in record.parts {
            assert!(part.offset_bytes.is_multiple_of(64));
            assert!(part.offset_bytes >= whole.offset_bytes && part.end_bytes() <= end);
        }
        assert!(record.crc32c.is_some());
    }
    assert!(pack.tensors().iter().all(|tensor| tensor.offset_bytes.is_multiple_of(4096)));
    assert!(catalog.slot_bytes(4096).is_multiple_of(4096) && catalog.slot_bytes(4096) >= 127_488);
}

/// Other readers load the data as one piece, with what pads its last tensor: 3584 bytes behind one of 512.
#[test]
fn the_last_tensor_is_padded_as_all_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Model::default().file();
    file = file.tensor("last.weight", &[128], vec![7; 512]);
    let source = Gguf::open_bytes("model", file.write().into()).unwrap();
    let path = folder.path().join("p.gguf");
    let pack = packed(&source, &path, &Settings::default());
    let (last, found) = (pack.tensors().last().unwrap(), std::fs::read(&path).unwrap());
    let end = usize::try_from(last.offset_bytes + last.len_bytes).unwrap();
    assert_eq!((last.name.as_str(), end % 4096), ("last.weight", 512));
    assert_eq!(found.len(), end.next_multiple_of(4096));
    assert!(found[end..].iter().all(|byte| *byte == 0));
    let back = folder.path().join("back.gguf");
    unpacked(&pack, &back);
    assert!(std::fs::read(&back).unwrap() == file.write());
}

#[test]
fn blocks_for_prediction_pass_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::open(&fixture("tiny-a-f32.gguf")).unwrap();
    let pack = packed(&source, &folder.path().join("p.gguf"), &Settings::default());
    let experts = pack.tensor("blk.8.ffn_gate_exps.weight").expect("the block's experts stay plain tensors");
    let before = source.tensor("blk.8.ffn_gate_exps.weight").unwrap();
    assert!(bytes(&pack, experts) == bytes(&source, before));
    assert!(pack.tensor("blk.7.ffn_gate_exps.weight").is_none());
}

/// Writes `source` in two files, experts of a layer on both sides of the cut.
fn split(source: &Gguf, folder: &Path) -> Gguf {
    let all = source.tensors();
    for (no, tensors) in [&all[..all.len() / 2], &all[all.len() / 2..]].into_iter().enumerate() {
        let mut entries = vec![
            ("split.no".to_owned(), Value::U16(u16::try_from(no).unwrap())),
            ("split.count".to_owned(), Value::U16(2)),
            ("split.tensors.count".to_owned(), Value::I32(i32::try_from(all.len()).unwrap())),
        ];
        if no == 0 {
            entries.extend(source.metadata.entries().iter().cloned());
        }
        let header = HeaderWriter::new(entries, tensors.iter().map(TensorSpec::from).collect()).unwrap();
        let mut file = Vec::new();
        header.write(&mut file).unwrap();
        for (i, tensor) in tensors.iter().enumerate() {
            file.resize(usize::try_from(header.offset_bytes(i)).unwrap(), 0);
            file.extend(bytes(source, tensor));
        }
        std::fs::write(folder.join(format!("m-{:05}-of-00002.gguf", no + 1)), file).unwrap();
    }
    Gguf::open(folder).unwrap()
}

#[test]
fn a_split_source_becomes_one_file() {
    let [shards, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for name in FIXTURES {
        let source = Gguf::open(&fixture(name)).unwrap();
        let split = split(&source, shards.path());
        let settings =
            Settings { existing: Existing::Replace, order: reversed(&source), ..Settings::default() };
        let pack = packed(&split, &folder.path().join("p.gguf"), &settings);
        assert!(pack.metadata.entries().iter().all(|entry| !entry.0.starts_with("split.")));
        same(&pack, &split);
        let back = folder.path().join("back.gguf");
        unpacked(&pack, &back);
        assert!(std::fs::read(&back).unwrap() == std::fs::read(fixture(name)).unwrap(), "{name}");
        std::fs::remove_file(&back).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_way_to_keep_experts_comes_back(
        (quant, unit) in prop_oneof![
            Just((QuantType::F32, 1)),
            Just((QuantType::F16, 1)),
            Just((QuantType::Q8_0, 32)),
            Just((QuantType::MXFP4, 32)),
        ],
        hidden in 1u32..4,
        expert_ff in 1u32..4,
        n_experts in 1u32..6,
        step_bytes in prop_oneof![Just(1_u64), 1_u64..20_000, Just(1 << 24)],
    ) {
        let folder = tempfile::tempdir().unwrap();
        for experts in [Experts::Stacked, Experts::Fused, Experts::Apart] {
            let model = Model { hidden: hidden * 32, expert_ff: expert_ff * unit, n_experts, quant, experts };
            let written = model.file().write();
            let source = Gguf::open_bytes("model", written.clone().into()).unwrap();
            let settings = Settings {
                order: reversed(&source),
                existing: Existing::Replace,
                step_bytes,
                ..Settings::default()
            };
            let pack = packed(&source, &folder.path().join("p.gguf"), &settings);
            prop_assert_eq!(verified(&pack).differences, []);
            same(&pack, &source);
            let catalog = Catalog::new(&model.shape(), &pack).unwrap();
            let file = pack.files().files()[0].to_bytes().unwrap();
            for key in (0..u16::try_from(n_experts).unwrap()).map(|expert| ExpertKey::new(1, expert)) {
                let record = catalog.record(key).unwrap();
                for (i, part) in record.parts.into_iter().enumerate() {
                    let start = usize::try_from(part.offset_bytes).unwrap();
                    let found = &file[start..start + part.len_bytes as usize];
                    prop_assert_eq!(found, &model.matrix(key, i)[..]);
                }
                let whole = record.whole.unwrap();
                let start = usize::try_from(whole.offset_bytes).unwrap();
                let found = crc32c::crc32c(&file[start..start + whole.len_bytes as usize]);
                prop_assert_eq!(record.crc32c, Some(found));
            }
            // Packed again, in the ids' order, it is what packing the source so gives, and comes back as well.
            let again = Settings { order: Order::File, step_bytes, ..Settings::default() };
            let paths = ["again.gguf", "at-once.gguf", "back.gguf"].map(|name| folder.path().join(name));
            let again = [packed(&pack, &paths[0], &again), packed(&source, &paths[1], &again)];
            prop_assert_eq!(again[0].metadata.entries(), again[1].metadata.entries());
            prop_assert!(std::fs::read(&paths[0]).unwrap() == std::fs::read(&paths[1]).unwrap());
            same(&unpacked(&again[0], &paths[2]), &source);
            let back = std::fs::read(&paths[2]).unwrap();
            prop_assert!(back == written);
            paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }
}

#[test]
fn a_flipped_bit_is_found_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::open(&fixture("tiny-b-q3_k_m.gguf")).unwrap();
    let path = folder.path().join("p.gguf");
    let pack = packed(&source, &path, &Settings::default());
    let shape = ModelShape::from_metadata(&pack.metadata).unwrap();
    let record = Catalog::new(&shape, &pack).unwrap().record(ExpertKey::new(2, 5)).unwrap();
    let norm = pack.tensor("output_norm.weight").unwrap().offset_bytes + 3;
    let up = record.parts[1].offset_bytes + 17;
    let mut damaged = std::fs::read(&path).unwrap();
    for at in [norm, up, record.whole.unwrap().end_bytes() - 1] {
        damaged[usize::try_from(at).unwrap()] ^= 4;
    }
    let damaged = Gguf::open_bytes("damaged.gguf", damaged.into()).unwrap();
    let found = verified(&damaged);
    assert_eq!((found.n_differences, found.n_experts), (1, shape.n_layers() * shape.moe.n_experts));
    assert_eq!(found.differences[0].name, "layer 2, expert 5");
    let found = compared(&damaged, &source).differences;
    let places: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.offset_bytes)).collect();
    assert_eq!(places, [("tensor output_norm.weight", Some(norm)), ("layer 2, expert 5, ffn_up", Some(up))]);
    for (i, job) in [pack_damaged as fn(&Gguf, &Path) -> PackError, unpack_damaged].into_iter().enumerate() {
        let target = folder.path().join(format!("target-{i}"));
        let error = job(&damaged, &target);
        assert!(matches!(error, PackError::Checksum { key, .. } if key == ExpertKey::new(2, 5)), "{error}");
        assert!(error.to_string().contains("damaged.gguf"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of either");
}

fn pack_damaged(source: &Gguf, target: &Path) -> PackError {
    pack(source, target, &Settings::default()).unwrap().finish().unwrap_err()
}

fn unpack_damaged(source: &Gguf, target: &Path) -> PackError {
    // Padding isn't read when unpacking, so only the matrix tells.
    unpack(source, target, &Settings::default()).unwrap().finish().unwrap_err()
}

/// The packed small model with one key changed.
fn with_key(model: &Model, key: &str, change: impl Fn(Option<Value>) -> Option<Value>) -> Gguf {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::open_bytes("model", model.file().write().into()).unwrap();
    let pack = packed(&source, &folder.path().join("p.gguf"), &Settings::default());
    let mut entries: Vec<_> = pack.metadata.entries().iter().filter(|e| e.0 != key).cloned().collect();
    let before = pack.metadata.value(key).cloned();
    entries.extend(change(before).map(|value| (key.to_owned(), value)));
    let header = HeaderWriter::new(entries, pack.tensors().iter().map(TensorSpec::from).collect()).unwrap();
    let mut file = Vec::new();
    header.write(&mut file).unwrap();
    for (i, tensor) in pack.tensors().iter().enumerate() {
        file.resize(usize::try_from(header.offset_bytes(i)).unwrap(), 0);
        file.extend(bytes(&pack, tensor));
    }
    Gguf::open_bytes("changed", file.into()).unwrap()
}

#[test]
fn every_number_of_a_packed_file_is_checked() {
    let set = |at: usize, to: u32| {
        move |value: Option<Value>| {
            let Some(Value::Array(Array::U32(mut list))) = value else { panic!("a list of u32") };
            list[at] = to;
            Some(Value::Array(Array::U32(list)))
        }
    };
    let model = Model::default();
    let refused = |gguf: &Gguf, words: &str| {
        let error = Catalog::new(&model.shape(), gguf).unwrap_err().to_string();
        assert!(error.contains(words), "{error} should say {words}");
    };
    for (at, to, words) in [(0, 999, "999"), (4, 4, "tensor type"), (0, 1, "offsets")] {
        refused(&with_key(&model, "forerun.pack.types", set(at, to)), words);
    }
    refused(&with_key(&model, "forerun.pack.offsets", set(5, 64)), "holds 64 for layer 1");
    refused(&with_key(&model, "forerun.pack.order", set(1, 0)), "holds 0 for layer 0");
    refused(&with_key(&model, "forerun.pack.order", set(4, 3)), "one of 0..3, each once");
    for key in ["types", "offsets", "order", "crc32c", "layout"] {
        let key = format!("forerun.pack.{key}");
        refused(&with_key(&model, &key, |_| None), "absent");
        refused(&with_key(&model, &key, |_| Some(Value::U32(1))), &key);
        refused(&with_key(&model, &key, |_| Some(Value::Array(Array::U32(vec![0])))), &key);
    }
    refused(&with_key(&model, "forerun.pack.version", |_| Some(Value::U32(2))), "it must be 1");
    refused(&with_key(&model, "forerun.pack.version", |_| None), "ffn_gate_exps");
    let short = with_key(&model, "general.alignment", |_| Some(Value::U32(32)));
    let error = Catalog::new(&model.shape(), &short);
    assert!(error.is_ok() || error.unwrap_err().to_string().contains("multiple of 4096"));
}

#[test]
fn a_source_list_that_cannot_be_followed_is_refused() {
    let model = Model::default();
    let change = |f: fn(&mut Vec<String>)| {
        move |value: Option<Value>| {
            let Some(Value::Array(Array::Text(mut list))) = value else { panic!("a list of texts") };
            f(&mut list);
            Some(Value::Array(Array::Text(list)))
        }
    };
    let folder = tempfile::tempdir().unwrap();
    for (f, words) in [
        ((|list| list.push("surprise".into())) as fn(&mut Vec<String>), "`surprise` is neither"),
        (|list| list.push(list[0].clone()), "occurs twice"),
        (|list| list.retain(|name| name != "blk.1.ffn_up_exps.weight"), "ffn_up of expert 0 of layer 1"),
        (|list| list.push("blk.0.ffn_gate_up_exps.weight".into()), "ffn_gate of expert 0 of layer 0"),
        (|list| list.push("blk.0.ffn_up.77.weight".into()), "`blk.0.ffn_up.77.weight` is neither"),
        (|list| list.push("blk.0.ffn_experts.packed".into()), "`blk.0.ffn_experts.packed` is neither"),
    ] {
        let gguf = with_key(&model, "forerun.pack.source_tensors", change(f));
        let error = unpack(&gguf, &folder.path().join("x"), &Settings::default()).err().unwrap().to_string();
        assert!(error.contains(words), "{error} should say {words}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn targets_that_must_not_be_written_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [path, target] = ["a.gguf", "b.gguf"].map(|name| folder.path().join(name));
    std::fs::copy(fixture("tiny-b-q3_k_m.gguf"), &path).unwrap();
    let source = Gguf::open(&path).unwrap();
    let replace = Settings { existing: Existing::Replace, ..Settings::default() };
    let refusal = |target: &Path, settings: &Settings| pack(&source, target, settings).err().unwrap();
    assert!(matches!(refusal(&path, &replace), PackError::TargetIsSource { .. }));
    let link = folder.path().join("link.gguf");
    std::fs::hard_link(&path, &link).unwrap();
    assert!(matches!(refusal(&link, &replace), PackError::TargetIsSource { .. }));
    assert!(matches!(refusal(folder.path(), &replace), PackError::TargetName { .. }));
    std::fs::write(&target, "mine").unwrap();
    assert!(matches!(refusal(&target, &Settings::default()), PackError::TargetExists { .. }));
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "a refusal leaves nothing");
    assert!(matches!(unpack(&source, &folder.path().join("c"), &replace), Err(PackError::NotPacked { .. })));
    let first = pack(&source, &target, &replace).unwrap();
    assert!(matches!(refusal(&target, &replace), PackError::Busy { .. }));
    first.finish().unwrap();
    assert_eq!(verified(&Gguf::open(&target).unwrap()).n_differences, 0);
}

#[test]
fn a_source_that_changes_meanwhile_gives_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let [path, target] = ["a.gguf", "b.gguf"].map(|name| folder.path().join(name));
    std::fs::copy(fixture("tiny-b-q3_k_m.gguf"), &path).unwrap();
    let source = Gguf::open(&path).unwrap();
    let job = pack(&source, &target, &Settings::default()).unwrap();
    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(source.files().files()[0].len_bytes + 1).unwrap();
    assert!(matches!(job.finish(), Err(PackError::SourceChanged { .. })));
    let job = pack(&source, &target, &Settings::default()).unwrap();
    file.set_len(1000).unwrap();
    let error = job.finish().unwrap_err().to_string();
    assert!(error.contains("a.gguf"), "{error}");
    assert!(!target.exists());
}
