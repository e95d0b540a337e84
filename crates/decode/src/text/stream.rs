//! Tokens to text as they are made: whole characters only.

use forerun_model::TokenId;

use super::Vocabulary;

/// Whether a stream shows control tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlTokens {
    /// Leave them out; what a reader wants.
    #[default]
    Hidden,
    /// Show their literals; what `--raw` wants.
    Shown,
}

/// Turns tokens into text. A token may end inside a character: those bytes wait for the next token.
#[derive(Clone, Debug)]
pub struct TextStream<'v> {
    vocabulary: &'v Vocabulary,
    buffer: TextBuffer,
}

impl<'v> TextStream<'v> {
    /// A stream that hides control tokens.
    pub fn new(vocabulary: &'v Vocabulary) -> Self {
        Self { vocabulary, buffer: TextBuffer::new(vocabulary) }
    }

    /// The same stream with another treatment of control tokens.
    #[must_use]
    pub fn with_control(mut self, control: ControlTokens) -> Self {
        self.buffer.control = control;
        self
    }

    /// Takes one token and appends to `out` every character that is now complete; see [`TextBuffer::push`].
    pub fn push(&mut self, id: TokenId, out: &mut String) {
        self.buffer.push(self.vocabulary, id, out);
    }

    /// Whether bytes wait for the rest of their character.
    pub fn is_pending(&self) -> bool {
        self.buffer.is_pending()
    }

    /// Ends the text: bytes that still wait become U+FFFD. The stream is then as new.
    pub fn finish(&mut self, out: &mut String) {
        self.buffer.finish(out);
    }
}

/// What a [`TextStream`] keeps between tokens, for owners that can't keep the vocabulary borrowed.
#[derive(Clone, Debug, Default)]
pub struct TextBuffer {
    control: ControlTokens,
    /// Between tokens at most three bytes: the begin of a character.
    pending: Vec<u8>,
}

impl TextBuffer {
    /// A buffer that no token of `vocabulary` makes grow.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let bytes_max = vocabulary.token_bytes_max() + char::MAX.len_utf8();
        Self { control: ControlTokens::default(), pending: Vec::with_capacity(bytes_max) }
    }

    /// Takes one token and appends to `out` every character that is now complete. Bytes that can't become a
    /// character are U+FFFD, one for each maximal broken part. An id outside the vocabulary adds nothing.
    pub fn push(&mut self, vocabulary: &Vocabulary, id: TokenId, out: &mut String) {
        if self.control == ControlTokens::Hidden && vocabulary.is_control(id) {
            return;
        }
        self.pending.extend_from_slice(vocabulary.token_bytes(id).unwrap_or_default());
        self.emit_complete(out);
    }

    /// Whether bytes wait for the rest of their character.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text: bytes that still wait become U+FFFD. The buffer is then as new.
    pub fn finish(&mut self, out: &mut String) {
        if self.is_pending() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }

    fn emit_complete(&mut self, out: &mut String) {
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let broken = chunk.invalid();
            let at_end = done + broken.len() == self.pending.len();
            if broken.is_empty() || (at_end && may_continue(broken)) {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            done += broken.len();
        }
        self.pending.drain(..done);
    }
}

/// Whether `broken`, bytes at the end of a text, may be the begin of a character.
fn may_continue(broken: &[u8]) -> bool {
    std::str::from_utf8(broken).is_err_and(|error| error.error_len().is_none())
}
