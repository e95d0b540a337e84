//! A block drafter (DFlash, DSpark): reads the model's tapped states, and answers a block of masks in one pass.
//!
//! [`Dspark::observe`] projects the states of rows that were accepted and keeps their keys and values for every layer;
//! [`Dspark::block`] runs the block behind them; [`Dspark::confidence`] and [`Dspark::logits`] then go from slot to slot,
//! each knowing the token that was chosen before. Source: DSpark, arXiv 2607.05147; DFlash, arXiv 2602.06036.
//!
//! Nothing that the model says depends on the arithmetic here; it is deterministic all the same, for any number of threads.

mod block;
mod context;
mod heads;
mod scratch;
mod weights;

use forerun_model::{DrafterShape, Position, TokenId};

use crate::ComputeError;
use crate::activation::Rows;
use crate::kv_cache::KvType;
use crate::products::{Product, Products};
use crate::rope::Rope;
use block::Layers;
use context::Context;
use heads::Heads;
use scratch::Scratch;
pub use weights::DsparkWeights;

/// Rows that are observed at once; more are taken in parts.
const OBSERVED_ROWS_MAX: usize = 64;

/// How much a drafter remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsparkConfig {
    /// Tokens of context.
    pub context: usize,
    /// How keys and values are stored.
    pub kv: KvType,
}

/// Bytes that a drafter allocates, by purpose; matrices are borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsparkBytes {
    /// Keys and values.
    pub kv: u64,
    /// Buffers.
    pub scratch: u64,
    /// Decoded vectors, and a table of ids.
    pub own: u64,
}

impl DsparkBytes {
    /// All of them.
    pub fn total(self) -> u64 {
        self.kv.saturating_add(self.scratch).saturating_add(self.own)
    }
}

impl DsparkConfig {
    /// What a drafter of `shape`, which maps its tokens to others if `maps_tokens`, allocates.
    pub fn bytes(&self, shape: &DrafterShape, maps_tokens: bool) -> DsparkBytes {
        DsparkBytes {
            kv: Context::bytes(shape, self.context, self.kv),
            scratch: Scratch::bytes(shape, maps_tokens),
            own: DsparkWeights::own_bytes(shape),
        }
    }
}

/// A drafter over products `P`, for one sequence.
#[derive(Debug)]
pub struct Dspark<P> {
    weights: DsparkWeights,
    products: P,
    rope: Rope,
    context: Context,
    scratch: Scratch,
    heads: Heads,
}

impl<P: Products> Dspark<P> {
    /// A drafter over `weights`; allocates all that it takes.
    pub fn new(weights: DsparkWeights, config: DsparkConfig, products: P) -> Self {
        let shape = &weights.shape;
        Self {
            rope: Rope::new(&shape.rope),
            context: Context::new(shape, config.context, config.kv),
            scratch: Scratch::new(shape, weights.target_ids.is_some()),
            products,
            heads: Heads::default(),
            weights,
        }
    }

    /// What the file says.
    pub fn shape(&self) -> &DrafterShape {
        &self.weights.shape
    }

    /// The position after the last that was observed: the next block's.
    pub fn len(&self) -> usize {
        self.context.len()
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.context.held() == 0
    }

    /// Forgets all positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.context.truncate(len);
    }

    /// Takes the tapped states of consecutive positions from `first` on, `[rows, taps * hidden]`. What was held from there
    /// on is forgotten; positions that were left out before are never seen.
    ///
    /// # Errors
    /// [`ComputeError::ContextFull`] beyond the context.
    ///
    /// # Panics
    /// When `features` are no whole rows.
    pub fn observe(&mut self, first: usize, features: &[f32]) -> Result<(), ComputeError> {
        let width = self.weights.shape.feature_width();
        assert_eq!(features.len() % width, 0, "whole rows of {width} values");
        let unseen = self.context.continue_at(first, features.len() / width);
        features[unseen * width..].chunks(OBSERVED_ROWS_MAX * width).try_for_each(|rows| self.remember(rows))
    }

    /// Keys and values of at most [`OBSERVED_ROWS_MAX`] rows behind those held.
    fn remember(&mut self, features: &[f32]) -> Result<(), ComputeError> {
        let shape = &self.weights.shape;
        let (n, d, width) =
            (features.len() / shape.feature_width(), shape.hidden, shape.attention.kv_width());
        let row = self.context.make_room(n)?;
        self.turns(self.context.len(), n);
        let Self { weights, products, context, scratch, .. } = self;
        let mut layers = Layers { weights, products, tables: &scratch.rope };
        scratch.features.start(n, features.len() / n).copy_from_slice(features);
        let projected = &mut scratch.x[..n * d];
        let mut work = [Product { matrix: weights.features.matrix(), out: &mut *projected }];
        layers.products.multiply(&mut scratch.features, Rows::All, &mut work);
        layers.normalise(projected, &weights.features_norm, &mut scratch.normed);
        let (keys, values) = (&mut scratch.keys[..n * width], &mut scratch.values[..n * width]);
        for layer in 0..weights.layers.len() {
            layers.keys_and_values(layer, &mut scratch.normed, (&mut *keys, &mut *values));
            context.write(layer, row, (keys, values));
        }
        context.grow(n);
        Ok(())
    }

    /// Tables of `n` positions from `first` on.
    fn turns(&mut self, first: usize, n: usize) {
        let len = self.rope.table_len().max(1);
        for (i, table) in self.scratch.rope[..n * len].chunks_exact_mut(len).enumerate() {
            self.rope.table(Position::text(u32::try_from(first + i).unwrap_or(u32::MAX)), table);
        }
    }

    /// Runs a block behind the context: `anchor`, the token that follows it, and masks.
    ///
    /// # Errors
    /// [`ComputeError::Token`] when the vocabulary has no such token.
    pub fn block(&mut self, anchor: TokenId) -> Result<(), ComputeError> {
        self.check(anchor)?;
        self.turns(self.context.len(), self.weights.shape.block);
        let Self { weights, products, context, scratch, .. } = self;
        block::run(weights, products, context, scratch, anchor);
        self.heads.renew();
        Ok(())
    }

    fn check(&self, token: TokenId) -> Result<(), ComputeError> {
        let n_vocab = self.weights.shape.n_vocab;
        if token.idx() < n_vocab { Ok(()) } else { Err(ComputeError::Token { token: token.0, n_vocab }) }
    }
}
