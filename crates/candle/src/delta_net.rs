//! The gated delta-net: convolution, the delta rule, and the gated norm of its outputs.

use std::ops::Range;

use candle_core::Tensor;
use forerun_model::{DeltaNetShape, ModelShape};

use crate::error::Failure;
use crate::ops::{l2_norm, rms_norm, sigmoid, softplus};
use crate::recurrence::Heads;
use crate::weights::DeltaNet;

/// What enters the recurrence: raw projections `[rows, channels]`, logarithms of the decay and strengths of the correction
/// `[rows, value heads]`.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) projections: Tensor,
    pub(crate) log_decays: Tensor,
    pub(crate) betas: Tensor,
}

/// Multiplies the normalised rows `x`; the second is the gates of the outputs, `[rows, value heads, value_dim]`.
pub(crate) fn project(w: &DeltaNet, net: &DeltaNetShape, x: &Tensor) -> Result<(Inputs, Tensor), Failure> {
    let gates = w.gate.times(x)?.reshape((x.dim(0)?, net.n_value_heads, net.value_dim))?;
    let alphas = softplus(&w.alpha.times(x)?.broadcast_add(&w.dt)?)?;
    let inputs = Inputs {
        projections: w.qkv.times(x)?,
        log_decays: alphas.broadcast_mul(&w.a)?,
        betas: sigmoid(&w.beta.times(x)?)?,
    };
    Ok((inputs, gates))
}

impl Inputs {
    /// Those of some of the rows.
    pub(crate) fn of(&self, rows: Range<usize>) -> Result<Self, Failure> {
        let of = |tensor: &Tensor| tensor.narrow(0, rows.start, rows.len());
        Ok(Self {
            projections: of(&self.projections)?,
            log_decays: of(&self.log_decays)?,
            betas: of(&self.betas)?,
        })
    }

    /// The same in memory of its own, to be kept without the step's other rows.
    pub(crate) fn apart(&self) -> Result<Self, Failure> {
        Ok(Self {
            projections: self.projections.force_contiguous()?,
            log_decays: self.log_decays.force_contiguous()?,
            betas: self.betas.force_contiguous()?,
        })
    }
}

/// Convolution and norms: what the rule takes, and the history for the next step.
pub(crate) fn convolve(
    w: &DeltaNet,
    shape: &ModelShape,
    inputs: &Inputs,
    history: &Tensor,
) -> Result<(Heads, Tensor), Failure> {
    let net = shape.delta_net.as_ref().expect("a layer of this kind has its shape");
    let n = inputs.projections.dim(0)?;
    let window = Tensor::cat(&[history, &inputs.projections], 0)?;
    let next = window.narrow(0, n, net.conv_kernel - 1)?.force_contiguous()?;
    let at = |tap: usize| window.narrow(0, tap, n)?.broadcast_mul(&w.conv.narrow(0, tap, 1)?);
    let mut convolved = at(0)?;
    for tap in 1..net.conv_kernel {
        convolved = (convolved + at(tap)?)?;
    }
    Ok((heads(w, net, shape.norm_eps, &convolved.silu()?, inputs)?, next))
}

/// Queries, keys and values of every value head.
#[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
fn heads(w: &DeltaNet, net: &DeltaNetShape, eps: f32, x: &Tensor, inputs: &Inputs) -> Result<Heads, Failure> {
    let (n, key_width) = (x.dim(0)?, net.n_key_heads * net.key_dim);
    let keyed = |first: usize, factor: f64| -> Result<Tensor, Failure> {
        let heads = x.narrow(1, first, key_width)?.reshape((n, net.n_key_heads, net.key_dim))?;
        Ok(l2_norm(&heads, eps, factor)?.index_select(&w.key_heads, 1)?)
    };
    let values = x.narrow(1, 2 * key_width, net.value_width())?;
    Ok(Heads {
        queries: keyed(0, 1.0 / (net.key_dim as f64).sqrt())?,
        keys: keyed(key_width, 1.0)?,
        values: values.reshape((n, net.n_value_heads, net.value_dim))?,
        log_decays: inputs.log_decays.contiguous()?,
        betas: inputs.betas.contiguous()?,
    })
}

/// Each head's output normalised and multiplied with its gate: `[rows, value heads * value_dim]`.
pub(crate) fn gated(w: &DeltaNet, eps: f32, out: &Tensor, gates: &Tensor) -> Result<Tensor, Failure> {
    let (n, heads, dim) = out.dims3()?;
    let out = (rms_norm(out, &w.norm, eps)? * gates.silu()?)?;
    Ok(out.reshape((n, heads * dim))?)
}
