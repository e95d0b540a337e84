//! The gated delta rule over chunks of rows, for devices where every operation has to be launched.
//!
//! With `G_t` the sum of the logarithms of the decays up to row `t` of a chunk, the state after it is `S_t = e^G_t S_0 + sum_i<=t
//! e^(G_t - G_i) k_i u_i^T`, where `u_t = beta_t (v_t - e^G_t S_0^T k_t - sum_i<t e^(G_t - G_i) (k_i . k_t) u_i)`. So all `u` of a chunk are
//! the solution of one unit triangular system `(1 + A) u = b`, whose inverse is a product, since `A` has no power beyond the chunk:
//! `(1 - A)(1 + A^2)(1 + A^4)...`. Found by writing the rule of [`crate::recurrence`] out.
//!
//! Entries of `A` are at most 1, so those of its powers are at most binomials: up to 6435 in a chunk of 16, when all keys are the
//! same, nothing decays and every correction is whole. So what is lost in the worst case is about 6435 roundings, 4e-4 of a value.

use std::iter;

use candle_core::{DType, Device, Tensor};

use crate::error::Failure;
use crate::recurrence::{Heads, row_by_row};

/// Rows of a chunk; a power of two.
const CHUNK: usize = 16;

/// What is the same for all chunks, each `[CHUNK, CHUNK]`.
#[derive(Debug)]
pub(crate) struct Masks {
    /// One where the row is not after the column: sums up to each column.
    sums: Tensor,
    /// Zero where the column is not after the row, and minus infinity elsewhere.
    until: Tensor,
    /// One where the column is before the row.
    before: Tensor,
    /// One on the diagonal.
    unit: Tensor,
}

impl Masks {
    pub(crate) fn new(device: &Device) -> Result<Self, Failure> {
        let square = |value: fn(usize, usize) -> f32| {
            let values: Vec<_> = (0..CHUNK * CHUNK).map(|i| value(i / CHUNK, i % CHUNK)).collect();
            Tensor::from_vec(values, (CHUNK, CHUNK), device)
        };
        Ok(Self {
            sums: square(|row, column| f32::from(u8::from(row <= column)))?,
            until: square(|row, column| if column <= row { 0.0 } else { f32::NEG_INFINITY })?,
            before: square(|row, column| f32::from(u8::from(column < row)))?,
            unit: Tensor::eye(CHUNK, DType::F32, device)?,
        })
    }
}

/// As [`row_by_row`], whole chunks at once and the rows after them one by one: so a step that is smaller than a chunk, of which fewer
/// rows may be accepted, is replayed as it was computed.
pub(crate) fn in_chunks(state: &Tensor, heads: &Heads, masks: &Masks) -> Result<(Tensor, Tensor), Failure> {
    let n = heads.keys.dim(0)?;
    let whole = n / CHUNK * CHUNK;
    let mut state = state.clone();
    let mut out = Vec::with_capacity(whole / CHUNK + 1);
    for first in (0..whole).step_by(CHUNK) {
        let (rows, next) = chunk(&state, &heads.of(first..first + CHUNK)?, masks)?;
        out.push(rows);
        state = next;
    }
    if whole < n {
        let (rows, next) = row_by_row(&state, &heads.of(whole..n)?)?;
        out.push(rows);
        state = next;
    }
    Ok((Tensor::cat(&out, 0)?, state))
}

/// One chunk.
fn chunk(state: &Tensor, heads: &Heads, masks: &Masks) -> Result<(Tensor, Tensor), Failure> {
    let by_head = |tensor: &Tensor| tensor.transpose(0, 1)?.contiguous();
    let (q, k, v) = (by_head(&heads.queries)?, by_head(&heads.keys)?, by_head(&heads.values)?);
    let betas = by_head(&heads.betas)?.unsqueeze(2)?;
    let sums = by_head(&heads.log_decays)?.matmul(&masks.sums)?;
    // What is left at row `t` of what row `i` added, `[heads, t, i]`; nothing of what comes later.
    let left = sums.unsqueeze(2)?.broadcast_sub(&sums.unsqueeze(1)?)?.broadcast_add(&masks.until)?.exp()?;
    let decays = sums.exp()?.unsqueeze(2)?;

    let seen = (k.matmul(&k.t()?)? * &left)?.broadcast_mul(&masks.before)?.broadcast_mul(&betas)?;
    let wanted = (v - k.matmul(state)?.broadcast_mul(&decays)?)?.broadcast_mul(&betas)?;
    let added = inverse(&seen, &masks.unit)?.matmul(&wanted)?;

    let out = (q.matmul(&k.t()?)? * &left)?.matmul(&added)?;
    let out = (out + q.matmul(state)?.broadcast_mul(&decays)?)?;
    let last = CHUNK - 1;
    let k = k.broadcast_mul(&left.narrow(1, last, 1)?.transpose(1, 2)?)?;
    let state = state.broadcast_mul(&decays.narrow(1, last, 1)?)?;
    let state = (state + k.transpose(1, 2)?.contiguous()?.matmul(&added)?)?;
    Ok((out.transpose(0, 1)?.contiguous()?, state))
}

