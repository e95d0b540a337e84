//! Writes the header of a version 3 file: first the layout, so that every offset is known, then the bytes as a stream.

use std::collections::HashSet;
use std::io::{self, Write};

use forerun_model::QuantType;

use super::metadata::alignment_of;
use super::tensors::tensor_bytes;
use super::value::{Array, Value};
use super::{Dims, TensorInfo};
use crate::error::HeaderError;

/// A tensor that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// How its values are stored.
    pub quant: QuantType,
    /// Sizes of its axes.
    pub dims: Dims,
}

impl From<&TensorInfo> for TensorSpec {
    fn from(info: &TensorInfo) -> Self {
        Self { name: info.name.clone(), quant: info.quant, dims: info.dims }
    }
}

/// A header whose tensors have their places. Data follows the header, each tensor at the next multiple of the
/// alignment after the one before it; the last one is padded as well, since ggml reads all of them with their padding.
#[derive(Clone, Debug)]
pub struct HeaderWriter {
    entries: Vec<(String, Value)>,
    tensors: Vec<TensorSpec>,
    /// First byte of each tensor, from the data's start.
    offsets_bytes: Vec<u64>,
    data_start_bytes: u64,
    file_bytes: u64,
}

impl HeaderWriter {
    /// Lays out `tensors`, aligned as `general.alignment` of `entries` says, or to 32 bytes.
    ///
    /// # Errors
    /// [`HeaderError`] names a tensor whose size no file can have, one that occurs twice, or an alignment that can't be
    /// used.
    pub fn new(entries: Vec<(String, Value)>, tensors: Vec<TensorSpec>) -> Result<Self, HeaderError> {
        let alignment = alignment_of(entries.iter().find(|e| e.0 == "general.alignment").map(|e| &e.1))?;
        let (mut offsets_bytes, mut end_bytes) = (Vec::with_capacity(tensors.len()), 0_u64);
        let mut names = HashSet::with_capacity(tensors.len());
        for tensor in &tensors {
            if !names.insert(&tensor.name) {
                return Err(HeaderError::DuplicateTensor { name: tensor.name.clone() });
            }
            let len_bytes = tensor_bytes(&tensor.name, tensor.quant, tensor.dims)?;
            let start = end_bytes.checked_next_multiple_of(alignment);
            let end = start.and_then(|start| start.checked_add(len_bytes)).filter(|end| *end < 1 << 62);
            let (Some(start), Some(end)) = (start, end) else {
                let dims = tensor.dims.as_slice().to_vec();
                return Err(HeaderError::Dims { name: tensor.name.clone(), dims });
            };
            offsets_bytes.push(start);
            end_bytes = end;
        }
        let mut header = Self { entries, tensors, offsets_bytes, data_start_bytes: 0, file_bytes: 0 };
        header.data_start_bytes = header.fields_bytes().next_multiple_of(alignment);
        header.file_bytes = header.data_start_bytes + end_bytes.next_multiple_of(alignment);
        Ok(header)
    }

    /// Whether there is an entry of that key.
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.0 == key)
    }

    /// The tensors, in the order of their data.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// First byte of tensor `idx` in the file.
    ///
    /// # Panics
    /// When there is no such tensor.
    pub fn offset_bytes(&self, idx: usize) -> u64 {
        self.data_start_bytes + self.offsets_bytes[idx]
    }

    /// Bytes of the whole file, up to the end of what pads the last tensor.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Replaces the value of `key` by one that takes as many bytes, so that nothing moves.
    ///
    /// # Panics
    /// When there is no such key, or the new value is longer or shorter.
    pub fn replace(&mut self, key: &str, value: Value) {
        let entry = self.entries.iter_mut().find(|entry| entry.0 == key);
        let entry = entry.unwrap_or_else(|| panic!("the header has no key `{key}`"));
        let len = |value: &Value| {
            let mut counted = Counted(0);
            put_value(&mut counted, value).expect("counting bytes can't fail");
            counted.0
        };
        assert_eq!(len(&entry.1), len(&value), "`{key}` must keep its length");
        entry.1 = value;
    }

    /// Writes the header and what pads it up to the first tensor.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_fields(out)?;
        let padding = self.data_start_bytes - self.fields_bytes();
        io::copy(&mut io::Read::take(io::repeat(0), padding), out).map(drop)
    }

    fn fields_bytes(&self) -> u64 {
        let mut counted = Counted(0);
        self.write_fields(&mut counted).expect("counting bytes can't fail");
        counted.0
    }

    fn write_fields(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"GGUF\x03\0\0\0")?;
        put_len(out, self.tensors.len())?;
        put_len(out, self.entries.len())?;
        for (key, value) in &self.entries {
            put_text(out, key)?;
            put_value(out, value)?;
        }
        for (tensor, offset_bytes) in self.tensors.iter().zip(&self.offsets_bytes) {
            let dims = tensor.dims.as_slice();
            put_text(out, &tensor.name)?;
            out.write_all(&[dims.len().to_le_bytes()[0], 0, 0, 0])?;
            for size in dims {
                out.write_all(&size.to_le_bytes())?;
            }
            out.write_all(&tensor.quant.id().to_le_bytes())?;
            out.write_all(&offset_bytes.to_le_bytes())?;
        }
        Ok(())
    }
}

/// Counts what is written.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn put_len(out: &mut impl Write, len: usize) -> io::Result<()> {
    out.write_all(&(len as u64).to_le_bytes())
}

fn put_text(out: &mut impl Write, text: &str) -> io::Result<()> {
    put_len(out, text.len())?;
    out.write_all(text.as_bytes())
}

/// The type id of a value, and the value.
pub(super) fn put_value(out: &mut impl Write, value: &Value) -> io::Result<()> {
    let mut put = |kind: u32, bytes: &[u8]| {
        out.write_all(&kind.to_le_bytes())?;
        out.write_all(bytes)
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::Text(v) => {
            put(8, &[])?;
            put_text(out, v)
        }
        Value::Array(v) => {
            put(9, &[])?;
            put_array(out, v)
        }
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
    }
}

/// The element type id, the count and the entries.
fn put_array(out: &mut impl Write, array: &Array) -> io::Result<()> {
    match array {
        Array::U8(v) => put_list(out, 0, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::I8(v) => put_list(out, 1, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::U16(v) => put_list(out, 2, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::I16(v) => put_list(out, 3, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::U32(v) => put_list(out, 4, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::I32(v) => put_list(out, 5, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::F32(v) => put_list(out, 6, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::Bool(v) => put_list(out, 7, v, |out, v| out.write_all(&[u8::from(*v)])),
        Array::Text(v) => put_list(out, 8, v, |out, v| put_text(out, v)),
        Array::Array(v) => put_list(out, 9, v, put_array),
        Array::U64(v) => put_list(out, 10, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::I64(v) => put_list(out, 11, v, |out, v| out.write_all(&v.to_le_bytes())),
        Array::F64(v) => put_list(out, 12, v, |out, v| out.write_all(&v.to_le_bytes())),
    }
}

fn put_list<W: Write, T>(
    out: &mut W,
    kind: u32,
    list: &[T],
    one: impl Fn(&mut W, &T) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(&kind.to_le_bytes())?;
    put_len(out, list.len())?;
    list.iter().try_for_each(|entry| one(out, entry))
}
