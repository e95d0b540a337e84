//! Softmax attention over keys and values that stay on the device, gated or not.

use std::ops::Range;

use candle_core::{D, DType, Device, Tensor};
use forerun_compute::DeviceName;
use forerun_compute::stepping::Placed;
use forerun_model::{AttentionShape, ModelShape};

use crate::device::query_block;
use crate::error::Failure;
use crate::ops::{Turns, rms_norm, rotate, sigmoid, softmax};
use crate::state::KeysValues;
use crate::weights::Attention;

/// Queries, their gates, keys and values of a step's rows, each `[rows, heads, dim]`.
pub(crate) struct Projected {
    queries: Tensor,
    gates: Option<Tensor>,
    keys: Tensor,
    values: Tensor,
}

/// Multiplies the normalised rows `x`, normalises the heads and turns them.
pub(crate) fn project(
    w: &Attention,
    shape: &ModelShape,
    x: &Tensor,
    turns: &Turns,
) -> Result<Projected, Failure> {
    let (att, n) = (&shape.attention, x.dim(0)?);
    let (mut q, mut k, mut v) = (w.q.times(x)?, w.k.times(x)?, w.v.times(x)?);
    if let Some([q_bias, k_bias, v_bias]) = &w.biases {
        q = q.broadcast_add(q_bias)?;
        k = k.broadcast_add(k_bias)?;
        v = v.broadcast_add(v_bias)?;
    }
    let dim = att.head_dim;
    let mut queries = q.reshape((n, att.n_heads, att.query_rows() / att.n_heads))?;
    let mut keys = k.reshape((n, att.n_kv_heads, dim))?;
    let mut gates = None;
    if att.parts.gate {
        // Each head's query is followed by its gate.
        gates = Some(queries.narrow(2, dim, dim)?);
        queries = queries.narrow(2, 0, dim)?;
    }
    if let Some([q_norm, k_norm]) = &w.head_norms {
        queries = rms_norm(&queries, q_norm, shape.norm_eps)?;
        keys = rms_norm(&keys, k_norm, shape.norm_eps)?;
    }
    let (queries, keys) = (rotate(&queries, turns)?, rotate(&keys, turns)?);
    Ok(Projected { queries, gates, keys, values: v.reshape((n, att.n_kv_heads, dim))? })
}

/// What the rows of a part give before the last product, `[rows, heads * dim]`: stores their keys and values behind the `past`
/// ones, then lets each row see all up to its own.
pub(crate) fn attend(
    att: &AttentionShape,
    device: DeviceName,
    all: &Projected,
    part: &Placed,
    memory: &KeysValues,
) -> Result<Tensor, Failure> {
    let rows = |tensor: &Tensor| tensor.narrow(0, part.first, part.n_rows);
    memory.write(part.past, &rows(&all.keys)?, &rows(&all.values)?)?;
    let end = part.past + part.n_rows;
    let (keys, values) = memory.read(0..end)?;
    let queries = rows(&all.queries)?.contiguous()?;
    let block = query_block(device, att.n_heads, end);
    let mut out = Vec::with_capacity(part.n_rows.div_ceil(block));
    for first in (0..part.n_rows).step_by(block) {
        let some = first..part.n_rows.min(first + block);
        let seen = part.past + some.end;
        let (keys, values) = (keys.narrow(1, 0, seen)?, values.narrow(1, 0, seen)?);
        out.push(weigh(
            att,
            &queries.narrow(0, some.start, some.len())?,
            &keys,
            &values,
            part.past + some.start,
        )?);
    }
    let mut out = Tensor::cat(&out, 0)?;
    if let Some(gates) = &all.gates {
        let gates = rows(gates)?.contiguous()?;
        out = (out * sigmoid(&gates)?)?;
    }
    Ok(out.reshape((part.n_rows, att.q_width()))?)
}

/// `softmax(q k / sqrt(dim)) v` for consecutive `queries [n, heads, dim]` of which the first sees one key more than `before`:
/// `[n, heads, dim]`. Keys and values are `[key heads, keys, dim]`.
#[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
pub(crate) fn weigh(
    att: &AttentionShape,
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    before: usize,
) -> Result<Tensor, Failure> {
    let (n, dim, group) = (queries.dim(0)?, att.head_dim, att.n_heads / att.n_kv_heads);
    let queries = queries.reshape((n, att.n_kv_heads, group, dim))?.transpose(0, 1)?.contiguous()?;
    let queries = queries.reshape((att.n_kv_heads, n * group, dim))?;
    let scores = queries.matmul(&keys.t()?)?.affine(1.0 / (dim as f64).sqrt(), 0.0)?;
    let scores = match n {
        1 => scores,
        _ => scores.broadcast_add(&mask(before..before + n, keys.dim(1)?, group, keys.device())?)?,
    };
    let out = softmax(&scores)?.matmul(values)?;
    let out = out.reshape((att.n_kv_heads, n, group, dim))?.transpose(0, 1)?.contiguous()?;
    Ok(out.reshape((n, att.n_heads, dim))?)
}

