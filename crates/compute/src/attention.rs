//! The query heads of one key-value head over the keys and values so far: softmax attention in fixed blocks of keys.
//!
//! Keys are walked from the first that is seen in blocks of [`BLOCK`] with a running maximum, so that a row's sum has one order
//! whatever else is in its step. Keys and values are widened to f32 once for all heads that share them.

use std::ops::Range;

use forerun_model::HEAD_DIM_MAX;

use crate::kernels::Loop;
use crate::kv_cache::KvRows;
use crate::ops::{dot, exp, max};

/// Keys per block.
pub const BLOCK: usize = 32;
/// Query heads that are walked together.
pub const HEADS: usize = 8;
/// Columns of the values that are summed together, in registers.
const COLUMNS: usize = 64;

/// `out = softmax(q k / sqrt(dim)) v` over some rows of the cache, for queries that see the same ones of one key-value
/// head.
#[derive(Debug)]
pub struct Attend<'a> {
    /// Channels of a head.
    pub dim: usize,
    /// The key-value head.
    pub kv_head: usize,
    /// The first query; `stride` values lie from one to the next.
    pub queries: &'a [f32],
    /// Values from one query to the next.
    pub stride: usize,
    /// The cache's keys.
    pub keys: &'a KvRows,
    /// The cache's values.
    pub values: &'a KvRows,
    /// The rows that are seen, at least one.
    pub rows: Range<usize>,
    /// `[queries, dim]`.
    pub out: &'a mut [f32],
}

/// The sums so far of [`HEADS`] query heads.
struct Running {
    max: [f32; HEADS],
    sum: [f32; HEADS],
    /// What the sums so far are multiplied by, for the new maximum.
    shrink: [f32; HEADS],
    /// A block's scores, then its weights.
    weights: [[f32; BLOCK]; HEADS],
}

impl Loop for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let dim = self.dim;
        let n_heads = self.out.len() / dim;
        self.out.fill(0.0);
        for first in (0..n_heads).step_by(HEADS) {
            let heads = first..n_heads.min(first + HEADS);
            let mut running = Running {
                max: [f32::NEG_INFINITY; HEADS],
                sum: [0.0; HEADS],
                shrink: [0.0; HEADS],
                weights: [[0.0; BLOCK]; HEADS],
            };
            for start in self.rows.clone().step_by(BLOCK) {
                let rows = start..self.rows.end.min(start + BLOCK);
                self.weigh(&heads, rows.clone(), &mut running);
                self.add(&heads, rows, &running);
            }
            for (out, sum) in
                self.out[heads.start * dim..heads.end * dim].chunks_exact_mut(dim).zip(running.sum)
            {
                out.iter_mut().for_each(|o| *o /= sum);
            }
        }
    }
}

