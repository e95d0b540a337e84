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
///
/// # Panics
/// When the sizes don't fit each other.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::{Isa, Loop};

    /// Tokens one after another, the first from `old`.
    struct Steps<'a> {
        old: &'a [f32],
        new: &'a mut [f32],
        inputs: &'a [DeltaInput<'a>],
        out: &'a mut [f32],
    }

    impl Loop for Steps<'_> {
        type Output = ();

        #[inline(always)]
        fn run(self) {
            for (i, input) in self.inputs.iter().enumerate() {
                let old = (i == 0).then_some(self.old);
                step(old, self.new, *input, &mut self.out[i * input.value.len()..][..input.value.len()]);
            }
        }
    }

    /// The rule as it is written at the top of this file, in f64.
    fn plain(state: &mut [f64], input: &DeltaInput<'_>) -> Vec<f64> {
        let (keys, width) = (input.key.len(), input.value.len());
        let wide = |x: f32| f64::from(x);
        state.iter_mut().for_each(|s| *s *= wide(input.log_decay).exp());
        let sum =
            |state: &[f64], by: &[f32], j| (0..keys).map(|i| state[i * width + j] * wide(by[i])).sum::<f64>();
        let errors: Vec<_> = (0..width).map(|j| wide(input.value[j]) - sum(state, input.key, j)).collect();
        for i in 0..keys {
            for j in 0..width {
                state[i * width + j] += wide(input.key[i]) * wide(input.beta) * errors[j];
            }
        }
        (0..width).map(|j| sum(state, input.query, j)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn steps_follow_the_rule_with_one_set_of_bits(
            (keys, width) in (1_usize..20, 1_usize..100),
            noise in prop::collection::vec(-1.0_f32..1.0, 2000 + 3 * 240),
        ) {
            let old = &noise[..keys * width];
            let inputs: Vec<_> = noise[2000..].chunks_exact(240).map(|x| DeltaInput {
                query: &x[..keys],
                key: &x[keys..2 * keys],
                value: &x[40..40 + width],
                log_decay: -x[200].abs(),
                beta: x[201].abs(),
            }).collect();
            let mut state: Vec<f64> = old.iter().map(|&s| f64::from(s)).collect();
            let want: Vec<f64> = inputs.iter().flat_map(|input| plain(&mut state, input)).collect();
            let mut bits = Vec::new();
            for isa in Isa::all() {
                let (mut new, mut out) = (vec![f32::NAN; old.len()], vec![f32::NAN; want.len()]);
                isa.run(Steps { old, new: &mut new, inputs: &inputs, out: &mut out });
                for (found, want) in out.iter().chain(&new).zip(want.iter().chain(&state)) {
                    prop_assert!((f64::from(*found) - want).abs() <= 1e-3 * want.abs().max(100.0), "{} {}", found, want);
                }
                bits.push(out.iter().chain(&new).map(|v| v.to_bits()).collect::<Vec<_>>());
            }
            prop_assert!(bits.iter().all(|b| *b == bits[0]), "every instruction set gives the same bits");
        }
    }
}
