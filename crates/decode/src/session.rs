//! A conversation: the tokens that the engine's caches hold.

use std::io::Read;

use forerun_compute::{Checkpoint, SequenceIdx};
use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::{Engine, Logits};

/// The tokens that one of an [`Engine`]'s sequences holds. A sequence works with one session at a time: the one that
/// started last. Others are refused, since their tokens are no longer held.
#[derive(Debug, Default)]
pub struct Session {
    sequence: SequenceIdx,
    tokens: Vec<TokenId>,
    /// The engine's epoch in which they were read.
    epoch: u64,
}

impl Session {
    /// An empty session in the engine's first sequence.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty session in one of the engine's [sequences](Engine::n_sequences).
    pub fn on(sequence: SequenceIdx) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// The sequence.
    pub(crate) fn sequence(&self) -> SequenceIdx {
        self.sequence
    }

    /// Tokens held.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The same, as far as the engine still holds them.
    pub(crate) fn held(&self, engine: &Engine) -> &[TokenId] {
        if self.epoch == engine.epoch(self.sequence) { &self.tokens } else { &[] }
    }

    /// Holds `tokens` from now on, all that `checkpoint` and `rows` are of.
    ///
    /// # Errors
    /// As [`Engine::load`]; then it holds nothing.
    pub(crate) fn load(
        &mut self,
        engine: &mut Engine,
        tokens: &[TokenId],
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), DecodeError> {
        self.tokens.clear();
        engine.load(self.sequence, tokens, checkpoint, rows)?;
        self.tokens.reserve_exact(engine.plan().context);
        self.tokens.extend_from_slice(tokens);
        self.epoch = engine.epoch(self.sequence);
        Ok(())
    }

    /// How many tokens of `prompt` needn't be read again: as many as are held and begin it, back to the last checkpoint
    /// where they go on otherwise (a recurrent state can't be cut back further); all but one at most, since something must be
    /// read for the next logits.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub fn reuse(&mut self, engine: &mut Engine, prompt: &[TokenId]) -> Result<usize, DecodeError> {
        if self.epoch != engine.epoch(self.sequence) {
            self.tokens.clear();
        }
        let alike = self.alike(prompt);
        if alike < self.tokens.len() {
            let len = engine.cut_back(self.sequence, alike)?;
            self.tokens.truncate(len);
        }
        Ok(self.tokens.len())
    }

    /// How many tokens [`Self::reuse`] would leave.
    pub(crate) fn reusable(&self, engine: &Engine, prompt: &[TokenId]) -> usize {
        if self.epoch != engine.epoch(self.sequence) {
            return 0;
        }
        let alike = self.alike(prompt);
        if alike < self.tokens.len() { engine.cut_point(self.sequence, alike) } else { alike }
    }

    /// Tokens that are held and begin `prompt`, but for its last.
    fn alike(&self, prompt: &[TokenId]) -> usize {
        let alike = self.tokens.iter().zip(prompt).take_while(|(held, token)| held == token).count();
        alike.min(prompt.len().saturating_sub(1))
    }

    /// Cuts the session back to its first `len` tokens, so that what follows has the bits of a session that never went
    /// further. From the last checkpoint before them on, tokens are read anew.
    ///
    /// # Errors
    /// [`DecodeError::StaleSession`] when another session was started since; any other error leaves the session with
    /// fewer tokens than `len`, and those can be read anew.
    pub fn cut_back(&mut self, engine: &mut Engine, len: usize) -> Result<(), DecodeError> {
        self.check(engine)?;
        if len >= self.tokens.len() {
            return Ok(());
        }
        let kept = engine.cut_back(self.sequence, len)?;
        let again = self.tokens[kept..len].to_vec();
        self.tokens.truncate(kept);
        for tokens in again.chunks(engine.plan().rows_max) {
            self.extend(engine, tokens, Logits::None)?;
        }
        Ok(())
    }

    fn check(&self, engine: &Engine) -> Result<(), DecodeError> {
        if !self.tokens.is_empty() && self.epoch != engine.epoch(self.sequence) {
            return Err(DecodeError::StaleSession { n_tokens: self.tokens.len() });
        }
        Ok(())
    }

    /// Reads `tokens` after those held, in one step. Returns the logits that are wanted, `[rows, n_vocab]`: of the last
    /// token, or of all.
    ///
    /// # Errors
    /// [`DecodeError::LogitRows`] when all logits are wanted of more rows than the plan has room for;
    /// [`DecodeError::StaleSession`] when another session was started since; any other error leaves the session as it
    /// was, and the call can be repeated.
    pub fn extend<'e>(
        &mut self,
        engine: &'e mut Engine,
        tokens: &[TokenId],
        wish: Logits,
    ) -> Result<Option<&'e [f32]>, DecodeError> {
        self.check(engine)?;
        // Once, so that no token makes it grow.
        self.tokens.reserve_exact(engine.plan().context.saturating_sub(self.tokens.len()));
        engine.step(self.sequence, self.tokens.len(), tokens, wish)?;
        self.epoch = engine.epoch(self.sequence);
        self.tokens.extend_from_slice(tokens);
        Ok((wish != Logits::None).then(|| engine.logits()))
    }

    /// Keeps `tokens`, the first of those that the share `part` of the engine's open step has.
    ///
    /// # Errors
    /// [`DecodeError`] when there is no such step.
    pub(crate) fn accept(
        &mut self,
        engine: &mut Engine,
        part: usize,
        tokens: &[TokenId],
    ) -> Result<(), DecodeError> {
        // Once, so that no token makes it grow.
        self.tokens.reserve_exact(engine.plan().context.saturating_sub(self.tokens.len()));
        engine.accept(part, self.tokens.len(), tokens)?;
        self.epoch = engine.epoch(self.sequence);
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
}
