//! Small functions on f32 rows, each with one order of sums.

use crate::kernels::{LANES, fold};

/// `e^x` to about one unit in the last place, in operations that every instruction set has: the argument is reduced by
/// multiples of `ln 2` (in two parts) and a polynomial of the rest is scaled by a power of two. Zero below the smallest
/// normal result, at most `e^88.3`; what is no number stays none. Source of the coefficients: Cephes' `expf`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const MAX: f32 = 88.376_26;
    const MIN: f32 = -87.336_54;
    const ROUND: f32 = 12_582_912.0;
    // Comparisons with what is no number fail, so that it passes.
    let y = if x > MAX { MAX } else { x };
    let y = if y < MIN { MIN } else { y };
    let shifted = y * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (y - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = (p * (r * r) + r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3F80_0000));
    if x < MIN { 0.0 } else { p * power }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`.
#[inline(always)]
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
#[inline(always)]
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
#[inline(always)]
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// [`rms_norm`] where it stands.
#[expect(clippy::cast_precision_loss, reason = "a row's length is far below 2^24")]
#[inline(always)]
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// `x *= factor / sqrt(sum(x^2) + eps)`: the epsilon is inside the root.
#[inline(always)]
pub fn l2_norm(x: &mut [f32], eps: f32, factor: f32) {
    let scale = factor / (dot(x, x) + eps).sqrt();
    for x in x {
        *x *= scale;
    }
}

/// `gate = silu(gate) * up`.
#[inline(always)]
pub fn silu_times(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = silu(*gate) * up;
    }
}

/// `out += factor * x`.
#[inline(always)]
pub fn add_scaled(out: &mut [f32], factor: f32, x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += factor * x;
    }
}

/// Adds `bias` to every row of as many values.
#[inline(always)]
pub fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        add_scaled(row, 1.0, bias);
    }
}

/// The largest value; what is no number is passed over.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let larger = |m: f32, v: f32| if v > m { v } else { m };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], x[i]);
        }
    }
    rest.iter().copied().chain(lanes).fold(f32::NEG_INFINITY, larger)
}

/// Softmax over the whole row, where it stands.
#[inline(always)]
pub fn softmax(x: &mut [f32]) {
    let max = max(x);
    for x in x.iter_mut() {
        *x = exp(*x - max);
    }
    let sum: f32 = x.iter().sum();
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
    fn exp_is_within_two_units_of_the_last_place() {
        for i in -8_700..=8_830_i16 {
            let x = f32::from(i) / 100.0;
            let (found, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((found / want - 1.0).abs() < 2.0 * f64::from(f32::EPSILON), "{x}: {found} {want}");
        }
        assert_eq!([exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        assert!(exp(f32::INFINITY) > 1e38 && exp(f32::INFINITY).is_finite() && exp(f32::NAN).is_nan());
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
