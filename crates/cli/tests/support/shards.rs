//! Writes a model again, in other files: in shards, with a tensor more, or with one less.

use std::path::{Path, PathBuf};

use forerun_storage::gguf::{Array, Value};
use forerun_storage::{Gguf, TensorInfo};

const ALIGN_BYTES: usize = 32;

/// A model in memory, to be written again.
pub(crate) struct Copy {
    gguf: Gguf,
    bytes: Vec<u8>,
}

impl Copy {
    /// The model of the one file at `path`.
    pub(crate) fn of(path: &Path) -> Self {
        Self { gguf: Gguf::open(path).unwrap(), bytes: std::fs::read(path).unwrap() }
    }

    /// Writes the model to `folder` in `n` shards and returns their paths.
    pub(crate) fn write_shards(&self, folder: &Path, n: usize) -> Vec<PathBuf> {
        let all: Vec<_> = self.gguf.tensors().iter().collect();
        let per_shard = all.len().div_ceil(n);
        let shards = all.chunks(per_shard).enumerate();
        let write = |(i, tensors): (usize, &[&TensorInfo])| {
            let path = folder.join(format!("m-{:05}-of-{n:05}.gguf", i + 1));
            let mut entries = Vec::new();
            for (key, value) in [("split.no", i), ("split.count", n), ("split.tensors.count", all.len())] {
                entries.push(entry(key, &Value::U32(u32::try_from(value).unwrap())));
            }
            if i == 0 {
                entries.extend(self.entries());
            }
            self.write(&path, &entries, tensors, 0);
            path
        };
        shards.map(write).collect()
    }

    /// Writes the model in one file, without the tensors that `leave_out` names, and with `n_more` unknown ones.
    pub(crate) fn write_with(&self, path: &Path, leave_out: &[&str], n_more: usize) {
        let kept = |tensor: &&TensorInfo| !leave_out.contains(&tensor.name.as_str());
        let tensors: Vec<_> = self.gguf.tensors().iter().filter(kept).collect();
        self.write(path, &self.entries().collect::<Vec<_>>(), &tensors, n_more);
    }

    fn entries(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.gguf.metadata.entries().iter().map(|(key, value)| entry(key, value))
    }

    fn write(&self, path: &Path, entries: &[Vec<u8>], tensors: &[&TensorInfo], n_more: usize) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((tensors.len() as u64 + n_more as u64).to_le_bytes());
        file.extend((entries.len() as u64).to_le_bytes());
        file.extend(entries.concat());
        let mut data = Vec::new();
        for tensor in tensors {
            info(&mut file, &tensor.name, tensor.dims(), tensor.quant.id(), data.len());
            let start = usize::try_from(tensor.offset_bytes).unwrap();
            data.extend(&self.bytes[start..start + usize::try_from(tensor.len_bytes).unwrap()]);
            data.resize(data.len().next_multiple_of(ALIGN_BYTES), 0);
        }
        for i in 0..n_more {
            info(&mut file, &format!("surprise.{i}.weight"), &[8], 0, data.len());
            data.resize(data.len() + ALIGN_BYTES, 0);
        }
        file.resize(file.len().next_multiple_of(ALIGN_BYTES), 0);
        file.extend(data);
        std::fs::write(path, file).unwrap();
    }
}

fn info(file: &mut Vec<u8>, name: &str, dims: &[u64], quant: u32, offset: usize) {
    text(file, name);
    file.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
    dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
    file.extend(quant.to_le_bytes());
    file.extend((offset as u64).to_le_bytes());
}

fn text(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

/// One entry of the metadata, of the types that the fixtures use.
fn entry(key: &str, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, key);
    match value {
        Value::U32(v) => {
            out.extend(4_u32.to_le_bytes());
            out.extend(v.to_le_bytes());
        }
        Value::F32(v) => {
            out.extend(6_u32.to_le_bytes());
            out.extend(v.to_le_bytes());
        }
        Value::Bool(v) => {
            out.extend(7_u32.to_le_bytes());
            out.push(u8::from(*v));
        }
        Value::Text(v) => {
            out.extend(8_u32.to_le_bytes());
            text(&mut out, v);
        }
        Value::Array(array) => {
            out.extend(9_u32.to_le_bytes());
            entries(&mut out, array);
        }
        other => panic!("no fixture has {key} = {other:?}"),
    }
    out
}

fn entries(out: &mut Vec<u8>, array: &Array) {
    let mut head = |kind: u32, len: usize| {
        out.extend(kind.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
    };
    match array {
        Array::I32(list) => {
            head(5, list.len());
            list.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Array::Bool(list) => {
            head(7, list.len());
            list.iter().for_each(|v| out.push(u8::from(*v)));
        }
        Array::Text(list) => {
            head(8, list.len());
            list.iter().for_each(|v| text(out, v));
        }
        other => panic!("no fixture has {other:?}"),
    }
}