impl Attend<'_> {
    /// The softmax weights of a block's keys, relative to the maximum so far.
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
    fn weigh(&self, heads: &Range<usize>, rows: Range<usize>, running: &mut Running) {
        let dim = self.dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let mut key = [0.0; HEAD_DIM_MAX];
        let key = &mut key[..dim];
        for (i, row) in rows.clone().enumerate() {
            self.keys.read(row, self.kv_head * dim, key);
            for (j, head) in heads.clone().enumerate() {
                running.weights[j][i] = dot(&self.queries[head * self.stride..][..dim], key) * scale;
            }
        }
        for j in 0..heads.len() {
            let weights = &mut running.weights[j][..rows.len()];
            let new_max = running.max[j].max(max(weights));
            running.shrink[j] = exp(running.max[j] - new_max);
            running.sum[j] *= running.shrink[j];
            for weight in weights.iter_mut() {
                *weight = exp(*weight - new_max);
            }
            for weight in weights {
                running.sum[j] += *weight;
            }
            running.max[j] = new_max;
        }
    }

    /// Adds a block's weighted values.
    #[inline(always)]
    fn add(&mut self, heads: &Range<usize>, rows: Range<usize>, running: &Running) {
        let dim = self.dim;
        let mut block = [[0.0; COLUMNS]; BLOCK];
        for column in (0..dim).step_by(COLUMNS) {
            let width = COLUMNS.min(dim - column);
            for (values, row) in block.iter_mut().zip(rows.clone()) {
                self.values.read(row, self.kv_head * dim + column, &mut values[..width]);
            }
            for (j, head) in heads.clone().enumerate() {
                let out = &mut self.out[head * dim + column..][..width];
                let mut sums = [0.0; COLUMNS];
                sums[..width].copy_from_slice(out);
                for sum in &mut sums {
                    *sum *= running.shrink[j];
                }
                for (values, &weight) in block[..rows.len()].iter().zip(&running.weights[j]) {
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum += weight * value;
                    }
                }
                out.copy_from_slice(&sums[..width]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use crate::kv_cache::KvType;

    fn value(i: usize, j: usize) -> f32 {
        ((i * 7 + j * 13) % 29) as f32 / 7.0 - 2.0
    }

    /// One softmax over the keys of `rows`, in f64.
    fn plain(query: &[f32], column: usize, rows: Range<usize>) -> Vec<f64> {
        let dim = query.len();
        let key = |i, j| f64::from(value(i, column + j));
        let score = |i| (0..dim).map(|j| f64::from(query[j]) * key(i, j)).sum::<f64>() / (dim as f64).sqrt();
        let max = rows.clone().map(score).fold(f64::MIN, f64::max);
        let weight = |i: usize| (score(i) - max).exp();
        let total: f64 = rows.clone().map(weight).sum();
        (0..dim).map(|j| rows.clone().map(|i| weight(i) * key(i + 3, j)).sum::<f64>() / total).collect()
    }

    #[test]
    fn blocks_give_what_one_softmax_gives() {
        // Heads beyond those that are walked together, columns beyond those that are summed together.
        for (n_queries, n_kv_heads, dim, rows) in [
            (2, 1, 4, 0..101),
            (2, 2, 64, 0..31),
            (10, 1, 72, 0..33),
            (9, 2, 256, 0..65),
            (3, 1, 8, 35..69),
            (1, 1, 1, 0..1),
        ] {
            let width = n_kv_heads * dim;
            for (kv, bound) in [(KvType::F32, 1e-5), (KvType::F16, 3e-3)] {
                let n = rows.end;
                let (mut keys, mut values) = (KvRows::new(kv, n, width), KvRows::new(kv, n, width));
                for i in 0..n {
                    keys.write(i, &(0..width).map(|j| value(i, j)).collect::<Vec<_>>());
                    values.write(i, &(0..width).map(|j| value(i + 3, j)).collect::<Vec<_>>());
                }
                (0..n_kv_heads).for_each(|head| check(n_queries, head, dim, (&keys, &values), &rows, bound));
            }
        }
    }

    fn check(
        n_queries: usize,
        kv_head: usize,
        dim: usize,
        (keys, values): (&KvRows, &KvRows),
        rows: &Range<usize>,
        bound: f64,
    ) {
        let stride = dim + 3;
        let queries: Vec<f32> = (0..n_queries * stride).map(|i| value(i, i / 5) / 2.0).collect();
        let mut bits = Vec::new();
        for isa in Isa::all() {
            let mut out = vec![f32::NAN; n_queries * dim];
            let (queries, rows) = (&queries, rows.clone());
            isa.run(Attend {
                dim,
                kv_head,
                queries,
                stride,
                keys,
                values,
                rows: rows.clone(),
                out: &mut out,
            });
            for (i, out) in out.chunks_exact(dim).enumerate() {
                let want = plain(&queries[i * stride..][..dim], kv_head * dim, rows.clone());
                for (out, want) in out.iter().zip(want) {
                    assert!(
                        (f64::from(*out) - want).abs() < bound,
                        "{n_queries} {dim} {rows:?} {out} {want}"
                    );
                }
            }
            bits.push(out.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
        }
        assert!(bits.iter().all(|b| *b == bits[0]), "every instruction set gives the same bits");
    }
}
