//! What a model's header says: layers, heads, experts, sizes, each checked before anything trusts it.
//!
//! Keys and defaults: as llama.cpp's converter writes them, plus the variants that other exporters write (per-layer
//! `head_count_kv`, three-entry rope sections). Where architectures differ, the difference is data of the shape, from
//! one registry; nothing below asks for a name.

mod architecture;
pub(crate) mod header;

use crate::metadata::{self, KeyValue, KeyValues};
use crate::{LayerId, ShapeError};
use architecture::Architecture;
use header::Header;

/// Widest head that a header may ask for, so that kernels can keep one on the stack.
pub const HEAD_DIM_MAX: usize = 1024;
/// The architectures that [`ModelShape::from_metadata`] accepts.
pub const ARCHITECTURES: &str = "qwen35moe, qwen3next, qwen3moe, qwen2moe";

/// Which mixer a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated delta-net: a recurrent state, no KV cache.
    DeltaNet,
    /// Softmax attention with a KV cache.
    Attention,
}

/// Position of a token for the rotary embedding: time, height, width. Text has all three equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position(pub [u32; 3]);

impl Position {
    /// The position of the `n`-th token of a text.
    pub const fn text(n: u32) -> Self {
        Self([n; 3])
    }
}

/// Rotary embedding: partial, split halves, interleaved sections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeShape {
    /// Rotated channels of each head; even.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f64,
    /// Pairs that follow time, height, width, and a fourth axis that no file uses. All follow time where a model knows
    /// no other axis.
    pub sections: [usize; 4],
}

/// What softmax attention has besides queries, keys, values and its output product. Biases are not here: a file's
/// tensors say whether it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionParts {
    /// Whether the query product also gives a gate of the same width, behind the query of each head.
    pub gate: bool,
    /// Whether each head's query and key are normalised before they are rotated.
    pub head_norms: bool,
}

/// Softmax attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Channels of one head.
    pub head_dim: usize,
    /// What else there is.
    pub parts: AttentionParts,
}

impl AttentionShape {
    /// Values of one token's keys (and as many for its values) in the cache.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Values of all query heads.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Rows of the query product: all query heads, and their gates where there are gates.
    pub fn query_rows(&self) -> usize {
        if self.parts.gate { 2 * self.q_width() } else { self.q_width() }
    }
}

/// Which key head a value head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `h` reads key head `h mod n_key_heads`.
    Tiled,
    /// Value head `h` reads key head `h div r`, with `r` value heads to each key head.
    Grouped,
}

/// Gated delta-net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Query and key heads.
    pub n_key_heads: usize,
    /// Value heads; a multiple of `n_key_heads`.
    pub n_value_heads: usize,
    /// Channels of a key head.
    pub key_dim: usize,
    /// Channels of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
    /// Which key head a value head reads.
    pub order: HeadOrder,
}

impl DeltaNetShape {
    /// Channels that pass the convolution: queries, keys, values.
    pub fn conv_channels(&self) -> usize {
        2 * self.n_key_heads * self.key_dim + self.value_width()
    }

    /// Values of all value heads.
    pub fn value_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Values of the recurrent state.
    pub fn state_len(&self) -> usize {
        self.n_value_heads * self.key_dim * self.value_dim
    }

    /// Values of the convolution's history.
    pub fn conv_len(&self) -> usize {
        (self.conv_kernel - 1) * self.conv_channels()
    }

    /// The key head that value head `head` reads.
    pub fn key_head(&self, head: usize) -> usize {
        match self.order {
            HeadOrder::Tiled => head % self.n_key_heads,
            HeadOrder::Grouped => head / (self.n_value_heads / self.n_key_heads),
        }
    }
}

/// Routed experts, and the shared one if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeShape {
    /// Routed experts of a layer.
    pub n_experts: usize,
    /// Experts that a row uses; at most `n_experts`.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub expert_ff: usize,
    /// Inner width of the shared expert; `None` without one.
    pub shared_ff: Option<usize>,
    /// Whether the weights of a row's experts are made to sum 1, or stay the router's probabilities.
    pub renormalises: bool,
}

/// A whole model, as its header describes it; every value is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Tokens of context that the model was trained for.
    pub context_max: usize,
    /// The epsilon of every norm.
    pub norm_eps: f32,
    /// The mixer of each trunk layer.
    pub layers: Vec<LayerKind>,
    /// Multi-token-prediction blocks behind the trunk; not part of the main pass.
    pub n_mtp: usize,
    /// Attention layers.
    pub attention: AttentionShape,
    /// Rotary embedding of the attention layers.
    pub rope: RopeShape,
    /// Delta-net layers; `None` where the architecture has none.
    pub delta_net: Option<DeltaNetShape>,
    /// Expert part of every layer.
    pub moe: MoeShape,
}

/// Values of `general.type` of files that aren't models: what they are, and what to do.
const NO_MODELS: &[(&str, &str, &str)] = &[
    ("adapter", "an adapter (LoRA)", "adapters aren't applied: merge it into the model first"),
    ("mmproj", "an image projector", "images aren't read: open the model's own file"),
    ("imatrix", "an importance matrix", "`forerun quantize --imatrix` takes it"),
];

impl ModelShape {
    /// Reads and checks the header of a file.
    ///
    /// # Errors
    /// [`ShapeError`], which names the key, its value and what would be right.
    pub fn from_metadata(kv: &dyn KeyValues) -> Result<Self, ShapeError> {
        if let Some(KeyValue::Text(kind)) = kv.get("general.type")
            && let Some((_, found, remedy)) = NO_MODELS.iter().find(|(name, ..)| *name == kind)
        {
            return Err(ShapeError::NoModel { found, remedy });
        }
        let arch = match kv.get("general.architecture") {
            Some(KeyValue::Text(text)) => text.to_owned(),
            Some(other) => return Err(metadata::wrong_type("general.architecture", "a string", &other)),
            None => return Err(ShapeError::MissingKey { key: "general.architecture".into() }),
        };
        match Architecture::named(&arch) {
            Some(architecture) => Header { kv, architecture }.shape(),
            // Older projectors say no type.
            None if arch == "clip" => {
                Err(ShapeError::NoModel { found: NO_MODELS[1].1, remedy: NO_MODELS[1].2 })
            }
            None => Err(ShapeError::UnknownArchitecture { found: arch, supported: ARCHITECTURES }),
        }
    }

    /// Trunk layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// The ids of the trunk layers, in order.
    #[expect(clippy::cast_possible_truncation, reason = "the header allows at most 1024 layers")]
    pub fn layer_ids(&self) -> impl ExactSizeIterator<Item = LayerId> + use<> {
        (0..self.layers.len() as u16).map(LayerId)
    }

    /// How many layers have `kind`.
    pub fn n_layers_of(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|k| **k == kind).count()
    }
}

#[cfg(test)]
mod tests;
