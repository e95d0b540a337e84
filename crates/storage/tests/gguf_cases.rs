//! Malformed headers, each known from a failure of some reader: refused by name, quickly, and without much memory.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use support::allocations::{open_both, refused};
use support::raw::{ARRAY, BOOL, F32, I32, TEXT, U8, U32, U64};
use support::{File, Model, Raw};

use forerun_model::{KeyValue, KeyValues, ModelShape};
use forerun_storage::gguf::{Array, Value};

const HUGE: u64 = 1 << 63;

/// A header with one tensor, its data behind it.
fn one_tensor(dims: &[u64], kind: u32, data_bytes: usize) -> Vec<u8> {
    Raw::start(1, 0).tensor("blk.0.x", dims, kind, 0).pad(32).zeros(data_bytes).0
}

/// A header with one entry.
fn one_entry(entry: Raw) -> Vec<u8> {
    Raw::start(0, 1).bytes(&entry.0).0
}

#[test]
fn an_array_longer_than_any_file_is_refused() {
    let bytes = Raw::start(0, 1).array("a", U32, HUGE).0;
    refused(&bytes, &["a needs", "are left in the file"]);
    refused(&bytes[..43], &["a needs", "are left in the file"]);
}

#[test]
fn an_array_longer_than_any_model_needs_is_refused() {
    let bytes = |n: u32| one_entry(Raw::default().array("a", U8, n.into()).zeros(n as usize));
    let gguf = open_both(&bytes(1 << 20)).unwrap();
    let (widened, allocated) = support::allocations::counted(|| gguf.metadata.get("a"));
    assert!(matches!(widened, Some(KeyValue::Integers(list)) if list.len() == 1 << 20));
    assert!(allocated <= 16 << 20, "{allocated} bytes");
    refused(&bytes((1 << 20) + 1), &["`a`", "1048577 entries", "at most 1048576"]);
}

#[test]
fn an_array_where_a_number_belongs_is_refused_without_a_copy() {
    // Widened, each of these arrays would take more than the bound of `refused` allows beyond the header's own share.
    let array = |key: &str| Raw::default().array(key, U8, 1 << 20).zeros(1 << 20);
    refused(&one_entry(array("general.alignment")), &["general.alignment", "power of two"]);
    let raw = Raw::start(0, 2).bytes(&array("split.count").0).bytes(&array("split.no").0);
    open_both(&raw.0).unwrap();
}

#[test]
fn counts_and_lengths_past_the_end_are_refused() {
    refused(&Raw::start(0, HUGE).entry("a", U32).u32(1).0, &["list of metadata keys"]);
    refused(&Raw::start(HUGE, 1).entry("a", U32).u32(1).0, &["list of tensors"]);
    refused(&one_entry(Raw::default().entry("a", TEXT).u64(HUGE)), &["a needs", "0 are left"]);
    refused(&one_entry(Raw::default().entry("a", TEXT).u64(4).bytes(b"abc")), &["a needs 4 bytes", "only 3"]);
    refused(&one_entry(Raw::default().u64(HUGE).zeros(9)), &["a metadata key needs"]);
    let inner = Raw::default().array("a", ARRAY, 1).u32(U32).u64(1 << 62);
    refused(&one_entry(inner), &["a needs", "are left"]);
    refused(&Raw::start(1, 0).u64(HUGE).zeros(40).0, &["a tensor name needs"]);
}

#[test]
fn every_truncation_of_a_valid_file_is_refused() {
    let bytes = Model::default().file().write();
    let last_needed = bytes.len() - 32;
    for len in (0..last_needed).step_by(61).chain(0..200) {
        open_both(&bytes[..len]).expect_err("a truncated file must be refused");
    }
}

#[test]
fn a_size_that_wraps_is_refused_before_any_offset_is_looked_at() {
    let wraps = (1 << 42) + 1;
    // Its offset is bad too, and must not be what the message is about.
    let bytes = Raw::start(1, 0).tensor("x", &[1152, wraps], 0, 7).pad(32).zeros(64).0;
    refused(&bytes, &["`x`", "is it truncated"]);
    refused(&one_tensor(&[1 << 32, 1 << 32], 0, 64), &["blk.0.x", "no file can hold"]);
    refused(&one_tensor(&[u64::MAX], 0, 64), &["blk.0.x", "no file can hold"]);
}