/// The inverse of `1 + a`, where `a [heads, CHUNK, CHUNK]` has entries below the diagonal alone.
fn inverse(a: &Tensor, unit: &Tensor) -> Result<Tensor, Failure> {
    let mut power = a.neg()?;
    let mut inverse = power.broadcast_add(unit)?;
    for _ in iter::successors(Some(2), |n| Some(2 * n)).take_while(|n| *n < CHUNK) {
        power = power.matmul(&power)?;
        inverse = (&inverse + inverse.matmul(&power)?)?;
    }
    Ok(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::read;

    fn noise(seed: usize, n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
    }

    fn furthest(a: &Tensor, b: &Tensor) -> f32 {
        let (a, b) = (read(a).unwrap(), read(b).unwrap());
        assert!(a.len() == b.len() && a.iter().all(|v| v.is_finite()));
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    const HEADS: usize = 3;
    const KEYS: usize = 16;
    const WIDTH: usize = 24;

    /// Keys and queries of length one.
    fn heads(n: usize, keys: &[f32], log_decay: impl Fn(f32) -> f32, beta: impl Fn(f32) -> f32) -> Heads {
        let unit = |values: &[f32]| {
            let rows = tensor(values, &[n, HEADS, KEYS]);
            crate::ops::l2_norm(&rows, 1e-6, 1.0).unwrap()
        };
        let decays: Vec<_> = noise(5, n * HEADS).into_iter().map(log_decay).collect();
        let betas: Vec<_> = noise(6, n * HEADS).into_iter().map(beta).collect();
        Heads {
            queries: unit(&noise(2, n * HEADS * KEYS)),
            keys: unit(keys),
            values: tensor(&noise(4, n * HEADS * WIDTH), &[n, HEADS, WIDTH]),
            log_decays: tensor(&decays, &[n, HEADS]),
            betas: tensor(&betas, &[n, HEADS]),
        }
    }

    fn off(n: usize, heads: &Heads) -> f32 {
        let old = tensor(&noise(1, HEADS * KEYS * WIDTH), &[HEADS, KEYS, WIDTH]);
        let masks = Masks::new(&Device::Cpu).unwrap();
        let (out, state) = in_chunks(&old, heads, &masks).unwrap();
        let (want, want_state) = row_by_row(&old, heads).unwrap();
        assert_eq!(out.dims(), [n, HEADS, WIDTH]);
        furthest(&out, &want).max(furthest(&state, &want_state))
    }

    #[test]
    fn chunks_give_what_rows_give() {
        for n in [1, 15, 16, 17, 40, 64] {
            let keys = noise(3, n * HEADS * KEYS);
            // Decays from none to such that nothing is left.
            for strength in [0.0, 0.1, 3.0, 80.0] {
                let heads = heads(n, &keys, |g| -strength * g.abs(), f32::abs);
                let off = off(n, &heads);
                assert!(off < 2e-5, "{n} rows, decays to {strength}: off by {off}");
            }
        }
    }

    /// Near the worst case that the head of this file names; exactly there, all is whole numbers.
    #[test]
    fn the_same_key_again_and_again_costs_what_is_said() {
        let n = 64;
        for (spread, lack) in [(0.0, 0.0), (0.05, 0.0), (0.02, 0.03), (0.3, 0.1)] {
            let keys: Vec<_> = noise(3, n * HEADS * KEYS).iter().map(|v| 1.0 + spread * v).collect();
            let heads = heads(n, &keys, |g| -0.01 * lack * g.abs(), |b| 1.0 - lack * b.abs());
            let off = off(n, &heads);
            println!("off by {off}");
            assert!(off < 4e-3, "{spread} {lack}: off by {off}");
        }
    }
}
