//! The gated delta rule, one value head and one token at a time.
//!
//! State `S[key_dim, value_dim]`, row-major. For one token: `S *= exp(g)`; `e = v - S^T k`;
//! `S += k (beta e)^T`; `o = S^T q`. Sums over the key index run from first to last, so that prefill, decode and
//! replay give the same bits however a text is cut. Source: section 3.5 of the model's specification.

use crate::ops::{exp, silu};

/// One token's inputs for one value head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInput<'a> {
    /// Normalised and scaled query, `[key_dim]`.
    pub query: &'a [f32],
    /// Normalised key, `[key_dim]`.
    pub key: &'a [f32],
    /// Value, `[value_dim]`.
    pub value: &'a [f32],
    /// Logarithm of the decay, at most 0.
    pub log_decay: f32,
    /// Strength of the correction, in (0, 1).
    pub beta: f32,
}

/// Columns of the state that are walked at once: with 128 keys they fit a first-level cache, so that the second walk
/// over them finds them there.
const COLUMNS: usize = 32;

/// Writes the state after one token to `new` and the head's output to `out`; `old` is the state before it, or `None` when
/// that is what `new` holds.
#[inline(always)]
pub fn step(old: Option<&[f32]>, new: &mut [f32], input: DeltaInput<'_>, out: &mut [f32]) {
    let width = input.value.len();
    let decay = exp(input.log_decay);
    let mut column = 0;
    while column + COLUMNS <= width {
        let out: &mut [f32; COLUMNS] = out[column..].first_chunk_mut().expect("a whole block of columns");
        columns::<COLUMNS>(old, new, input, decay, column, out);
        column += COLUMNS;
    }
    for column in column..width {
        let out: &mut [f32; 1] = out[column..].first_chunk_mut().expect("a column");
        columns::<1>(old, new, input, decay, column, out);
    }
}

/// [`step`] on the `N` columns from `first` on.
#[inline(always)]
fn columns<const N: usize>(
    old: Option<&[f32]>,
    new: &mut [f32],
    input: DeltaInput<'_>,
    decay: f32,
    first: usize,
    out: &mut [f32; N],
) {
    let DeltaInput { query, key, value, beta, .. } = input;
    let width = value.len();
    let block = |state: &[f32], i: usize| -> [f32; N] {
        *state[i * width + first..].first_chunk().expect("a row of the state")
    };
    let mut correction = [0.0; N];
    let state = old.unwrap_or(new);
    for (i, &key) in key.iter().enumerate() {
        let state = block(state, i);
        for j in 0..N {
            correction[j] += state[j] * decay * key;
        }
    }
    for j in 0..N {
        correction[j] = (value[first + j] - correction[j]) * beta;
    }
    let mut sum = [0.0; N];
    for (i, (&key, &query)) in key.iter().zip(query).enumerate() {
        let mut state = block(old.unwrap_or(new), i);
        for j in 0..N {
            state[j] = state[j] * decay + key * correction[j];
            sum[j] += state[j] * query;
        }
        new[i * width + first..][..N].copy_from_slice(&state);
    }
    *out = sum;
}

/// Causal depthwise convolution and SiLU of some channels of one token: `silu(sum_i weights[i][c] * window[i][c])`, where
/// the window's last row is the token itself.
#[inline(always)]
pub fn convolve<'a>(taps: impl Iterator<Item = (&'a [f32], &'a [f32])>, out: &mut [f32]) {
    out.fill(0.0);
    for (weights, row) in taps {
        for ((out, x), weight) in out.iter_mut().zip(row).zip(weights) {
            *out += x * weight;
        }
    }
    for out in out {
        *out = silu(*out);
    }
}
