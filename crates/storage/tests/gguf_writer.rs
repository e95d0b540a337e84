//! What is written is what is read: keys of every type, tensors, alignments.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

use forerun_model::QuantType;
use forerun_storage::Gguf;
use forerun_storage::gguf::{Array, Dims, HeaderWriter, TensorSpec, Value};
use proptest::prelude::*;

fn list<T: std::fmt::Debug + 'static>(
    one: impl Strategy<Value = T> + 'static,
    make: fn(Vec<T>) -> Array,
) -> BoxedStrategy<Array> {
    prop::collection::vec(one, 0..6).prop_map(make).boxed()
}

fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        list(any::<u8>(), Array::U8),
        list(any::<i8>(), Array::I8),
        list(any::<u16>(), Array::U16),
        list(any::<i16>(), Array::I16),
        list(any::<u32>(), Array::U32),
        list(any::<i32>(), Array::I32),
        list(any::<f32>(), Array::F32),
        list(any::<bool>(), Array::Bool),
        list(".{0,9}".prop_map(String::from), Array::Text),
        list(any::<u64>(), Array::U64),
        list(any::<i64>(), Array::I64),
        list(any::<f64>(), Array::F64),
    ];
    // Two levels, as deep as the reader goes.
    prop_oneof![3 => flat.clone(), 1 => prop::collection::vec(flat, 0..3).prop_map(Array::Array)]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,40}".prop_map(Value::Text),
        array().prop_map(Value::Array),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
    ]
}

fn tensor() -> impl Strategy<Value = (QuantType, Dims)> {
    let quants: Vec<_> = QuantType::all().collect();
    let sizes = prop::collection::vec(1_u64..4, 1..=4);
    (prop::sample::select(quants), sizes).prop_map(|(quant, mut sizes)| {
        sizes[0] *= quant.block_len() as u64;
        (quant, Dims::new(&sizes).unwrap())
    })
}

/// The values, bit for bit: a float may be no number.
fn shown(value: &Value) -> String {
    match value {
        Value::F32(v) => format!("{:x}", v.to_bits()),
        Value::F64(v) => format!("{:x}", v.to_bits()),
        Value::Array(Array::F32(v)) => format!("{:x?}", v.iter().map(|v| v.to_bits()).collect::<Vec<_>>()),
        Value::Array(Array::F64(v)) => format!("{:x?}", v.iter().map(|v| v.to_bits()).collect::<Vec<_>>()),
        other => format!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        values in prop::collection::vec(value(), 0..12),
        tensors in prop::collection::vec(tensor(), 0..8),
        alignment in prop::option::of(0_u32..14),
    ) {
        let mut entries: Vec<_> = values.into_iter().enumerate().map(|(i, v)| (format!("key.{i}"), v)).collect();
        if let Some(shift) = alignment {
            entries.push(("general.alignment".into(), Value::U32(1 << shift)));
        }
        let name = |(i, (quant, dims))| TensorSpec { name: format!("tensor.{i}"), quant, dims };
        let tensors: Vec<_> = tensors.into_iter().enumerate().map(name).collect();
        let header = HeaderWriter::new(entries.clone(), tensors.clone()).unwrap();
        let mut bytes = Vec::new();
        header.write(&mut bytes).unwrap();
        if !tensors.is_empty() {
            prop_assert_eq!(bytes.len() as u64, header.offset_bytes(0));
        }
        prop_assert!(header.file_bytes().is_multiple_of(1 << alignment.unwrap_or(5)));
        bytes.resize(usize::try_from(header.file_bytes()).unwrap(), 0);
        let gguf = Gguf::open_bytes("written", bytes.into()).unwrap();
        prop_assert_eq!(gguf.metadata.entries().len(), entries.len());
        for (read, written) in gguf.metadata.entries().iter().zip(&entries) {
            prop_assert_eq!((&read.0, shown(&read.1)), (&written.0, shown(&written.1)));
        }
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for (i, (read, written)) in gguf.tensors().iter().zip(&tensors).enumerate() {
            prop_assert_eq!(&TensorSpec::from(read), written);
            prop_assert_eq!(read.offset_bytes, header.offset_bytes(i));
        }
    }
}

#[test]
fn what_no_file_can_hold_is_refused() {
    let spec = |sizes: &[u64]| TensorSpec {
        name: "huge".into(),
        quant: QuantType::F32,
        dims: Dims::new(sizes).unwrap(),
    };
    for sizes in [&[1 << 40, 1 << 40][..], &[1 << 60], &[0]] {
        let error = HeaderWriter::new(Vec::new(), vec![spec(sizes)]).unwrap_err().to_string();
        assert!(error.contains("`huge`"), "{error}");
    }
    assert!(HeaderWriter::new(Vec::new(), vec![spec(&[4]), spec(&[8])]).is_err(), "two of one name");
    let entries = vec![("general.alignment".to_owned(), Value::U32(48))];
    assert!(HeaderWriter::new(entries, vec![spec(&[4])]).is_err());
    assert!(Dims::new(&[]).is_none() && Dims::new(&[1; 5]).is_none());
}

#[test]
fn a_value_can_be_replaced_by_one_of_its_length() {
    let entries = vec![("sums".to_owned(), Value::Array(Array::U32(vec![0; 3])))];
    let mut header = HeaderWriter::new(entries, Vec::new()).unwrap();
    let new = Value::Array(Array::U32(vec![1, 2, 3]));
    header.replace("sums", new.clone());
    let mut bytes = Vec::new();
    header.write(&mut bytes).unwrap();
    let gguf = Gguf::open_bytes("written", bytes.into()).unwrap();
    assert_eq!(gguf.metadata.value("sums"), Some(&new));
}
