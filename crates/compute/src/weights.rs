//! The resident part of a model, bound by name from wherever it lies.

use forerun_model::names::{OUTPUT, OUTPUT_NORM, TOKEN_EMBD, block, block_bare};
use forerun_model::{ExpertLayout, LayerId, LayerKind, ModelShape, ShapeError};

use crate::ComputeError;
use crate::tensor::{Tensor, check_type};

/// All resident tensors of a model and the layout of its experts.
#[derive(Debug)]
pub struct Weights {
    /// The model's shape.
    pub shape: ModelShape,
    /// How an expert's matrices lie in a slot, per layer.
    pub experts: Vec<ExpertLayout>,
    pub(crate) embedding: Tensor,
    pub(crate) output_norm: Vec<f32>,
    pub(crate) output: Tensor,
    pub(crate) layers: Vec<LayerWeights>,
}

#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) post_norm: Vec<f32>,
    pub(crate) mixer: Mixer,
    pub(crate) router: Tensor,
    pub(crate) shared: SharedExpert,
}

#[derive(Debug)]
pub(crate) struct SharedExpert {
    pub(crate) gate: Tensor,
    pub(crate) up: Tensor,
    pub(crate) down: Tensor,
    /// One row: the logit of how much of it is added.
    pub(crate) switch: Tensor,
}

#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(AttentionWeights),
    DeltaNet(DeltaNetWeights),
}

#[derive(Debug)]
pub(crate) struct AttentionWeights {
    /// Queries and gates, keys, values: one fused tensor, or three.
    pub(crate) qkv: Qkv,
    pub(crate) output: Tensor,
    pub(crate) q_norm: Vec<f32>,
    pub(crate) k_norm: Vec<f32>,
}

#[derive(Debug)]
pub(crate) enum Qkv {
    Fused(Tensor),
    Separate { q: Tensor, k: Tensor, v: Tensor },
}

#[derive(Debug)]
pub(crate) struct DeltaNetWeights {
    pub(crate) qkv: Tensor,
    pub(crate) gate: Tensor,
    pub(crate) beta: Tensor,
    pub(crate) alpha: Tensor,
    /// `[conv_kernel, channels]`: the file has it the other way round.
    pub(crate) conv: Vec<f32>,
    /// `-exp(A_log)`.
    pub(crate) a: Vec<f32>,
    pub(crate) dt: Vec<f32>,
    pub(crate) norm: Vec<f32>,
    pub(crate) output: Tensor,
}

impl Weights {
    /// Binds every resident tensor through `find`, which returns the tensor of a usual name (the first of its
    /// [`Spec::names`](forerun_model::names::Spec::names)), if there is one. Dimensions
    /// must have been checked against [`forerun_model::names::resident`]; here they are only trusted as far as bytes reach.
    ///
    /// # Errors
    /// [`ComputeError`] for a missing tensor, or an expert type without a kernel.
    ///
    /// # Panics
    /// When there isn't an expert layout for every layer.
    pub fn bind(
        shape: &ModelShape,
        experts: &[ExpertLayout],
        mut find: impl FnMut(&str) -> Option<Result<Tensor, ComputeError>>,
    ) -> Result<Self, ComputeError> {
        assert_eq!(experts.len(), shape.n_layers(), "an expert layout for every layer");
        for (layer, expert) in shape.layer_ids().zip(experts) {
            for (name, part) in [("gate", expert.gate), ("up", expert.up), ("down", expert.down)] {
                check_type(&block(layer, &format!("ffn_{name}_exps")), part.quant)?;
            }
        }
        let mut binder = Binder { shape, find: &mut find };
        let embedding = binder.matrix(TOKEN_EMBD)?;
        let output = binder.optional(OUTPUT)?.unwrap_or_else(|| embedding.clone());
        let output_norm = binder.vector(OUTPUT_NORM)?;
        let layers = shape.layer_ids().map(|layer| binder.layer(layer)).collect::<Result<_, _>>()?;
        Ok(Self { shape: shape.clone(), experts: experts.to_vec(), embedding, output_norm, output, layers })
    }
}

