//! What the file of a block drafter says, checked against the model that it is to draft for.
//!
//! Architecture `dflash`: a few attention layers that read the model's tapped states and answer a block of mask tokens in
//! one pass (DFlash), with a table that conditions each token on the one before it (DSpark; arXiv 2607.05147). Keys and
//! tensor names are those that llama.cpp's converter writes. Whatever a file asks for beyond these would change the
//! drafts, so it is refused by name.

mod header;
mod tensors;

use crate::metadata::KeyValues;
use crate::{AttentionShape, LayerId, ModelShape, RopeShape, ShapeError, TokenId};

pub use tensors::{
    CONFIDENCE, CONFIDENCE_BIAS, FEATURES, FEATURES_NORM, MARKOV_IN, MARKOV_OUT, TARGET_IDS, check_known,
    specs,
};

/// The architecture that [`DrafterShape::read`] accepts.
pub const ARCHITECTURE: &str = "dflash";
/// Widest block.
pub const BLOCK_MAX: usize = 64;

/// A block drafter, as its file describes it; every value is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct DrafterShape {
    /// Width of the residual stream: the model's.
    pub hidden: usize,
    /// Entries of the vocabulary: the model's.
    pub n_vocab: usize,
    /// Entries of the vocabulary that can be drafted: fewer where a table maps them to the model's.
    pub n_drafted: usize,
    /// Tokens of context that the drafter was trained for; it works beyond, and guesses worse.
    pub context_max: usize,
    /// The epsilon of every norm.
    pub norm_eps: f32,
    /// For each layer how far back a query sees the context, if that is bounded: a key at `p` is visible at `q` when
    /// `q - p` is less.
    pub windows: Vec<Option<usize>>,
    /// Attention of every layer.
    pub attention: AttentionShape,
    /// Rotary embedding.
    pub rope: RopeShape,
    /// Inner width of the feed-forward part.
    pub ff: usize,
    /// Slots of a block, as trained: the token before the draft and masks.
    pub block: usize,
    /// Layers of the model whose outputs are read, ascending.
    pub taps: Vec<LayerId>,
    /// The token of the other slots.
    pub mask: TokenId,
    /// Whether the first slot gives the first draft; otherwise the second does.
    pub drafts_from_anchor: bool,
    /// Whether a slot sees only itself and those before it in the block.
    pub causal: bool,
    /// Width of the table that conditions a token on the one before it; `None`: there is none.
    pub markov_rank: Option<usize>,
    /// What tells how likely a draft is to be accepted, if anything does.
    pub confidence: Option<ConfidenceShape>,
}

/// The confidence head: a logit from a slot's state.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfidenceShape {
    /// Whether it also reads the row of the token before it in the Markov table.
    pub reads_markov: bool,
    /// What each draft's logit is divided by, from calibration; empty: nothing was calibrated.
    pub temperatures: Vec<f32>,
}

impl DrafterShape {
    /// Reads a header whose tensors have the dimensions that `dims` returns, fastest axis first, and checks both against
    /// the model.
    ///
    /// # Errors
    /// [`ShapeError`], which names the key or tensor, its value and what would be right.
    pub fn read(
        kv: &dyn KeyValues,
        dims: &dyn Fn(&str) -> Option<Vec<u64>>,
        target: &ModelShape,
    ) -> Result<Self, ShapeError> {
        header::Header { kv, dims, target }.shape()
    }

    /// Layers of its own.
    pub fn n_layers(&self) -> usize {
        self.windows.len()
    }

    /// Values that one position of the model gives: the tapped layers' outputs, one after the other.
    pub fn feature_width(&self) -> usize {
        self.taps.len() * self.hidden
    }

    /// Tokens that a block can give.
    pub fn n_drafts(&self) -> usize {
        self.block - usize::from(!self.drafts_from_anchor)
    }

    /// The slot that gives draft `draft`.
    pub fn slot(&self, draft: usize) -> usize {
        draft + usize::from(!self.drafts_from_anchor)
    }

    /// How far back any layer sees, if every layer's sight is bounded.
    pub fn window(&self) -> Option<usize> {
        self.windows.iter().copied().collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

#[cfg(test)]
mod tests;
