//! The header of a GGUF file, version 3.

use forerun_storage::gguf::{Array, Value};

use crate::plan::Tensor;

/// Tensors begin at multiples of this.
pub(crate) const ALIGNMENT: u64 = 32;

/// Bytes from the file's first to the first tensor's.
pub(crate) fn header(keys: &[(String, Value)], tensors: &[Tensor]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(b"GGUF");
    out.extend_from_slice(&3u32.to_le_bytes());
    push_len(tensors.len(), &mut out);
    push_len(keys.len(), &mut out);
    for (key, value) in keys {
        push_text(key, &mut out);
        push_value(value, &mut out);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        push_text(&tensor.name, &mut out);
        out.extend_from_slice(&u32::try_from(tensor.dims.len()).unwrap_or(0).to_le_bytes());
        tensor.dims.iter().for_each(|&dim| push_len(dim, &mut out));
        out.extend_from_slice(&tensor.quant.id().to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        offset += tensor.len_bytes().next_multiple_of(ALIGNMENT);
    }
    let padding = out.len().next_multiple_of(ALIGNMENT as usize) - out.len();
    out.extend(std::iter::repeat_n(0, padding));
    out
}

fn push_len(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(len as u64).to_le_bytes());
}

fn push_text(text: &str, out: &mut Vec<u8>) {
    push_len(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

fn push_value(value: &Value, out: &mut Vec<u8>) {
    let mut push = |kind: u32, bytes: &[u8]| {
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(bytes);
    };
    match value {
        Value::U8(v) => push(0, &v.to_le_bytes()),
        Value::I8(v) => push(1, &v.to_le_bytes()),
        Value::U16(v) => push(2, &v.to_le_bytes()),
        Value::I16(v) => push(3, &v.to_le_bytes()),
        Value::U32(v) => push(4, &v.to_le_bytes()),
        Value::I32(v) => push(5, &v.to_le_bytes()),
        Value::F32(v) => push(6, &v.to_le_bytes()),
        Value::Bool(v) => push(7, &[u8::from(*v)]),
        Value::U64(v) => push(10, &v.to_le_bytes()),
        Value::I64(v) => push(11, &v.to_le_bytes()),
        Value::F64(v) => push(12, &v.to_le_bytes()),
        Value::Text(text) => {
            push(8, &[]);
            push_text(text, out);
        }
        Value::Array(array) => {
            push(9, &[]);
            push_array(array, out);
        }
    }
}

fn push_array(array: &Array, out: &mut Vec<u8>) {
    fn entries<T>(kind: u32, list: &[T], out: &mut Vec<u8>, push: impl Fn(&T, &mut Vec<u8>)) {
        out.extend_from_slice(&kind.to_le_bytes());
        push_len(list.len(), out);
        list.iter().for_each(|entry| push(entry, out));
    }
    match array {
        Array::U8(list) => entries(0, list, out, |v, out| out.push(*v)),
        Array::I8(list) => entries(1, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::U16(list) => entries(2, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::I16(list) => entries(3, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::U32(list) => entries(4, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::I32(list) => entries(5, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::F32(list) => entries(6, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::Bool(list) => entries(7, list, out, |v, out| out.push(u8::from(*v))),
        Array::Text(list) => entries(8, list, out, |v, out| push_text(v, out)),
        Array::Array(list) => entries(9, list, out, push_array),
        Array::U64(list) => entries(10, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::I64(list) => entries(11, list, out, |v, out| out.extend(v.to_le_bytes())),
        Array::F64(list) => entries(12, list, out, |v, out| out.extend(v.to_le_bytes())),
    }
}
