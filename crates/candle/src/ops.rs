//! Small functions on f32 rows, as tensor operations. Each row's sum is by itself, so that its bits don't depend on the others.

use candle_core::{D, Tensor};

use crate::error::Failure;

/// `x / sqrt(mean(x^2) + eps) * weight` over the last axis.
#[expect(clippy::cast_precision_loss, reason = "a row's length is far below 2^24")]
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor, Failure> {
    let x = x.contiguous()?;
    let n = x.dim(D::Minus1)? as f64;
    let root = (x.sqr()?.sum_keepdim(D::Minus1)?.affine(1.0 / n, f64::from(eps)))?.sqrt()?;
    Ok(x.broadcast_div(&root)?.broadcast_mul(weight)?)
}

/// `x * factor / sqrt(sum(x^2) + eps)` over the last axis: the epsilon is inside the root.
pub(crate) fn l2_norm(x: &Tensor, eps: f32, factor: f64) -> Result<Tensor, Failure> {
    let root = x.sqr()?.sum_keepdim(D::Minus1)?.affine(1.0, f64::from(eps))?.sqrt()?;
    Ok(x.affine(factor, 0.0)?.broadcast_div(&root)?)
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: &Tensor) -> Result<Tensor, Failure> {
    Ok(x.neg()?.exp()?.affine(1.0, 1.0)?.recip()?)
}

/// `ln(1 + e^x)`, without overflow.
pub(crate) fn softplus(x: &Tensor) -> Result<Tensor, Failure> {
    let rest = x.abs()?.neg()?.exp()?.affine(1.0, 1.0)?.log()?;
    Ok((x.relu()? + rest)?)
}

/// Softmax over the last axis.
pub(crate) fn softmax(x: &Tensor) -> Result<Tensor, Failure> {
    let x = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    Ok(x.broadcast_div(&x.sum_keepdim(D::Minus1)?)?)
}

/// `down(silu(gate x) * up x)` of values that were multiplied: `silu(gate) * up`.
pub(crate) fn silu_times(gate: &Tensor, up: &Tensor) -> Result<Tensor, Failure> {
    Ok((gate.silu()? * up)?)
}

/// Cosines and sines of a step's rows, each `[rows, 1, n_rot / 2]`.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

/// Rotates the first channels of `heads [rows, heads, dim]`: channel `j` of the first `n_rot / 2` turns with `j + n_rot / 2`.
pub(crate) fn rotate(heads: &Tensor, turns: &Turns) -> Result<Tensor, Failure> {
    let (dim, half) = (heads.dim(2)?, turns.cos.dim(2)?);
    if half == 0 {
        return Ok(heads.clone());
    }
    let (a, b) = (heads.narrow(2, 0, half)?, heads.narrow(2, half, half)?);
    let first = (a.broadcast_mul(&turns.cos)? - b.broadcast_mul(&turns.sin)?)?;
    let second = (b.broadcast_mul(&turns.cos)? + a.broadcast_mul(&turns.sin)?)?;
    let rest = (dim > 2 * half).then(|| heads.narrow(2, 2 * half, dim - 2 * half)).transpose()?;
    let parts: Vec<_> = [Some(first), Some(second), rest].into_iter().flatten().collect();
    Ok(Tensor::cat(&parts, 2)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use forerun_compute::{ops, rope};

    use super::*;
    use crate::device::read;

    fn check(found: &Tensor, want: &[f32]) {
        for (found, want) in read(found).unwrap().iter().zip(want) {
            assert!((found - want).abs() <= 1e-6 * want.abs().max(1.0), "{found} instead of {want}");
        }
    }

    #[test]
    fn functions_are_those_of_the_twin() {
        let x: Vec<f32> = (-40..40_i16).map(|i| f32::from(i) * 2.3).collect();
        let tensor = Tensor::from_slice(&x, (5, 16), &Device::Cpu).unwrap();
        let of = |f: fn(f32) -> f32| x.iter().map(|x| f(*x)).collect::<Vec<_>>();
        check(&sigmoid(&tensor).unwrap(), &of(ops::sigmoid));
        check(&softplus(&tensor).unwrap(), &of(ops::softplus));
        check(&silu_times(&tensor, &tensor).unwrap(), &of(|x| ops::silu(x) * x));
        let weight: Vec<f32> = (0..16_u8).map(f32::from).collect();
        let weights = Tensor::from_slice(&weight, 16, &Device::Cpu).unwrap();
        let (mut normed, mut scaled, mut soft) = (x.clone(), x.clone(), x.clone());
        normed.chunks_exact_mut(16).for_each(|x| ops::rms_norm_in_place(x, &weight, 1e-3));
        scaled.chunks_exact_mut(16).for_each(|x| ops::l2_norm(x, 1e-3, 0.25));
        soft.chunks_exact_mut(16).for_each(ops::softmax);
        check(&rms_norm(&tensor, &weights, 1e-3).unwrap(), &normed);
        check(&l2_norm(&tensor, 1e-3, 0.25).unwrap(), &scaled);
        check(&softmax(&tensor).unwrap(), &soft);
    }

    #[test]
    fn heads_turn_like_the_twins() {
        for n_rot in [0, 8, 16] {
            let table: Vec<f32> =
                (0..n_rot / 2_u8).flat_map(|j| [f32::from(j).cos(), f32::from(j).sin()]).collect();
            let mut heads: Vec<f32> = (0..48_u8).map(|i| f32::from(i) - 20.0).collect();
            let tensor = Tensor::from_slice(&heads, (1, 3, 16), &Device::Cpu).unwrap();
            let half = |skip: usize| {
                let values: Vec<f32> = table.iter().skip(skip).step_by(2).copied().collect();
                Tensor::from_slice(&values, (1, 1, values.len()), &Device::Cpu).unwrap()
            };
            let turns = Turns { cos: half(0), sin: half(1) };
            heads.chunks_exact_mut(16).for_each(|head| rope::rotate(head, &table));
            check(&rotate(&tensor, &turns).unwrap(), &heads);
        }
    }
}