/// Zero where a query sees a key and minus infinity elsewhere, `[1, rows * group, keys]`; row `i` sees keys up to its own place.
#[expect(clippy::cast_possible_truncation, reason = "a context has fewer than 2^32 tokens")]
fn mask(rows: Range<usize>, n_keys: usize, group: usize, device: &Device) -> Result<Tensor, Failure> {
    let n = rows.len();
    let keys = Tensor::arange(0, n_keys as u32, device)?.reshape((1, 1, n_keys))?;
    let rows = Tensor::arange(rows.start as u32, rows.end as u32, device)?.reshape((n, 1, 1))?;
    let sees = keys.broadcast_as((n, group, n_keys))?.le(&rows.broadcast_as((n, group, n_keys))?)?;
    let zero = Tensor::zeros((n, group, n_keys), DType::F32, device)?;
    let never = Tensor::full(f32::NEG_INFINITY, (n, group, n_keys), device)?;
    let mask = sees.where_cond(&zero, &never)?;
    debug_assert_eq!(mask.dim(D::Minus1)?, n_keys, "a mask has an entry for every key");
    Ok(mask.reshape((1, n * group, n_keys))?)
}

#[cfg(test)]
mod tests {
    use forerun_compute::attention::Attend;
    use forerun_compute::kernels::Isa;
    use forerun_compute::kv_cache::{KvRows, KvType};
    use forerun_model::AttentionParts;

    use super::*;
    use crate::device::read;

    fn value(i: usize, j: usize) -> f32 {
        ((i * 7 + j * 13) % 29) as f32 / 14.0 - 1.0
    }

    /// Against the attention of the processor's own stack; blocks of queries against one after the other.
    #[test]
    fn rows_see_what_the_twin_sees() {
        let (n_heads, n_kv_heads, head_dim) = (6, 2, 24);
        let parts = AttentionParts { gate: false, head_norms: false };
        let att = AttentionShape { n_heads, n_kv_heads, head_dim, parts };
        let (before, n) = (37, 5);
        let (width, q_width) = (n_kv_heads * head_dim, n_heads * head_dim);
        let rows = |n: usize, width: usize, shift: usize| -> Vec<f32> {
            (0..n * width).map(|i| value(i / width + shift, i % width)).collect()
        };
        let (queries, keys, values) =
            (rows(n, q_width, 3), rows(before + n, width, 0), rows(before + n, width, 5));
        let mut kept =
            [KvRows::new(KvType::F32, before + n, width), KvRows::new(KvType::F32, before + n, width)];
        for (kept, all) in kept.iter_mut().zip([&keys, &values]) {
            all.chunks_exact(width).enumerate().for_each(|(row, values)| kept.write(row, values));
        }
        let mut want = vec![0.0; n * q_width];
        let group = n_heads / n_kv_heads * head_dim;
        for (i, out) in want.chunks_exact_mut(group).enumerate() {
            let (row, kv_head) = (i / n_kv_heads, i % n_kv_heads);
            Isa::BASELINE.run(Attend {
                dim: head_dim,
                kv_head,
                queries: &queries[i * group..][..group],
                stride: head_dim,
                keys: &kept[0],
                values: &kept[1],
                rows: 0..before + row + 1,
                out,
            });
        }
        let tensor = |values: &[f32], n_heads| {
            Tensor::from_slice(values, (values.len() / n_heads / head_dim, n_heads, head_dim), &Device::Cpu)
        };
        let turned = |values: &[f32]| tensor(values, n_kv_heads).unwrap().transpose(0, 1).unwrap();
        let (keys, values) = (turned(&keys).contiguous().unwrap(), turned(&values).contiguous().unwrap());
        let queries = tensor(&queries, n_heads).unwrap();
        for block in [1, 2, 5] {
            let mut found = Vec::new();
            for first in (0..n).step_by(block) {
                let len = block.min(n - first);
                let seen = before + first + len;
                let see = |tensor: &Tensor| tensor.narrow(1, 0, seen).unwrap();
                let queries = queries.narrow(0, first, len).unwrap();
                let out = weigh(&att, &queries, &see(&keys), &see(&values), before + first).unwrap();
                found.extend(read(&out).unwrap());
            }
            assert_eq!(found.len(), want.len());
            let off = found.iter().zip(&want).map(|(a, b)| (a - b).abs());
            assert!(
                off.clone().all(|off| off < 1e-5),
                "blocks of {block}: off by {off:?}",
                off = off.collect::<Vec<_>>()
            );
        }
    }
}