impl Weights {
    /// Bytes that this value holds itself: vectors decoded to f32. Matrices are borrowed.
    pub fn own_bytes(&self) -> u64 {
        let mixer = |mixer: &Mixer| match mixer {
            Mixer::Attention(w) => w.q_norm.len() + w.k_norm.len(),
            Mixer::DeltaNet(w) => w.conv.len() + w.a.len() + w.dt.len() + w.norm.len(),
        };
        let layer = |l: &LayerWeights| l.attn_norm.len() + l.post_norm.len() + mixer(&l.mixer);
        4 * (self.output_norm.len() + self.layers.iter().map(layer).sum::<usize>()) as u64
    }
}

struct Binder<'a> {
    shape: &'a ModelShape,
    find: &'a mut dyn FnMut(&str) -> Option<Result<Tensor, ComputeError>>,
}

impl Binder<'_> {
    fn optional(&mut self, name: &str) -> Result<Option<Tensor>, ComputeError> {
        (self.find)(name).transpose()
    }

    fn matrix(&mut self, name: &str) -> Result<Tensor, ComputeError> {
        self.optional(name)?.ok_or_else(|| ShapeError::MissingTensor { name: name.to_owned() }.into())
    }

    fn vector(&mut self, name: &str) -> Result<Vec<f32>, ComputeError> {
        Ok(self.matrix(name)?.values())
    }

    fn layer(&mut self, layer: LayerId) -> Result<LayerWeights, ComputeError> {
        let mixer = match self.shape.layers[layer.idx()] {
            LayerKind::Attention => Mixer::Attention(self.attention(layer)?),
            LayerKind::DeltaNet => Mixer::DeltaNet(self.delta_net(layer)?),
        };
        Ok(LayerWeights {
            attn_norm: self.vector(&block(layer, "attn_norm"))?,
            post_norm: self.vector(&block(layer, "post_attention_norm"))?,
            mixer,
            router: self.matrix(&block(layer, "ffn_gate_inp"))?,
            shared: SharedExpert {
                gate: self.matrix(&block(layer, "ffn_gate_shexp"))?,
                up: self.matrix(&block(layer, "ffn_up_shexp"))?,
                down: self.matrix(&block(layer, "ffn_down_shexp"))?,
                switch: self.matrix(&block(layer, "ffn_gate_inp_shexp"))?,
            },
        })
    }

    fn attention(&mut self, layer: LayerId) -> Result<AttentionWeights, ComputeError> {
        let qkv = match self.optional(&block(layer, "attn_qkv"))? {
            Some(fused) => Qkv::Fused(fused),
            None => Qkv::Separate {
                q: self.matrix(&block(layer, "attn_q"))?,
                k: self.matrix(&block(layer, "attn_k"))?,
                v: self.matrix(&block(layer, "attn_v"))?,
            },
        };
        Ok(AttentionWeights {
            qkv,
            output: self.matrix(&block(layer, "attn_output"))?,
            q_norm: self.vector(&block(layer, "attn_q_norm"))?,
            k_norm: self.vector(&block(layer, "attn_k_norm"))?,
        })
    }

    fn delta_net(&mut self, layer: LayerId) -> Result<DeltaNetWeights, ComputeError> {
        Ok(DeltaNetWeights {
            qkv: self.matrix(&block(layer, "attn_qkv"))?,
            gate: self.matrix(&block(layer, "attn_gate"))?,
            beta: self.matrix(&block(layer, "ssm_beta"))?,
            alpha: self.matrix(&block(layer, "ssm_alpha"))?,
            conv: transposed(&self.vector(&block(layer, "ssm_conv1d"))?, self.shape.delta_net.conv_kernel),
            a: self.vector(&block_bare(layer, "ssm_a"))?,
            dt: self.vector(&block_bare(layer, "ssm_dt.bias"))?,
            norm: self.vector(&block(layer, "ssm_norm"))?,
            output: self.matrix(&block(layer, "ssm_out"))?,
        })
    }
}

/// Rows of `n_cols` values as columns.
fn transposed(rows: &[f32], n_cols: usize) -> Vec<f32> {
    (0..n_cols).flat_map(|j| rows.iter().skip(j).step_by(n_cols)).copied().collect()
}
