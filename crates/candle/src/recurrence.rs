//! The recurrent part of a delta-net, over a step's rows: the seam for a device's own kernels.
//!
//! State `S [heads, key_dim, value_dim]`. For one row: `S *= decay`; `e = v - S^T k`; `S += k (beta e)^T`; `o = S^T q`. Source:
//! section 3.5 of the model's specification.

use std::ops::Range;

use candle_core::Tensor;
use forerun_compute::DeviceName;
use forerun_model::ModelShape;

use crate::chunks::{Masks, in_chunks};
use crate::delta_net::{Inputs, convolve};
use crate::device::Machine;
use crate::error::Failure;
use crate::state::Recurrent;
use crate::weights::DeltaNet;

/// What the rule takes, of consecutive rows; all contiguous.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    /// Normalised and scaled queries, `[rows, heads, key_dim]`.
    pub(crate) queries: Tensor,
    /// Normalised keys, `[rows, heads, key_dim]`.
    pub(crate) keys: Tensor,
    /// Values, `[rows, heads, value_dim]`.
    pub(crate) values: Tensor,
    /// Logarithms of what the state is multiplied with, at most 0, `[rows, heads]`.
    pub(crate) log_decays: Tensor,
    /// Strengths of the correction, in (0, 1), `[rows, heads]`.
    pub(crate) betas: Tensor,
}

impl Heads {
    /// Those of some of the rows.
    pub(crate) fn of(&self, rows: Range<usize>) -> Result<Self, Failure> {
        let of = |tensor: &Tensor| tensor.narrow(0, rows.start, rows.len());
        Ok(Self {
            queries: of(&self.queries)?,
            keys: of(&self.keys)?,
            values: of(&self.values)?,
            log_decays: of(&self.log_decays)?,
            betas: of(&self.betas)?,
        })
    }
}

/// A device's way from the raw projections of consecutive rows of one sequence to the heads' outputs: convolution, norms, the rule. The
/// bits of a row depend on the rows before it alone, however they are cut into calls, or a bound holds.
pub(crate) trait Recurrence: Send {
    /// The outputs, `[rows, value heads, value_dim]`, and what is remembered after the last row; `old` stays as it is.
    fn run(
        &self,
        w: &DeltaNet,
        shape: &ModelShape,
        inputs: &Inputs,
        old: &Recurrent,
    ) -> Result<(Tensor, Recurrent), Failure>;
}

/// The best way that there is on `machine`.
///
/// # Errors
/// When the device fails.
pub(crate) fn best(machine: &Machine) -> Result<Box<dyn Recurrence>, Failure> {
    let masks = match machine.name {
        DeviceName::Cpu => None,
        DeviceName::Cuda(_) | DeviceName::Metal(_) => Some(Masks::new(&machine.device)?),
    };
    Ok(Box::new(TensorOps { masks }))
}

/// Tensor operations, for every device.
#[derive(Debug)]
struct TensorOps {
    /// Where whole chunks of rows are computed at once.
    masks: Option<Masks>,
}

impl Recurrence for TensorOps {
    fn run(
        &self,
        w: &DeltaNet,
        shape: &ModelShape,
        inputs: &Inputs,
        old: &Recurrent,
    ) -> Result<(Tensor, Recurrent), Failure> {
        let (heads, conv) = convolve(w, shape, inputs, &old.conv)?;
        let (out, state) = match &self.masks {
            None => row_by_row(&old.state, &heads)?,
            Some(masks) => in_chunks(&old.state, &heads, masks)?,
        };
        Ok((out, Recurrent { state, conv }))
    }
}

