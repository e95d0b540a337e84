//! The tokens of a long text, piece by piece: the same as those of the whole, without holding it.
//!
//! A text may be cut where a word boundary is certain whatever follows: before a space behind something that isn't
//! white space, and behind a line end before something that isn't. No piece of the pre-tokenizer's pattern spans
//! such a place, none looks past it, and no character composes over it.

use std::io::{ErrorKind, Read};

use forerun_model::TokenId;

use super::Tokenizer;
use crate::DecodeError;

/// Bytes asked of the source at once.
const PIECE_BYTES: usize = 16 << 10;
/// Most bytes without a place to cut; prose has one every few bytes, or at the ends of paragraphs. Few, since the
/// memory that tokenising such a stretch takes grows with it and has no line in the memory plan.
const UNCUT_BYTES_MAX: usize = 32 << 10;

/// What the literals of control and user-defined tokens in a text are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Literals {
    /// Text like any other.
    #[default]
    Text,
    /// These tokens. A literal with a space or a line end in it, which no known vocabulary has, may be cut and is text then.
    Tokens,
}

/// Reads a text and makes tokens of it, special literals as the text that they are unless they are
/// [to be tokens](Self::reading). Begins with the token that the
/// vocabulary puts in front of every text, if it does. One line end at the end of the text is left out, since
/// that is the file's, not the text's.
#[derive(Debug)]
pub struct TokenReader<R> {
    source: R,
    /// What was read and not yet encoded.
    buffer: Vec<u8>,
    /// Bytes of the text before the buffer.
    offset: u64,
    literals: Literals,
    began: bool,
    ended: bool,
}

impl<R: Read> TokenReader<R> {
    /// A reader at the beginning of `source`.
    pub fn new(source: R) -> Self {
        let literals = Literals::default();
        Self { source, buffer: Vec::new(), offset: 0, literals, began: false, ended: false }
    }

    /// The same reader, to which special literals are what `literals` says.
    #[must_use]
    pub fn reading(self, literals: Literals) -> Self {
        Self { literals, ..self }
    }

    /// Appends the next tokens to `ids`, at least one; `false` when the text is over.
    ///
    /// # Errors
    /// [`DecodeError::ReadText`], [`DecodeError::NotUtf8`], [`DecodeError::NoCut`], or those of the tokenizer.
    pub fn next(&mut self, tokenizer: &Tokenizer, ids: &mut Vec<TokenId>) -> Result<bool, DecodeError> {
        let before = ids.len();
        if !std::mem::replace(&mut self.began, true) {
            ids.extend(tokenizer.vocabulary().opening());
        }
        while ids.len() == before && !self.ended {
            self.ended = self.fill()? == 0;
            let Some(text) = self.encodable()? else { continue };
            let kept = if self.ended { text.strip_suffix('\n').unwrap_or(text) } else { text };
            ids.append(&mut match self.literals {
                Literals::Text => tokenizer.encode_plain(kept)?,
                Literals::Tokens => tokenizer.encode_special(kept)?,
            });
            let end = text.len();
            self.buffer.drain(..end);
            self.offset += end as u64;
        }
        Ok(ids.len() > before)
    }

    /// Reads more; returns how many bytes.
    fn fill(&mut self) -> Result<usize, DecodeError> {
        let held = self.buffer.len();
        self.buffer.resize(held + PIECE_BYTES, 0);
        let outcome = loop {
            match self.source.read(&mut self.buffer[held..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        self.buffer.truncate(held + *outcome.as_ref().unwrap_or(&0));
        outcome.map_err(|source| DecodeError::ReadText { source })
    }

    /// What of the buffer has the tokens that it has in the whole text; `None` when more must be read first.
    fn encodable(&self) -> Result<Option<&str>, DecodeError> {
        if let Err(error) = std::str::from_utf8(&self.buffer)
            && (error.error_len().is_some() || self.ended)
        {
            return Err(DecodeError::NotUtf8 { offset_bytes: self.offset + error.valid_up_to() as u64 });
        }
        // The end may be a part of a character.
        let valid = self.buffer.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        if self.ended {
            return Ok(Some(valid));
        }
        let cut = last_cut(valid);
        if cut.is_none() && self.buffer.len() > UNCUT_BYTES_MAX {
            return Err(DecodeError::NoCut { offset_bytes: self.offset, bytes_max: UNCUT_BYTES_MAX });
        }
        Ok(cut.map(|at| &valid[..at]))
    }
}

/// The last place inside `text` where it may be cut.
fn last_cut(text: &str) -> Option<usize> {
    let mut behind: Option<(usize, char)> = None;
    for (at, c) in text.char_indices().rev() {
        if let Some((cut, next)) = behind
            && ((next == ' ' && !c.is_whitespace()) || (c == '\n' && !next.is_whitespace()))
        {
            return Some(cut);
        }
        behind = Some((at, c));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(last_cut(text).map(|at| &text[..at]), expect, "{text:?}");
    }

    #[test]
    fn a_text_is_cut_between_words_and_behind_line_ends_only() {
        check("one two three", Some("one two"));
        check("one  ", Some("one"));
        check("one\n", None);
        check("one\ntwo", Some("one\n"));
        check("one\n\n  two", None);
        check("one,\r\ntwo", Some("one,\r\n"));
        check("one\t two", None);
        check("天地\n玄黄", Some("天地\n"));
        check("a\u{301} b", Some("a\u{301}"));
        check(" one", None);
        check("", None);
    }
}
