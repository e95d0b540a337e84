//! A conversation: the tokens that the engine's caches hold.

use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::{Engine, Logits};

/// The tokens that an [`Engine`]'s sequence holds. An engine keeps one sequence, so it works with one session at a
/// time; a session that isn't its current one must not be used with it.
#[derive(Debug, Default)]
pub struct Session {
    tokens: Vec<TokenId>,
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

    /// Reads `tokens` after those held, in one step. Returns the last token's logits if they are wanted.
    ///
    /// # Errors
    /// [`DecodeError`]; the session is as it was and can go on.
    pub fn extend<'e>(
        &mut self,
        engine: &'e mut Engine,
        tokens: &[TokenId],
        wish: Logits,
    ) -> Result<Option<&'e [f32]>, DecodeError> {
        let logits = engine.step(self.tokens.len(), tokens, wish)?;
        self.tokens.extend_from_slice(tokens);
        Ok(logits)
    }
}