/// The outputs, `[rows, heads, value_dim]`, and the state after the last row.
pub(crate) fn row_by_row(state: &Tensor, heads: &Heads) -> Result<(Tensor, Tensor), Failure> {
    let (n, n_heads, key_dim) = heads.keys.dims3()?;
    let value_dim = heads.values.dim(2)?;
    let decays = heads.log_decays.exp()?;
    let mut state = state.clone();
    let mut out = Vec::with_capacity(n);
    for row in 0..n {
        let of = |tensor: &Tensor| tensor.narrow(0, row, 1);
        let query = of(&heads.queries)?.reshape((n_heads, 1, key_dim))?;
        let key = of(&heads.keys)?.reshape((n_heads, 1, key_dim))?;
        let value = of(&heads.values)?.reshape((n_heads, 1, value_dim))?;
        let decay = of(&decays)?.reshape((n_heads, 1, 1))?;
        let beta = of(&heads.betas)?.reshape((n_heads, 1, 1))?;
        let decayed = state.broadcast_mul(&decay)?;
        let error = (value - key.matmul(&decayed)?)?.broadcast_mul(&beta)?;
        state = (decayed + key.reshape((n_heads, key_dim, 1))?.matmul(&error)?)?;
        out.push(query.matmul(&state)?.reshape((1, n_heads, value_dim))?);
    }
    Ok((Tensor::cat(&out, 0)?, state))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use forerun_compute::delta_net::{DeltaInput, step};

    use super::*;
    use crate::device::read;

    fn noise(seed: usize, n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
    }

    /// Against the rule of the processor's own stack, head by head, and in pieces.
    #[test]
    fn the_rule_is_that_of_the_twin_however_rows_are_cut() {
        let (n, n_heads, keys, width) = (9, 3, 16, 40);
        let old = noise(1, n_heads * keys * width);
        let (q, k) = (noise(2, n * n_heads * keys), noise(3, n * n_heads * keys));
        let (q, k): (Vec<_>, Vec<_>) = q.iter().zip(k).map(|(q, k)| (q / 4.0, k / 4.0)).unzip();
        let v = noise(4, n * n_heads * width);
        let log_decays: Vec<_> = noise(5, n * n_heads).iter().map(|g| -g.abs()).collect();
        let betas: Vec<_> = noise(6, n * n_heads).iter().map(|b| b.abs()).collect();
        let (mut want, mut want_state) = (vec![0.0; v.len()], old.clone());
        for (head, state) in want_state.chunks_exact_mut(keys * width).enumerate() {
            for row in 0..n {
                let at = row * n_heads + head;
                let input = DeltaInput {
                    query: &q[at * keys..][..keys],
                    key: &k[at * keys..][..keys],
                    value: &v[at * width..][..width],
                    log_decay: log_decays[at],
                    beta: betas[at],
                };
                step(None, state, input, &mut want[at * width..][..width]);
            }
        }
        let heads = Heads {
            queries: tensor(&q, &[n, n_heads, keys]),
            keys: tensor(&k, &[n, n_heads, keys]),
            values: tensor(&v, &[n, n_heads, width]),
            log_decays: tensor(&log_decays, &[n, n_heads]),
            betas: tensor(&betas, &[n, n_heads]),
        };
        let old = tensor(&old, &[n_heads, keys, width]);
        let before = read(&old).unwrap();
        let (out, state) = row_by_row(&old, &heads).unwrap();
        for (found, want) in
            [(&out, &want), (&state, &want_state)].map(|(found, want)| (read(found).unwrap(), want))
        {
            assert_eq!(found.len(), want.len());
            let off: Vec<_> = found.iter().zip(want).map(|(a, b)| (a - b).abs()).collect();
            assert!(off.iter().all(|&off| off < 2e-5), "off by {off:?}");
        }
        assert_eq!(read(&old).unwrap(), before, "the old state stays");
        let of = |rows: std::ops::Range<usize>| heads.of(rows).unwrap();
        let (first, middle) = row_by_row(&old, &of(0..4)).unwrap();
        let (second, last) = row_by_row(&middle, &of(4..9)).unwrap();
        let cut = [read(&first).unwrap(), read(&second).unwrap()].concat();
        assert_eq!((cut, read(&last).unwrap()), (read(&out).unwrap(), read(&state).unwrap()));
    }
}
