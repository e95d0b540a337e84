//! Small functions on f32 rows, each with one order of sums.

use crate::dot::{LANES, fold};

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, without overflow.
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The product of two rows, summed in [`LANES`] lanes.
///
/// # Panics
/// When their lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of one length");
    let mut lanes = [0.0; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] += a * b;
    }
    fold(lanes)
}

/// `out = x / sqrt(mean(x^2) + eps) * weight`.
#[expect(clippy::cast_precision_loss, reason = "a row's length is far below 2^24")]
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// [`rms_norm`] where it stands.
#[expect(clippy::cast_precision_loss, reason = "a row's length is far below 2^24")]
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// `x *= factor / sqrt(sum(x^2) + eps)`: the epsilon is inside the root.
pub fn l2_norm(x: &mut [f32], eps: f32, factor: f32) {
    let scale = factor / (dot(x, x) + eps).sqrt();
    for x in x {
        *x *= scale;
    }
}

/// `gate = silu(gate) * up`.
pub fn silu_times(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = silu(*gate) * up;
    }
}

/// `out += factor * x`.
pub fn add_scaled(out: &mut [f32], factor: f32, x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += factor * x;
    }
}

/// Adds `bias` to every row of as many values.
pub fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        add_scaled(row, 1.0, bias);
    }
}

/// Softmax over the whole row, where it stands.
pub fn softmax(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = (*x - max).exp();
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_the_identity_far_out_and_never_infinite() {
        assert_eq!(softplus(100.0), 100.0);
        assert!(softplus(-100.0) >= 0.0 && softplus(-100.0) < 1e-40);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
    }

    #[test]
    fn a_zero_row_has_a_finite_norm() {
        let mut x = [0.0; 8];
        l2_norm(&mut x, 1e-6, 1.0);
        assert_eq!(x, [0.0; 8]);
        rms_norm_in_place(&mut x, &[1.0; 8], 1e-6);
        assert_eq!(x, [0.0; 8]);
    }
}