#[test]
fn a_size_that_rounds_up_to_zero_is_refused() {
    let raw = Raw::start(2, 0).tensor("a", &[64], 0, 0);
    let raw = raw.tensor("b", &[4, 1_073_741_823, 1_073_741_825, 1], 0, 256).pad(32).zeros(256);
    refused(&raw.0, &["`b`"]);
}

#[test]
fn tensors_have_one_to_four_dimensions() {
    for n in [1, 4] {
        open_both(&one_tensor(&vec![2; n], 0, 64)).unwrap();
    }
    for n in [0usize, 5, 8, 9] {
        refused(&one_tensor(&vec![2; n], 0, 64), &["blk.0.x", &n.to_string(), "1..=4"]);
    }
    let bytes = Raw::start(1, 0).text("x").u32(1 << 31).zeros(64).0;
    refused(&bytes, &["`x`", "2147483648", "1..=4"]);
}

#[test]
fn unknown_and_removed_tensor_types_are_refused() {
    open_both(&one_tensor(&[32], 39, 64)).unwrap();
    for kind in [4, 5, 200, 999, 1 << 31, u32::MAX, (-1i32).cast_unsigned(), (-39i32).cast_unsigned()] {
        refused(&one_tensor(&[32], kind, 64), &["blk.0.x", &kind.to_string()]);
    }
}

#[test]
fn rows_are_whole_blocks() {
    refused(&one_tensor(&[31], 39, 64), &["blk.0.x", "31", "MXFP4", "32"]);
    refused(&one_tensor(&[255, 2], 12, 4096), &["Q4_K", "256"]);
}

#[test]
fn arrays_are_read_in_the_width_that_they_declare() {
    for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.suppress_tokens"] {
        let entry = |kind| Raw::default().array(key, kind, 300).zeros(300);
        let gguf = open_both(&one_entry(entry(U8))).unwrap();
        let Some(KeyValue::Integers(list)) = gguf.metadata.get(key) else { panic!("{key} is bytes") };
        assert_eq!(list.len(), 300);
        refused(&one_entry(entry(F32)), &[key, "needs 1200 bytes", "only 300"]);
    }
}

#[test]
fn a_huge_vocabulary_size_allocates_nothing() {
    let mut file = File { entries: Model::default().metadata(), ..File::default() };
    file.entries.pop();
    let file = file.entry(Raw::default().entry("qwen35moe.vocab_size", U32).u32(i32::MAX.cast_unsigned()));
    let gguf = open_both(&file.write()).unwrap();
    let (shape, allocated) = support::allocations::counted(|| ModelShape::from_metadata(&gguf.metadata));
    assert!(shape.unwrap_err().to_string().contains("tokenizer.ggml.tokens"));
    assert!(allocated < 1 << 20, "{allocated} bytes");
}

#[test]
fn alignment_is_a_power_of_two_of_any_integer_type() {
    let with = |kind, value: &[u8]| one_entry(Raw::default().entry("general.alignment", kind).bytes(value));
    open_both(&with(I32, &32i32.to_le_bytes())).unwrap();
    open_both(&with(U64, &64u64.to_le_bytes())).unwrap();
    open_both(&with(U8, &[1])).unwrap();
    open_both(&with(U32, &(1u32 << 20).to_le_bytes())).unwrap();
    for value in [0u32, 3, 48, 1 << 21, 1 << 31, u32::MAX] {
        refused(&with(U32, &value.to_le_bytes()), &["general.alignment", &value.to_string()]);
    }
    refused(&with(I32, &(-32i32).to_le_bytes()), &["general.alignment", "-32"]);
    refused(&with(U64, &u64::MAX.to_le_bytes()), &["general.alignment"]);
    refused(&with(F32, &32f32.to_le_bytes()), &["general.alignment"]);
}

