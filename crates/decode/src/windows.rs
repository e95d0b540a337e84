//! A text in windows: the tokens of the whole text, cut into pieces of one length, of which only whole ones count; a window
//! begins with the token that the vocabulary puts in front of a text, if it does, in place of its own first.

use std::io::Read;

use forerun_model::TokenId;

use crate::DecodeError;
use crate::text::{TokenReader, Tokenizer};

/// Fewest tokens of a window: a standard error needs a few predictions.
pub const WINDOW_MIN: usize = 8;

/// How many whole windows a text has, and how many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLength {
    /// Tokens, with the one in front.
    pub n_tokens: u64,
    /// Windows.
    pub n_windows: u64,
}

impl TextLength {
    /// Reads `text` to its end, to know that all of it can be read before the first window costs time.
    ///
    /// # Errors
    /// [`DecodeError`] for a text that isn't UTF-8 or can't be read, one shorter than a window, or a window that is
    /// too short.
    pub fn of(text: impl Read, tokenizer: &Tokenizer, window: usize) -> Result<Self, DecodeError> {
        Self::of_tokens(TokenReader::new(text), tokenizer, window)
    }

    /// The same of a text whose tokens are made as `reader` says.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn of_tokens(
        mut reader: TokenReader<impl Read>,
        tokenizer: &Tokenizer,
        window: usize,
    ) -> Result<Self, DecodeError> {
        if window < WINDOW_MIN {
            return Err(DecodeError::WindowTooShort { window, window_min: WINDOW_MIN });
        }
        let (mut n_tokens, mut ids) = (0, Vec::new());
        while reader.next(tokenizer, &mut ids)? {
            n_tokens += ids.len() as u64;
            ids.clear();
        }
        let n_windows = n_tokens / window as u64;
        if n_windows == 0 {
            return Err(DecodeError::TextTooShort { n_tokens, window });
        }
        Ok(Self { n_tokens, n_windows })
    }

    /// At most `n_max` windows of it.
    #[must_use]
    pub fn at_most(self, n_max: u64) -> Self {
        Self { n_windows: self.n_windows.min(n_max), ..self }
    }
}

/// The windows of a text, one after the other.
pub(crate) struct Windows<R> {
    reader: TokenReader<R>,
    /// Tokens read ahead of the window.
    ahead: Vec<TokenId>,
    length: TextLength,
    /// Windows taken.
    n_taken: u64,
}

impl<R: Read> Windows<R> {
    pub(crate) fn new(reader: TokenReader<R>, length: TextLength) -> Self {
        Self { reader, ahead: Vec::new(), length, n_taken: 0 }
    }

    /// Windows that were taken.
    pub(crate) fn n_taken(&self) -> u64 {
        self.n_taken
    }

    /// Fills `window`, which is empty, with the next one of `len` tokens; `false` when there is none.
    pub(crate) fn next(
        &mut self,
        tokenizer: &Tokenizer,
        len: usize,
        window: &mut Vec<TokenId>,
    ) -> Result<bool, DecodeError> {
        if self.n_taken == self.length.n_windows {
            return Ok(false);
        }
        while self.ahead.len() < len {
            if !self.reader.next(tokenizer, &mut self.ahead)? {
                return Err(DecodeError::TextChanged { n_windows: self.length.n_windows });
            }
        }
        window.extend(self.ahead.drain(..len));
        if let Some(opening) = tokenizer.vocabulary().opening() {
            window[0] = opening;
        }
        self.n_taken += 1;
        Ok(true)
    }
}
