//! Drafts that are right as often as they are told to be, at the price of real ones.

use std::thread;

use forerun_benches::drafter::{LARGE, PICO, Sizes};
use forerun_compute::products::Quantised;
use forerun_compute::{Dspark, Taps};
use forerun_decode::DecodeError;
use forerun_decode::draft::{Anchor, Draft, Drafter, Seen};
use forerun_model::TokenId;
use forerun_scheduler::Scheduler;
use forerun_sim::Rng;

use super::Answered;

/// Computes the blocks, states and heads of a DSpark drafter with random weights, and says what the text says.
#[derive(Debug)]
pub(super) struct Scripted {
    model: Dspark<Quantised>,
    bytes: u64,
    /// Prompt and answer.
    text: Vec<TokenId>,
    /// Of a thousand tokens, those that are right.
    permille: u64,
    /// Tokens of the model, of which a wrong one is made.
    n_vocab: u32,
    /// States of positions that the drafter hasn't seen, and the first of these positions.
    waiting: Vec<f32>,
    first: usize,
}

impl Scripted {
    /// A drafter as large as one would be for the model that answered.
    pub(super) fn new(answered: &Answered, context: usize, n_threads: Option<usize>, permille: u64) -> Self {
        let like = if answered.hidden > 1024 { LARGE } else { PICO };
        let sizes = Sizes { hidden: answered.hidden, ..like };
        let n_threads = n_threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        Self {
            model: sizes.drafter(context, n_threads),
            bytes: sizes.bytes(context),
            text: [answered.prompt.as_slice(), &answered.said].concat(),
            permille,
            n_vocab: u32::try_from(answered.n_vocab).unwrap_or(u32::MAX),
            waiting: Vec::new(),
            first: 0,
        }
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A token of the drafter's smaller vocabulary.
    fn own(&self, token: TokenId) -> TokenId {
        let n_vocab = u32::try_from(self.model.shape().n_vocab).unwrap_or(u32::MAX);
        TokenId(token.0 % n_vocab.max(1))
    }

    /// Whether the token at a position is said right, which is the same each time.
    fn is_right(&self, position: usize) -> bool {
        Rng::new(position as u64).below(1000) < self.permille
    }
}

impl Drafter for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn taps(&self) -> Taps {
        Taps { layers: self.model.shape().taps.clone(), normed: false }
    }

    fn n_max(&self) -> usize {
        self.model.shape().n_drafts()
    }

    fn observe(&mut self, _: &mut Scheduler, seen: Seen<'_>) -> Result<(), DecodeError> {
        self.waiting.extend_from_slice(seen.taps);
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Scheduler,
        anchor: Anchor<'_>,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError> {
        if !self.waiting.is_empty() {
            self.model.observe(self.first, &self.waiting)?;
            self.first += self.waiting.len() / self.model.shape().feature_width();
            self.waiting.clear();
        }
        let mut before = self.own(anchor.token);
        self.model.block(before)?;
        let next = anchor.held.len() + 1;
        for (draft_idx, position) in (next..self.text.len()).take(self.n_max()).enumerate() {
            self.model.confidence(draft_idx, before)?;
            #[expect(clippy::cast_precision_loss, reason = "a thousand is exact")]
            if !draft.admits(self.permille as f32 / 1e3) {
                break;
            }
            self.model.logits(draft_idx, before)?;
            let token = self.text[position];
            draft.push(if self.is_right(position) { token } else { TokenId((token.0 + 1) % self.n_vocab) });
            before = self.own(token);
        }
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        let width = self.model.shape().feature_width();
        self.waiting.truncate(len.saturating_sub(self.first) * width);
        if len < self.first {
            self.first = len;
            self.model.truncate(len);
        }
    }

    fn resume(&mut self, tokens: &[TokenId]) {
        self.waiting.clear();
        self.model.truncate(0);
        self.first = tokens.len();
    }
}