#[test]
fn tensors_begin_where_the_alignment_says() {
    for alignment in [16u32, 32, 64] {
        for len in 0..32 {
            let mut file = File { alignment: alignment as usize, ..File::default() }
                .entry(Raw::default().entry("general.alignment", U32).u32(alignment))
                .entry(Raw::default().entry("note", TEXT).text("n".repeat(len)));
            for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
                file = file.tensor(name, &[4], vec![byte; 16]);
            }
            let bytes = file.write();
            let gguf = open_both(&bytes).unwrap();
            for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
                let start = usize::try_from(gguf.tensor(name).unwrap().offset_bytes).unwrap();
                assert_eq!(bytes[start..start + 16], [byte; 16], "{name}, alignment {alignment}, {len}");
            }
        }
    }
}

#[test]
fn arrays_nest_once_and_no_deeper() {
    let nested = |depth: usize| {
        let raw = Raw::default().entry("a", ARRAY);
        let raw = (1..depth).fold(raw, |raw, _| raw.u32(ARRAY).u64(1));
        one_entry(raw.u32(U32).u64(1).u32(7))
    };
    let gguf = open_both(&nested(2)).unwrap();
    assert_eq!(gguf.metadata.get("a"), Some(KeyValue::Nested));
    assert_eq!(gguf.metadata.value("a").unwrap().to_string(), "[[7]]");
    for depth in [3, 10, 1_000, 100_000] {
        refused(&nested(depth), &["`a`", "nests"]);
    }
}

#[test]
fn a_tensor_larger_than_its_file_is_refused() {
    refused(&one_tensor(&[1 << 20], 1, 64), &["blk.0.x", "2097152 bytes", "the file has 128"]);
    open_both(&one_tensor(&[16], 0, 64)).unwrap();
    let one_short = one_tensor(&[16], 0, 63);
    refused(&one_short, &["blk.0.x", "64 bytes up to byte 128", "the file has 127"]);
}

#[test]
fn a_large_vocabulary_is_read_in_well_under_a_second() {
    const N: u64 = 250_000;
    let tokens = Raw::default().array("tokenizer.ggml.tokens", TEXT, N);
    let tokens = (0..N).fold(tokens, |raw, i| raw.text(format!("token{i}")));
    let merges = Raw::default().array("tokenizer.ggml.merges", TEXT, N);
    let merges = (0..N).fold(merges, |raw, i| raw.text(format!("to ken{i}")));
    let types = (0..N).fold(Raw::default().array("tokenizer.ggml.token_type", I32, N), |raw, _| raw.i32(1));
    let bytes = File::default().entry(tokens).entry(merges).entry(types).write();
    let start = std::time::Instant::now();
    let mut gguf = open_both(&bytes).unwrap();
    // Twice, and a file written and compared in between.
    assert!(start.elapsed().as_millis() < 1_500, "took {:?}", start.elapsed());
    let Some(Value::Array(Array::Text(tokens))) = gguf.metadata.take("tokenizer.ggml.tokens") else {
        panic!("the tokens are texts");
    };
    assert_eq!((tokens.len() as u64, tokens[7].as_str()), (N, "token7"));
    assert!(gguf.metadata.value("tokenizer.ggml.tokens").is_none());
}

#[test]
fn keys_and_tensors_occur_once() {
    let entry = |value: &str| Raw::default().entry("general.architecture", TEXT).text(value);
    let twice = File::default().entry(entry("qwen35moe")).entry(entry("llama")).write();
    refused(&twice, &["general.architecture", "twice"]);
    let data = || vec![0; 16];
    refused(&File::default().tensor("x", &[4], data()).tensor("x", &[4], data()).write(), &["`x`", "twice"]);
}

#[test]
fn tensors_share_no_bytes() {
    let two = |first: (u64, u64), second: (u64, u64)| {
        let raw = Raw::start(2, 0).tensor("a", &[first.1], 0, first.0).tensor("b", &[second.1], 0, second.0);
        raw.pad(32).zeros(256).0
    };
    open_both(&two((0, 8), (32, 8))).unwrap();
    open_both(&two((64, 8), (32, 8))).unwrap();
    for (first, second) in [((0, 9), (32, 8)), ((0, 8), (0, 8)), ((0, 64), (32, 4)), ((32, 8), (0, 9))] {
        refused(&two(first, second), &["`a`", "`b`", "overlap"]);
    }
    refused(&two((0, 4), (33, 4)), &["`b`", "33", "32"]);
    for offset in [HUGE, HUGE - 32, u64::MAX - 31, 1 << 62] {
        refused(&two((0, 4), (offset, 4)), &["`b`", "is it truncated"]);
    }
}

