//! From a block's states to drafts, one after the other: how likely, and which.

use forerun_model::TokenId;
use forerun_model::drafter::BLOCK_MAX;

use super::Dspark;
use crate::ComputeError;
use crate::activation::Rows;
use crate::dequant::dequantise;
use crate::loops::Add;
use crate::ops::{dot, sigmoid};
use crate::products::{Product, Products};

/// What is known of the last block's heads.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Drafts whose logits are there but for what the token before says.
    n_based: usize,
    /// Drafts that were asked for.
    n_asked: usize,
    /// Drafts that the block before was asked for: as many are likely to be wanted again.
    n_likely: usize,
    /// Whose row of the Markov table is at hand.
    markov_of: Option<TokenId>,
}

impl Heads {
    /// For a new block.
    pub(super) fn renew(&mut self) {
        (self.n_likely, self.n_asked, self.n_based) = (self.n_asked, 0, 0);
    }
}

impl<P: Products> Dspark<P> {
    /// The probability that draft `draft` of the last block is accepted when `before` and all before it are, as the file's
    /// confidence head says, calibrated if the file was; NaN without one. It doesn't depend on the draft itself.
    ///
    /// # Errors
    /// [`ComputeError::Token`] when the vocabulary has no token `before`.
    ///
    /// # Panics
    /// When a block has no such draft.
    pub fn confidence(&mut self, draft: usize, before: TokenId) -> Result<f32, ComputeError> {
        self.look_up(before)?;
        let (shape, scratch) = (&self.weights.shape, &self.scratch);
        assert!(draft < shape.n_drafts(), "a block has {} drafts", shape.n_drafts());
        let (Some(head), Some(about)) = (&self.weights.confidence, &shape.confidence) else {
            return Ok(f32::NAN);
        };
        let (of_state, of_markov) = head.weight.split_at(shape.hidden);
        let mut logit = dot(of_state, scratch.states.values(shape.slot(draft))) + head.bias;
        if about.reads_markov {
            logit += dot(of_markov, scratch.markov.values(0));
        }
        let temperature = about.temperatures.get(draft).copied().unwrap_or(1.0);
        Ok(sigmoid(logit / temperature))
    }

    /// The logits of draft `draft` of the last block behind `before`, `[n_vocab]`; minus infinity for what can't be
    /// drafted.
    ///
    /// # Errors
    /// [`ComputeError::Token`] when the vocabulary has no token `before`.
    ///
    /// # Panics
    /// When a block has no such draft.
    pub fn logits(&mut self, draft: usize, before: TokenId) -> Result<&[f32], ComputeError> {
        self.look_up(before)?;
        assert!(
            draft < self.weights.shape.n_drafts(),
            "a block has {} drafts",
            self.weights.shape.n_drafts()
        );
        self.base(draft);
        let Self { weights, products, scratch, .. } = self;
        let n = weights.shape.n_drafted;
        let base = &scratch.base[draft * n..(draft + 1) * n];
        let logits = match &weights.markov {
            None => base,
            Some(markov) => {
                let mut work = [Product { matrix: markov.out.matrix(), out: &mut scratch.logits }];
                products.multiply(&mut scratch.markov, Rows::All, &mut work);
                products.isa().run(Add { x: &mut scratch.logits, out: base });
                &scratch.logits
            }
        };
        let Some(ids) = &weights.target_ids else { return Ok(logits) };
        for (&id, &logit) in ids.iter().zip(logits) {
            scratch.scattered[id as usize] = logit;
        }
        Ok(&scratch.scattered)
    }

    /// Computes the heads' products up to that of draft `draft`. The head is most of what a draft reads, and several rows of
    /// states cost little more than one, so as many are taken at once as the last block had use for.
    fn base(&mut self, draft: usize) {
        let Self { weights, products, scratch, heads, .. } = self;
        let (shape, first) = (&weights.shape, heads.n_based);
        heads.n_asked = heads.n_asked.max(draft + 1);
        if draft < first {
            return;
        }
        let end = heads.n_likely.max(draft + 1).min(shape.n_drafts());
        let mut slots = [0; BLOCK_MAX];
        let slots = &mut slots[first..end];
        for (slot, draft) in slots.iter_mut().zip(first..) {
            *slot = u32::try_from(shape.slot(draft)).expect("blocks are short");
        }
        let out = &mut scratch.base[first * shape.n_drafted..end * shape.n_drafted];
        let mut work = [Product { matrix: weights.output.matrix(), out }];
        products.multiply(&mut scratch.states, Rows::Some(slots), &mut work);
        heads.n_based = end;
    }

    /// Brings the row of `token` in the Markov table to hand.
    fn look_up(&mut self, token: TokenId) -> Result<(), ComputeError> {
        self.check(token)?;
        if let Some(markov) = self.weights.markov.as_ref().filter(|_| self.heads.markov_of != Some(token)) {
            let rows = markov.rows.matrix();
            let out = self.scratch.markov.start(1, rows.layout.n_cols);
            dequantise(rows.layout.quant, rows.row(token.idx()), out);
            self.heads.markov_of = Some(token);
        }
        Ok(())
    }
}
