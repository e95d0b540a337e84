//! A conversation: the tokens that the engine's caches hold.

use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::{Engine, Logits};

/// The tokens that an [`Engine`]'s sequence holds. An engine keeps one sequence, so it works with one session at a
/// time: the one that started last. Others are refused, since their tokens are no longer held.
#[derive(Debug, Default)]
pub struct Session {
    tokens: Vec<TokenId>,
    /// The engine's epoch in which they were read.
    epoch: u64,
}

impl Session {
    /// An empty session.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens held.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// How many tokens of `prompt` needn't be read again: as many as are held and begin it, back to the last checkpoint
    /// where they go on otherwise (a recurrent state can't be cut back further); all but one at most, since something must be
    /// read for the next logits.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub fn reuse(&mut self, engine: &mut Engine, prompt: &[TokenId]) -> Result<usize, DecodeError> {
        if self.epoch != engine.epoch() {
            self.tokens.clear();
        }
        let alike = self.tokens.iter().zip(prompt).take_while(|(held, token)| held == token).count();
        let alike = alike.min(prompt.len().saturating_sub(1));
        if alike < self.tokens.len() {
            let len = engine.cut_back(alike)?;
            self.tokens.truncate(len);
        }
        Ok(self.tokens.len())
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
        let kept = engine.cut_back(len)?;
        let again = self.tokens[kept..len].to_vec();
        self.tokens.truncate(kept);
        for tokens in again.chunks(engine.plan().rows_max) {
            self.extend(engine, tokens, Logits::None)?;
        }
        Ok(())
    }

    fn check(&self, engine: &Engine) -> Result<(), DecodeError> {
        if !self.tokens.is_empty() && self.epoch != engine.epoch() {
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
        engine.step(self.tokens.len(), tokens, wish)?;
        self.epoch = engine.epoch();
        self.tokens.extend_from_slice(tokens);
        Ok((wish != Logits::None).then(|| engine.logits()))
    }

    /// Reads a token and its draft in one step and leaves it open: all logits are there, and [`Self::accept`] says which
    /// tokens are kept. Until then the session is as it was.
    ///
    /// # Errors
    /// As [`Self::extend`].
    pub(crate) fn verify(&mut self, engine: &mut Engine, tokens: &[TokenId]) -> Result<(), DecodeError> {
        self.check(engine)?;
        engine.verify(self.tokens.len(), tokens)
    }

    /// Keeps `tokens`, the first of those that [`Self::verify`] read.
    ///
    /// # Errors
    /// [`DecodeError`] when there was no such step.
    pub(crate) fn accept(&mut self, engine: &mut Engine, tokens: &[TokenId]) -> Result<(), DecodeError> {
        engine.accept(self.tokens.len(), tokens)?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
}
