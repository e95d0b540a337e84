//! The resident part of a model, bound by name from wherever it lies.
//!
//! What an architecture lacks is `None` here, so that a block asks for the part and never for a name.

mod delta_net;
mod guess_router;
mod prediction;

use forerun_model::names::{OUTPUT, OUTPUT_NORM, TOKEN_EMBD, block, block_bare};
use forerun_model::{AttentionShape, ExpertLayout, LayerId, LayerKind, ModelShape, ShapeError};

use crate::ComputeError;
use crate::tensor::{Tensor, check_type};
pub use prediction::Entry;

/// All resident tensors of a model and the layout of its experts.
#[derive(Debug)]
pub struct Weights {
    /// The model's shape.
    pub shape: ModelShape,
    /// How an expert's matrices lie in a slot, per layer.
    pub experts: Vec<ExpertLayout>,
    /// The table of embeddings, `[n_vocab, hidden]`.
    pub embedding: Tensor,
    /// The norm before the head, `[hidden]`.
    pub output_norm: Vec<f32>,
    /// The head, `[n_vocab, hidden]`.
    pub output: Tensor,
    /// One entry a layer.
    pub layers: Vec<LayerWeights>,
    /// Of a prediction block.
    pub entry: Option<Entry>,
    regrouped: Regrouped,
}

/// What was copied to bring rows into another order.
#[derive(Debug, Default)]
struct Regrouped {
    /// Usual names of the tensors that were copied from.
    names: Vec<String>,
    bytes: u64,
}

impl Regrouped {
    fn add(&mut self, name: &str, bytes: usize) {
        if self.names.last().is_none_or(|last| last != name) {
            self.names.push(name.to_owned());
        }
        self.bytes += bytes as u64;
    }
}

/// The resident part of a layer.
#[derive(Debug)]
pub struct LayerWeights {
    /// The norm before the mixer, `[hidden]`.
    pub attn_norm: Vec<f32>,
    /// The norm before router and experts, `[hidden]`.
    pub post_norm: Vec<f32>,
    /// The mixer.
    pub mixer: Mixer,
    /// `[n_experts, hidden]`.
    pub router: Tensor,
    /// The router in fewer bits.
    pub guess_router: Option<Tensor>,
    /// The shared expert, where there is one.
    pub shared: Option<SharedExpert>,
}

/// The expert that every row uses.
#[derive(Debug)]
pub struct SharedExpert {
    /// `[shared_ff, hidden]`.
    pub gate: Tensor,
    /// `[shared_ff, hidden]`.
    pub up: Tensor,
    /// `[hidden, shared_ff]`.
    pub down: Tensor,
    /// One row: the logit of how much of it is added.
    pub switch: Tensor,
}

/// What mixes a layer's tokens.
#[derive(Debug)]
pub enum Mixer {
    /// Softmax attention.
    Attention(AttentionWeights),
    /// The gated delta rule.
    DeltaNet(DeltaNetWeights),
}

/// Softmax attention.
#[derive(Debug)]
pub struct AttentionWeights {
    /// Queries and gates, keys, values: one fused tensor, or three.
    pub qkv: Qkv,
    /// What is added to their products, where the file has it.
    pub biases: Option<Biases>,
    /// `[hidden, heads * head_dim]`.
    pub output: Tensor,
    /// Norms of the heads, where the architecture has them.
    pub head_norms: Option<HeadNorms>,
}

/// What is added to the products with the layer's input.
#[derive(Debug)]
pub struct Biases {
    /// Of queries, and of gates where there are gates, `[query_rows]`.
    pub q: Vec<f32>,
    /// Of keys, `[kv_width]`.
    pub k: Vec<f32>,
    /// Of values, `[kv_width]`.
    pub v: Vec<f32>,
}

/// Weights of the norms of each head's query and key, `[head_dim]`.
#[derive(Debug)]
pub struct HeadNorms {
    /// Of queries.
    pub q: Vec<f32>,
    /// Of keys.
    pub k: Vec<f32>,
}

/// The first products of attention; a head's gate, where there is one, follows its query.
#[derive(Debug)]
pub enum Qkv {
    /// Rows of queries and gates, then of keys, then of values.
    Fused(Tensor),
    /// One matrix each.
    Separate {
        /// `[query_rows, hidden]`.
        q: Tensor,
        /// `[kv_width, hidden]`.
        k: Tensor,
        /// `[kv_width, hidden]`.
        v: Tensor,
    },
}

/// The gated delta-net.
#[derive(Debug)]
pub struct DeltaNetWeights {
    /// Queries, keys and values, `[conv_channels, hidden]`.
    pub qkv: Tensor,
    /// Gates of the output, `[value_width, hidden]`.
    pub gate: Tensor,
    /// Strengths of the correction, `[value heads, hidden]`.
    pub beta: Tensor,
    /// What decays are made of, `[value heads, hidden]`.
    pub alpha: Tensor,
    /// `[conv_kernel, channels]`: the file has it the other way round.
    pub conv: Vec<f32>,
    /// `-exp(A_log)`, `[value heads]`.
    pub a: Vec<f32>,
    /// What is added to the alphas, `[value heads]`.
    pub dt: Vec<f32>,
    /// The norm of a head's output, `[value_dim]`.
    pub norm: Vec<f32>,
    /// `[hidden, value_width]`.
    pub output: Tensor,
}