#[test]
fn empty_dimensions_and_bad_names_are_refused() {
    refused(&one_tensor(&[0], 0, 64), &["blk.0.x", "[0]"]);
    refused(&one_tensor(&[4, 0, 4], 0, 64), &["blk.0.x", "[4, 0, 4]"]);
    let named = |name: &[u8]| Raw::start(1, 0).tensor(name, &[4], 0, 0).pad(32).zeros(64).0;
    open_both(&named(&[b'n'; 1024])).unwrap();
    refused(&named(b""), &["a tensor name", "0 bytes"]);
    for control in ["a\0b", "a\x1b[2Jb", "a\nb", "\u{9b}31m"] {
        refused(&named(control.as_bytes()), &["a tensor name", "number 0", "control character"]);
        let key = Raw::default().entry("fine", U8).u8(1).entry(control, U8).u8(1);
        refused(&Raw::start(0, 2).bytes(&key.0).0, &["a metadata key", "number 1", "control character"]);
    }
    refused(&named(&[b'n'; 1 << 16]), &["a tensor name", "65536"]);
    refused(&named(&[0xFF, 0xFE]), &["a tensor name", "UTF-8"]);
}

#[test]
fn empty_values_are_values_and_broken_ones_are_refused() {
    let gguf = open_both(&one_entry(Raw::default().array("a", U32, 0))).unwrap();
    assert_eq!(gguf.metadata.get("a"), Some(KeyValue::Integers(Vec::new())));
    let gguf = open_both(&one_entry(Raw::default().entry("a", TEXT).u64(0))).unwrap();
    assert_eq!(gguf.metadata.value("a"), Some(&Value::Text(String::new())));
    refused(&one_entry(Raw::default().entry("a", BOOL).u8(7)), &["`a`", "7", "0 or 1"]);
    refused(&one_entry(Raw::default().array("a", BOOL, 2).u8(1).u8(2)), &["`a`", "2", "0 or 1"]);
    refused(&one_entry(Raw::default().entry("a", 13).u32(0)), &["`a`", "13"]);
    refused(&one_entry(Raw::default().array("a", 13, 0)), &["`a`", "13"]);
    refused(&one_entry(Raw::default().entry("", U32).u32(0)), &["a metadata key", "0 bytes"]);
    open_both(&one_entry(Raw::default().entry(&"k".repeat(1024), U32).u32(0))).unwrap();
    let long = one_entry(Raw::default().entry(&"k".repeat(1025), U32).u32(0));
    refused(&long, &["a metadata key", "1025 bytes", "1..=1024"]);
    refused(&one_entry(Raw::default().text([0xC0]).u32(U32).u32(0)), &["a metadata key", "UTF-8"]);
    refused(&one_entry(Raw::default().entry("a", TEXT).text([0xC0])), &["a is not valid UTF-8"]);
}

#[test]
fn other_versions_and_byte_orders_are_refused() {
    let file = |magic: &[u8], version: [u8; 4]| Raw::default().bytes(magic).bytes(&version).zeros(16).0;
    open_both(&file(b"GGUF", [2, 0, 0, 0])).unwrap();
    open_both(&file(b"GGUF", [3, 0, 0, 0])).unwrap();
    for version in [0, 1, 4] {
        refused(&file(b"GGUF", [version, 0, 0, 0]), &["version", &version.to_string(), "2, 3"]);
    }
    refused(&file(b"GGUF", [0, 0, 0, 3]), &["big-endian"]);
    refused(&file(b"FUGG", [0, 0, 0, 3]), &["big-endian"]);
    refused(&file(b"GGML", [3, 0, 0, 0]), &["not a GGUF file"]);
    refused(b"", &["the magic number needs 4 bytes"]);
}

#[test]
fn many_small_things_take_no_more_memory_than_the_file_allows() {
    let n = 1_000_000;
    let entry = Raw::default().array("a", TEXT, n).zeros(8 * 1_000_000);
    refused(&one_entry(entry), &["a needs", "of memory"]);
    let arrays = Raw::default().array("a", ARRAY, n).zeros(12 * 1_000_000);
    refused(&one_entry(arrays), &["a needs", "of memory"]);
}
