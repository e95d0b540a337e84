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

    /// How many tokens of `prompt` needn't be read again: all that are held, if they begin the prompt and at least
    /// one token is left to read; otherwise none, and the session starts anew. A recurrent state can't be cut back.
    pub fn reuse(&mut self, prompt: &[TokenId]) -> usize {
        if prompt.len() <= self.tokens.len() || !prompt.starts_with(&self.tokens) {
            self.tokens.clear();
        }
        self.tokens.len()
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
        if !self.tokens.is_empty() && self.epoch != engine.epoch() {
            return Err(DecodeError::StaleSession { n_tokens: self.tokens.len() });
        }
        // Once, so that no token makes it grow.
        self.tokens.reserve_exact(engine.plan().context.saturating_sub(self.tokens.len()));
        engine.step(self.tokens.len(), tokens, wish)?;
        self.epoch = engine.epoch();
        self.tokens.extend_from_slice(tokens);
        Ok((wish != Logits::None).then(|| engine.logits()))
    }
}