impl Weights {
    /// Binds every resident tensor through `find`, which returns the tensor of a usual name (the first of its
    /// [`Spec::names`](forerun_model::names::Spec::names)), if there is one. Dimensions must have been checked against
    /// [`forerun_model::names::resident`]; here they are only trusted as far as bytes reach.
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
        let mut binder = Binder { shape, find: &mut find, regrouped: Regrouped::default() };
        let embedding = binder.matrix(TOKEN_EMBD)?;
        let output = binder.optional(OUTPUT)?.unwrap_or_else(|| embedding.clone());
        let output_norm = binder.vector(OUTPUT_NORM)?;
        let layers = shape.layer_ids().map(|layer| binder.layer(layer)).collect::<Result<_, _>>()?;
        let (regrouped, (shape, experts)) = (binder.regrouped, (shape.clone(), experts.to_vec()));
        Ok(Self { shape, experts, embedding, output_norm, output, layers, entry: None, regrouped })
    }
}

impl Weights {
    /// The table of embeddings, `[n_vocab, hidden]`.
    pub fn embedding(&self) -> &Tensor {
        &self.embedding
    }

    /// The head, `[n_vocab, hidden]`; the table of embeddings where a file has no other.
    pub fn head(&self) -> &Tensor {
        &self.output
    }

    /// Bytes that this value holds itself: vectors decoded to f32, and matrices whose rows were brought into another
    /// order. All other matrices are borrowed.
    pub fn own_bytes(&self) -> u64 {
        let mixer = |mixer: &Mixer| match mixer {
            Mixer::Attention(w) => w.n_values(),
            Mixer::DeltaNet(w) => w.conv.len() + w.a.len() + w.dt.len() + w.norm.len(),
        };
        let layer = |l: &LayerWeights| l.attn_norm.len() + l.post_norm.len() + mixer(&l.mixer);
        let entry = self.entry.as_ref().map_or(0, |entry| entry.token_norm.len() + entry.state_norm.len());
        let n_values = entry + self.output_norm.len() + self.layers.iter().map(layer).sum::<usize>();
        4 * n_values as u64 + self.regrouped.bytes
    }

    /// Bytes of matrices whose rows were brought into another order: the part of [`Self::own_bytes`] that every token
    /// reads in place of the file's.
    pub fn regrouped_bytes(&self) -> u64 {
        self.regrouped.bytes
    }

    /// Usual names of tensors that aren't needed any more, since these weights hold their rows in another order.
    pub fn regrouped(&self) -> &[String] {
        &self.regrouped.names
    }
}

impl AttentionWeights {
    /// Decoded values.
    fn n_values(&self) -> usize {
        let norms = self.head_norms.as_ref().map_or(0, |norms| norms.q.len() + norms.k.len());
        norms + self.biases.as_ref().map_or(0, |biases| biases.q.len() + biases.k.len() + biases.v.len())
    }
}

struct Binder<'a> {
    shape: &'a ModelShape,
    find: &'a mut dyn FnMut(&str) -> Option<Result<Tensor, ComputeError>>,
    regrouped: Regrouped,
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
            guess_router: None,
            shared: self.shape.moe.shared_ff.map(|_| self.shared_expert(layer)).transpose()?,
        })
    }

    fn shared_expert(&mut self, layer: LayerId) -> Result<SharedExpert, ComputeError> {
        Ok(SharedExpert {
            gate: self.matrix(&block(layer, "ffn_gate_shexp"))?,
            up: self.matrix(&block(layer, "ffn_up_shexp"))?,
            down: self.matrix(&block(layer, "ffn_down_shexp"))?,
            switch: self.matrix(&block(layer, "ffn_gate_inp_shexp"))?,
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
        let att = self.shape.attention;
        let biases = self.biases(layer, &att)?;
        let head_norms = att.parts.head_norms.then(|| self.head_norms(layer)).transpose()?;
        Ok(AttentionWeights { qkv, biases, output: self.matrix(&block(layer, "attn_output"))?, head_norms })
    }

    /// One vector for all, or three, as with the matrices; or none: whether there are any is the file's to say.
    ///
    /// # Errors
    /// [`ShapeError::MissingTensor`] where some of the three are there, with the first that isn't.
    fn biases(&mut self, layer: LayerId, att: &AttentionShape) -> Result<Option<Biases>, ComputeError> {
        if let Some(fused) = self.optional(&block_bare(layer, "attn_qkv.bias"))? {
            let mut q = fused.values();
            let mut k = q.split_off(att.query_rows());
            let v = k.split_off(att.kv_width());
            return Ok(Some(Biases { q, k, v }));
        }
        let names = ["attn_q.bias", "attn_k.bias", "attn_v.bias"].map(|name| block_bare(layer, name));
        let mut has_any = false;
        for name in &names {
            has_any |= self.optional(name)?.is_some();
        }
        if !has_any {
            return Ok(None);
        }
        let mut of = |name: &String| self.vector(name);
        Ok(Some(Biases { q: of(&names[0])?, k: of(&names[1])?, v: of(&names[2])? }))
    }

    fn head_norms(&mut self, layer: LayerId) -> Result<HeadNorms, ComputeError> {
        Ok(HeadNorms {
            q: self.vector(&block(layer, "attn_q_norm"))?,
            k: self.vector(&block(layer, "attn_k_norm"))?,
        })
    }
}

/// Rows of `n_cols` values as columns.
fn transposed(rows: &[f32], n_cols: usize) -> Vec<f32> {
    (0..n_cols).flat_map(|j| rows.iter().skip(j).step_by(n_cols)).copied().collect()
}
