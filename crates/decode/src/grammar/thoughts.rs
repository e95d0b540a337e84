//! Finds the end of thoughts in an answer's tokens.

use forerun_model::TokenId;

use super::lexicon::Lexicon;

/// The marker that opens thoughts.
pub(super) const OPEN: &str = "<think>";
/// The marker that ends them.
pub(super) const CLOSE: &str = "</think>";

/// How many bytes of the end marker a text ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress(usize);

impl Progress {
    /// After `bytes` more; `Err` with what is behind the marker, if it ends in them.
    pub(super) fn over(self, bytes: &[u8]) -> Result<Self, &[u8]> {
        let marker = CLOSE.as_bytes();
        let mut n = self.0;
        for (i, &byte) in bytes.iter().enumerate() {
            // Inside the marker nothing begins it anew but its first byte.
            n = if byte == marker[n] { n + 1 } else { usize::from(byte == marker[0]) };
            if n == marker.len() {
                return Err(&bytes[i + 1..]);
            }
        }
        Ok(Self(n))
    }

    /// After all of `tokens`, in which the marker doesn't end.
    pub(super) fn after(lexicon: &Lexicon, tokens: &[TokenId]) -> Self {
        let mut n_bytes = 0;
        let first = tokens.iter().rposition(|&id| {
            n_bytes += lexicon.shown(id).len();
            n_bytes >= CLOSE.len()
        });
        let near = tokens[first.unwrap_or(0)..].iter();
        near.fold(Self::default(), |progress, &id| progress.over(lexicon.shown(id)).unwrap_or_default())
    }

    /// Tokens that would end the thoughts here and go on with something other than white space.
    pub(super) fn overrunning(self, lexicon: &Lexicon) -> impl Iterator<Item = TokenId> {
        lexicon.closers.iter().copied().filter(move |&id| {
            self.over(lexicon.shown(id)).is_err_and(|behind| !behind.trim_ascii().is_empty())
        })
    }
}
