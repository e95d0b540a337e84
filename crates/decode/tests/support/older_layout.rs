//! The older layout of `qwen3next` files, made from the newer: queries, keys, values and gates of a delta-net in one
//! matrix, `ssm_in`, key head by key head.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use forerun_model::{DeltaNetShape, ModelShape};
use forerun_storage::Gguf;
use forerun_storage::gguf::{Dims, HeaderWriter, TensorSpec};

/// The name of the file that [`written`] makes.
pub(crate) const NAME: &str = "qwen3next-ssm_in-f32.gguf";

/// Writes the model of `source` in the older layout into `folder`; returns the file's path.
pub(crate) fn written(source: &Path, folder: &Path) -> PathBuf {
    let gguf = Gguf::open(source).unwrap();
    let net = ModelShape::from_metadata(&gguf.metadata).unwrap().delta_net.unwrap();
    let bytes = |name: &str| {
        let tensor = gguf.tensor(name).unwrap();
        let mut bytes = vec![0; usize::try_from(tensor.len_bytes).unwrap()];
        gguf.read_tensor(tensor, 0, &mut bytes).unwrap();
        bytes
    };
    let mut tensors = Vec::new();
    for tensor in gguf.tensors() {
        let spec = TensorSpec::from(tensor);
        if tensor.name.ends_with(".attn_gate.weight") {
            continue;
        }
        let Some(block) = tensor.name.strip_suffix(".attn_qkv.weight") else {
            tensors.push((spec, bytes(&tensor.name)));
            continue;
        };
        let (qkv, gate) = (bytes(&tensor.name), bytes(&format!("{block}.attn_gate.weight")));
        let all = net.conv_channels() + net.value_width();
        let dims = Dims::new(&[tensor.dims.as_slice()[0], all as u64]).unwrap();
        let spec = TensorSpec { name: format!("{block}.ssm_in.weight"), dims, ..spec };
        tensors.push((spec, grouped(&net, &qkv, &gate)));
    }
    let specs = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let header = HeaderWriter::new(gguf.metadata.entries().to_vec(), specs).unwrap();
    let mut file = Vec::new();
    header.write(&mut file).unwrap();
    for (i, (_, bytes)) in tensors.iter().enumerate() {
        file.resize(usize::try_from(header.offset_bytes(i)).unwrap(), 0);
        file.extend(bytes);
    }
    file.resize(usize::try_from(header.file_bytes()).unwrap(), 0);
    let path = folder.join(NAME);
    File::create(&path).unwrap().write_all(&file).unwrap();
    path
}

/// The rows of all four kinds, key head by key head.
fn grouped(net: &DeltaNetShape, qkv: &[u8], gate: &[u8]) -> Vec<u8> {
    let (row, heads) = (qkv.len() / net.conv_channels(), net.n_key_heads);
    let (keys, values) = (net.key_dim, net.value_width() / heads);
    let rows = |from: &[u8], first: usize, n: usize| from[first * row..(first + n) * row].to_vec();
    let of = |head: usize| {
        [
            rows(qkv, head * keys, keys),
            rows(qkv, (heads + head) * keys, keys),
            rows(qkv, 2 * heads * keys + head * values, values),
            rows(gate, head * values, values),
        ]
        .concat()
    };
    (0..heads).flat_map(of).collect()
}
