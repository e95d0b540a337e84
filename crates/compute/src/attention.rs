//! One query head over the keys and values so far: softmax attention in fixed blocks of keys.
//!
//! Keys are walked from position 0 in blocks of [`BLOCK`] with a running maximum, so that a row's sum has one order
//! whatever else is in its step.

use forerun_model::{AttentionShape, HEAD_DIM_MAX};

use crate::kv_cache::KvRows;
use crate::ops::dot;

/// Keys per block.
pub const BLOCK: usize = 32;

/// `out = softmax(q k / sqrt(head_dim)) v` over the first `n_keys` rows of the cache, for query head `head`.
#[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
pub fn attend(
    shape: &AttentionShape,
    head: usize,
    query: &[f32],
    (keys, values): (&KvRows, &KvRows),
    n_keys: usize,
    out: &mut [f32],
) {
    let dim = shape.head_dim;
    let column = head / (shape.n_heads / shape.n_kv_heads) * dim;
    let scale = 1.0 / (dim as f32).sqrt();
    let mut buffer = [0.0; HEAD_DIM_MAX];
    let buffer = &mut buffer[..dim];
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    out.fill(0.0);
    for start in (0..n_keys).step_by(BLOCK) {
        let rows = start..n_keys.min(start + BLOCK);
        let mut scores = [0.0; BLOCK];
        for (score, row) in scores.iter_mut().zip(rows.clone()) {
            keys.read(row, column, buffer);
            *score = dot(query, buffer) * scale;
        }
        let scores = &mut scores[..rows.len()];
        let new_max = scores.iter().fold(max, |m, &s| m.max(s));
        let shrink = (max - new_max).exp();
        sum *= shrink;
        out.iter_mut().for_each(|o| *o *= shrink);
        for (score, row) in scores.iter().zip(rows) {
            let weight = (score - new_max).exp();
            sum += weight;
            values.read(row, column, buffer);
            for (out, value) in out.iter_mut().zip(&*buffer) {
                *out += weight * value;
            }
        }
        max = new_max;
    }
    out.iter_mut().for_each(|o| *o /= sum);
}

#[cfg(test)]
mod tests {
    use forerun_model::AttentionParts;

    use super::*;
    use crate::kv_cache::KvType;

    #[test]
    fn blocks_give_what_one_softmax_gives() {
        let parts = AttentionParts { gate: false, head_norms: false, biases: false };
        let shape = AttentionShape { n_heads: 2, n_kv_heads: 1, head_dim: 4, parts };
        let n = 3 * BLOCK + 5;
        let (mut keys, mut values) = (KvRows::new(KvType::F32, n, 4), KvRows::new(KvType::F32, n, 4));
        let value = |i: usize, j: usize| ((i * 7 + j * 13) % 29) as f32 / 7.0 - 2.0;
        for i in 0..n {
            keys.write(i, &std::array::from_fn::<_, 4, _>(|j| value(i, j)));
            values.write(i, &std::array::from_fn::<_, 4, _>(|j| value(i + 3, j)));
        }
        let query = [0.5, -1.0, 2.0, 0.25];
        let scores: Vec<f64> = (0..n)
            .map(|i| (0..4).map(|j| f64::from(query[j]) * f64::from(value(i, j))).sum::<f64>() / 2.0)
            .collect();
        let max = scores.iter().fold(f64::MIN, |m, &s| m.max(s));
        let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut out = [0.0; 4];
        attend(&shape, 1, &query, (&keys, &values), n, &mut out);
        for (j, out) in out.iter().enumerate() {
            let want: f64 =
                (0..n).map(|i| (scores[i] - max).exp() / total * f64::from(value(i + 3, j))).sum();
            assert!((f64::from(*out) - want).abs() < 1e-5, "{out} {want}");
        }
    }
}
