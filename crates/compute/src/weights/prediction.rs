//! A prediction block (MTP): one more layer, which guesses the token after next.
//!
//! `x = W [norm_e(embed(next token)) ; norm_h(state)]` enters the layer, where the state is the model's after its last
//! norm; a norm and the head follow it. The convention of Qwen3.5's files; `spec/dspark.md` section 6.

use forerun_model::names::{OUTPUT, OUTPUT_NORM, TOKEN_EMBD, block, block_bare};
use forerun_model::{ExpertLayout, LayerId, LayerKind, ModelShape, ShapeError};

use super::Weights;
use crate::ComputeError;
use crate::tensor::Tensor;

/// What stands before the layer of a prediction block.
#[derive(Debug)]
pub struct Entry {
    /// `[hidden, 2 * hidden]`.
    pub matrix: Tensor,
    /// Norm of the token's embedding, `[hidden]`.
    pub token_norm: Vec<f32>,
    /// Norm of the state, `[hidden]`.
    pub state_norm: Vec<f32>,
}

impl Weights {
    /// Binds the first prediction block of a model whose other weights are `target`: a model of one attention layer, whose
    /// steps begin with [`Stack::enter`](crate::Stack::enter). Embeddings and head are the target's unless the block has its
    /// own. `find` is asked for the names of [`forerun_model::names::prediction`].
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_prediction(
        target: &Self,
        experts: ExpertLayout,
        mut find: impl FnMut(&str) -> Option<Result<Tensor, ComputeError>>,
    ) -> Result<Self, ComputeError> {
        let layer = LayerId(u16::try_from(target.shape.n_layers()).unwrap_or(u16::MAX));
        let own = |name: &str| block(layer, &format!("nextn.{name}"));
        let shape = ModelShape { layers: vec![LayerKind::Attention], n_mtp: 0, ..target.shape.clone() };
        let name_there = |name: &str| renamed(name, layer);
        let weights = Self::bind(&shape, &[experts], |name| match name {
            TOKEN_EMBD => find(&own("embed_tokens")).or_else(|| Some(Ok(target.embedding.clone()))),
            OUTPUT => find(&own("shared_head_head")).or_else(|| Some(Ok(target.output.clone()))),
            OUTPUT_NORM => find(&own("shared_head_norm")).or_else(|| find(OUTPUT_NORM)),
            _ => find(&name_there(name)),
        });
        let mut weights = weights.map_err(|error| match error {
            ComputeError::Shape(ShapeError::MissingTensor { name }) => {
                ShapeError::MissingTensor { name: name_there(&name) }.into()
            }
            other => other,
        })?;
        let mut need = |name: String| find(&name).ok_or(ShapeError::MissingTensor { name })?;
        weights.entry = Some(Entry {
            matrix: need(own("eh_proj"))?,
            token_norm: need(own("enorm"))?.values(),
            state_norm: need(own("hnorm"))?.values(),
        });
        Ok(weights)
    }
}

/// What the file calls the tensor that is named `name` in a model of one layer.
fn renamed(name: &str, layer: LayerId) -> String {
    let rest = name.strip_prefix(&block_bare(LayerId(0), ""));
    rest.map_or_else(|| name.to_owned(), |rest| block_bare(layer, rest))
}
