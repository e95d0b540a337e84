//! A delta-net's tensors, apart or in groups of rows that belong to one key head.
//!
//! `qwen3next` files keep betas and alphas in one matrix, `ssm_ba`, and older ones also queries, keys, values and gates
//! in one, `ssm_in`. In both, the rows of the first key head come first, one kind after the other, then those of the
//! second. The block wants each kind by itself, so the rows are copied into that order once. A row is whole
//! quantisation blocks, so nothing is lost.

use forerun_model::names::{block, block_bare};
use forerun_model::{DeltaNetShape, HeadOrder, LayerId};

use super::{Binder, DeltaNetWeights, transposed};
use crate::ComputeError;
use crate::tensor::Tensor;

impl Binder<'_> {
    /// # Panics
    /// When the shape has no delta-net.
    pub(super) fn delta_net(&mut self, layer: LayerId) -> Result<DeltaNetWeights, ComputeError> {
        let net = self.shape.delta_net.expect("a shape with such a layer says how large it is");
        let [qkv, gate] = self.projections(layer, &net)?;
        let [beta, alpha] = self.beta_and_alpha(layer, &net)?;
        Ok(DeltaNetWeights {
            qkv,
            gate,
            beta,
            alpha,
            conv: transposed(&self.vector(&block(layer, "ssm_conv1d"))?, net.conv_kernel),
            a: self.vector(&block_bare(layer, "ssm_a"))?,
            dt: self.vector(&block_bare(layer, "ssm_dt.bias"))?,
            norm: self.vector(&block(layer, "ssm_norm"))?,
            output: self.matrix(&block(layer, "ssm_out"))?,
        })
    }

    /// Queries, keys and values in one matrix, and gates.
    fn projections(&mut self, layer: LayerId, net: &DeltaNetShape) -> Result<[Tensor; 2], ComputeError> {
        let Some(all) = self.grouped(&block(layer, "ssm_in"), net)? else {
            return Ok([self.matrix(&block(layer, "attn_qkv"))?, self.matrix(&block(layer, "attn_gate"))?]);
        };
        let values = net.value_width() / net.n_key_heads;
        let [queries, keys, values, gates] =
            kinds(net.n_key_heads, [net.key_dim, net.key_dim, values, values]);
        Ok([self.regroup(&all, &[queries, keys, values].concat()), self.regroup(&all, &gates)])
    }

    fn beta_and_alpha(&mut self, layer: LayerId, net: &DeltaNetShape) -> Result<[Tensor; 2], ComputeError> {
        let Some(both) = self.grouped(&block(layer, "ssm_ba"), net)? else {
            return Ok([self.matrix(&block(layer, "ssm_beta"))?, self.matrix(&block(layer, "ssm_alpha"))?]);
        };
        let rows = kinds(net.n_key_heads, [net.n_value_heads / net.n_key_heads; 2]);
        Ok(rows.map(|rows| self.regroup(&both, &rows)))
    }

    /// The matrix of all kinds, where the file has it; with reordered heads none can be.
    fn grouped(&mut self, name: &str, net: &DeltaNetShape) -> Result<Option<Tensor>, ComputeError> {
        if net.order == HeadOrder::Grouped { self.optional(name) } else { Ok(None) }
    }

    fn regroup(&mut self, tensor: &Tensor, rows: &[usize]) -> Tensor {
        let copy = tensor.select_rows(rows);
        self.regrouped.add(tensor.name(), copy.matrix().bytes.len());
        copy
    }
}

/// The rows of each kind, of a matrix in which each of `n_heads` groups has `lens[i]` rows of kind `i`.
fn kinds<const N: usize>(n_heads: usize, lens: [usize; N]) -> [Vec<usize>; N] {
    let group: usize = lens.iter().sum();
    std::array::from_fn(|kind| {
        let first: usize = lens[..kind].iter().sum();
        let starts = (0..n_heads).map(|head| head * group + first);
        starts.flat_map(|start| start..start + lens[kind]).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_gathered_from_every_head() {
        let [queries, keys, values] = kinds(2, [2, 1, 3]);
        assert_eq!((queries, keys, values), (vec![0, 1, 6, 7], vec![2, 8], vec![3, 4, 5, 9, 10, 11]));
    }
}
