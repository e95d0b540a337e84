//! The gated delta rule, one value head and one token at a time.
//!
//! State `S[key_dim, value_dim]`, row-major. For one token: `S *= exp(g)`; `e = v - S^T k`;
//! `S += k (beta e)^T`; `o = S^T q`. Sums over the key index run from first to last, so that prefill, decode and
//! replay give the same bits however a text is cut. Source: section 3.5 of the model's specification.

use crate::ops::silu;

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

/// Advances `state` by one token and writes the head's output to `out`; `scratch` holds `value_dim` values.
pub fn step(state: &mut [f32], input: DeltaInput<'_>, scratch: &mut [f32], out: &mut [f32]) {
    let width = input.value.len();
    let decay = input.log_decay.exp();
    scratch.fill(0.0);
    for (row, &key) in state.chunks_exact_mut(width).zip(input.key) {
        for (s, predicted) in row.iter_mut().zip(&mut *scratch) {
            *s *= decay;
            *predicted += *s * key;
        }
    }
    for (correction, value) in scratch.iter_mut().zip(input.value) {
        *correction = (value - *correction) * input.beta;
    }
    out.fill(0.0);
    for ((row, &key), &query) in state.chunks_exact_mut(width).zip(input.key).zip(input.query) {
        for ((s, correction), out) in row.iter_mut().zip(&*scratch).zip(&mut *out) {
            *s += key * correction;
            *out += *s * query;
        }
    }
}

/// Causal depthwise convolution and SiLU of one token: `silu(sum_i weight[c, i] * window[i][c])`, where the window's
/// last row is the token itself.
pub fn convolve<'a>(weight: &[f32], window: impl ExactSizeIterator<Item = &'a [f32]>, out: &mut [f32]) {
    let taps = window.len();
    out.fill(0.0);
    for (tap, row) in window.enumerate() {
        for ((out, x), weight) in out.iter_mut().zip(row).zip(weight[tap..].iter().step_by(taps)) {
            *out += x * weight;
        }
    }
    for out in out {
        *out = silu(*out);
    }
}
