//! Guesses of the tokens to come, which one pass of the model verifies.
//!
//! A [`Drafter`] sees what the model has read and proposes what comes next; the driver feeds the proposal in one step
//! and keeps as much of it as the model would have said itself. No drafter can change an answer: noise is keyed by position
//! and token, so the model's own choice at a position is the same whatever was guessed. A drafter draws with the same
//! noise, which is what makes its guesses agree above temperature 0 too (Daliri et al., arXiv 2408.07978).

mod dspark;
mod mtp;
mod ngram;

use forerun_compute::Taps;
use forerun_model::{QuantType, TokenId};
use forerun_scheduler::Scheduler;

use crate::DecodeError;
use crate::sampler::SamplerError;
pub use dspark::{DrafterBytes, DsparkFile};
pub use mtp::MtpBlock;
pub use ngram::Ngram;

/// Most rows of a step that verifies a draft: the token before it and the draft.
pub const VERIFIED_ROWS_MAX: usize = 8;

/// Whether a type has so few bits a weight that what drafts with it is seldom right: others measured 0 to 4 % accepted with
/// a head of four bits without scales as fine as ours (JustVugg/colibri #8).
pub(crate) fn is_coarse(quant: QuantType) -> bool {
    /// Q4_K's.
    const BITS_MIN: (usize, usize) = (144 * 8, 256);
    quant.block_bytes() * 8 * BITS_MIN.1 < quant.block_len() * BITS_MIN.0
}

/// Rows that were accepted, and what was tapped of them.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The position of the first.
    pub first: usize,
    /// Their tokens.
    pub tokens: &'a [TokenId],
    /// Outputs of the tapped layers, `[rows, layers, hidden]`.
    pub taps: &'a [f32],
    /// States after the last norm, `[rows, hidden]`.
    pub normed: &'a [f32],
}

/// What a draft continues.
#[derive(Clone, Copy, Debug)]
pub struct Anchor<'a> {
    /// The tokens that the model has read, all of them.
    pub held: &'a [TokenId],
    /// The token after them, which it hasn't.
    pub token: TokenId,
}

/// Takes a draft as it grows.
pub trait Draft {
    /// Whether one more token is worth a row, if `confidence` is the probability that it is accepted when those before it
    /// are; NaN when the drafter doesn't know. Tokens may be added while this says so.
    fn admits(&mut self, confidence: f32) -> bool;

    /// Chooses the next token from `logits`, `[n_vocab]`, as the model's own would be chosen there, and adds it.
    ///
    /// # Errors
    /// [`SamplerError`] when nothing can be chosen from them; then the draft ends here.
    fn choose(&mut self, logits: &[f32]) -> Result<TokenId, SamplerError>;

    /// Adds a token that was found otherwise.
    fn push(&mut self, token: TokenId);
}

/// Proposes tokens.
pub trait Drafter: Send {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Which of the model's states it reads.
    fn taps(&self) -> Taps;

    /// Most tokens of a draft, at least 1.
    fn n_max(&self) -> usize;

    /// Hears of rows that were accepted: every position once, in order, from where it was last cut. Experts that it needs for
    /// them come from `scheduler`.
    ///
    /// # Errors
    /// [`DecodeError`] when its own model fails. It may then guess badly, but must take further rows.
    fn observe(&mut self, scheduler: &mut Scheduler, seen: Seen<'_>) -> Result<(), DecodeError>;

    /// Proposes what follows `anchor`.
    ///
    /// # Errors
    /// [`DecodeError`] when its own model fails; what was added to `draft` stands.
    fn propose(
        &mut self,
        scheduler: &mut Scheduler,
        anchor: Anchor<'_>,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError>;

    /// Forgets all positions from `len` on; no more than were observed.
    fn truncate(&mut self, len: usize);

    /// Starts over behind `tokens`, which the model read without showing what it made of them: a prefix that was kept.
    /// Observed is then what comes after them. A drafter that needs the model's states has none of these, and may guess
    /// badly for a while.
    fn resume(&mut self, tokens: &[TokenId]);
}
