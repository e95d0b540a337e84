//! A drafter's tensors, bound by name from wherever they lie; embeddings and head are the model's unless it has its own.

use forerun_model::drafter::{
    CONFIDENCE, CONFIDENCE_BIAS, FEATURES, FEATURES_NORM, MARKOV_IN, MARKOV_OUT, TARGET_IDS,
};
use forerun_model::names::{OUTPUT, OUTPUT_NORM, TOKEN_EMBD, block};
use forerun_model::{DrafterShape, LayerId, ShapeError};

use crate::ComputeError;
use crate::tensor::Tensor;
use crate::weights::{HeadNorms, Weights};

/// All tensors of a block drafter.
#[derive(Debug)]
pub struct DsparkWeights {
    /// What the file says.
    pub shape: DrafterShape,
    pub(super) embedding: Tensor,
    pub(super) output: Tensor,
    pub(super) features: Tensor,
    pub(super) features_norm: Vec<f32>,
    pub(super) output_norm: Vec<f32>,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) markov: Option<Markov>,
    pub(super) confidence: Option<Confidence>,
    /// The model's token of each that can be drafted; `None`: they are the same.
    pub(super) target_ids: Option<Vec<u32>>,
}

#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) attn_norm: Vec<f32>,
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    /// Without one, values are the keys before their norm.
    pub(super) v: Option<Tensor>,
    pub(super) output: Tensor,
    pub(super) head_norms: HeadNorms,
    pub(super) ffn_norm: Vec<f32>,
    pub(super) gate: Tensor,
    pub(super) up: Tensor,
    pub(super) down: Tensor,
}

/// What a token says of the next one: `out[next] . rows[token]`.
#[derive(Debug)]
pub(super) struct Markov {
    pub(super) rows: Tensor,
    pub(super) out: Tensor,
}

/// The confidence head.
#[derive(Debug)]
pub(super) struct Confidence {
    /// Weights of the slot's state, then of the row of the token before it if that is read.
    pub(super) weight: Vec<f32>,
    pub(super) bias: f32,
}

impl DsparkWeights {
    /// Binds every tensor through `find`, which returns the tensor of a name if there is one; what is absent is `target`'s.
    /// Dimensions must have been checked against [`forerun_model::drafter::specs`]. `target_ids` are the entries of the
    /// file's table of ids, if it has one.
    ///
    /// # Errors
    /// [`ComputeError`] for a missing tensor, a type that can't be computed with, or an id that isn't the model's.
    pub fn bind(
        shape: &DrafterShape,
        target: &Weights,
        target_ids: Option<&[i64]>,
        mut find: impl FnMut(&str) -> Option<Result<Tensor, ComputeError>>,
    ) -> Result<Self, ComputeError> {
        let mut binder = Binder { find: &mut find };
        let target_ids = target_ids.map(|ids| checked(ids, shape.n_vocab)).transpose()?;
        let output = match binder.optional(OUTPUT)? {
            Some(own) => own,
            // Rows of the model's head are in the order of its own tokens.
            None if target_ids.is_some() => return Err(missing(OUTPUT)),
            None => target.head().clone(),
        };
        let markov = match shape.markov_rank {
            Some(_) => Some(Markov { rows: binder.matrix(MARKOV_IN)?, out: binder.matrix(MARKOV_OUT)? }),
            None => None,
        };
        let confidence = match &shape.confidence {
            Some(_) => Some(Confidence {
                weight: binder.vector(CONFIDENCE)?,
                bias: binder.optional(CONFIDENCE_BIAS)?.map_or(0.0, |bias| bias.values()[0]),
            }),
            None => None,
        };
        let layers = (0..).take(shape.n_layers()).map(|idx| binder.layer(LayerId(idx)));
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            embedding: binder.optional(TOKEN_EMBD)?.unwrap_or_else(|| target.embedding().clone()),
            output,
            features: binder.matrix(FEATURES)?,
            features_norm: binder.vector(FEATURES_NORM)?,
            output_norm: binder.vector(OUTPUT_NORM)?,
            markov,
            confidence,
            target_ids,
            shape: shape.clone(),
        })
    }

    /// Bytes that a value of `shape` holds itself: decoded vectors, and the table of ids. Matrices are borrowed.
    pub fn own_bytes(shape: &DrafterShape) -> u64 {
        let layer = 2 * shape.hidden + 2 * shape.attention.head_dim;
        let confidence = shape.hidden + shape.markov_rank.unwrap_or(0);
        4 * (2 * shape.hidden + shape.n_layers() * layer + confidence + shape.n_drafted) as u64
    }
}

/// The ids as they are used.
fn checked(ids: &[i64], limit: usize) -> Result<Vec<u32>, ComputeError> {
    let id = |(row, &value): (usize, &i64)| {
        let id = u32::try_from(value).ok().filter(|&id| (id as usize) < limit);
        id.ok_or_else(|| ShapeError::TensorIndex { name: TARGET_IDS.to_owned(), row, value, limit }.into())
    };
    ids.iter().enumerate().map(id).collect()
}

fn missing(name: &str) -> ComputeError {
    ShapeError::MissingTensor { name: name.to_owned() }.into()
}

struct Binder<'a> {
    find: &'a mut dyn FnMut(&str) -> Option<Result<Tensor, ComputeError>>,
}

impl Binder<'_> {
    fn optional(&mut self, name: &str) -> Result<Option<Tensor>, ComputeError> {
        (self.find)(name).transpose()
    }

    fn matrix(&mut self, name: &str) -> Result<Tensor, ComputeError> {
        self.optional(name)?.ok_or_else(|| missing(name))
    }

    fn vector(&mut self, name: &str) -> Result<Vec<f32>, ComputeError> {
        Ok(self.matrix(name)?.values())
    }

    fn layer(&mut self, layer: LayerId) -> Result<LayerWeights, ComputeError> {
        Ok(LayerWeights {
            attn_norm: self.vector(&block(layer, "attn_norm"))?,
            q: self.matrix(&block(layer, "attn_q"))?,
            k: self.matrix(&block(layer, "attn_k"))?,
            v: self.optional(&block(layer, "attn_v"))?,
            output: self.matrix(&block(layer, "attn_output"))?,
            head_norms: HeadNorms {
                q: self.vector(&block(layer, "attn_q_norm"))?,
                k: self.vector(&block(layer, "attn_k_norm"))?,
            },
            ffn_norm: self.vector(&block(layer, "ffn_norm"))?,
            gate: self.matrix(&block(layer, "ffn_gate"))?,
            up: self.matrix(&block(layer, "ffn_up"))?,
            down: self.matrix(&block(layer, "ffn_down"))?,
        })
    }
}
