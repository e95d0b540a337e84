//! Finds the literals of special tokens in text: the leftmost, of those the longest.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use forerun_model::TokenId;

use super::TextError;

/// Most bytes of all literals together, so that no file makes the matcher large; a matcher takes about 30 bytes
/// for each byte of its literals.
const LITERALS_BYTES_MAX: usize = 256 << 10;

/// A matcher over a set of literals.
#[derive(Clone, Debug)]
pub(super) struct Literals {
    matcher: Option<AhoCorasick>,
    ids: Box<[TokenId]>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    /// Text between literals; never empty.
    Plain(&'t str),
    /// A literal.
    Special(TokenId),
}

impl Literals {
    /// A matcher for `literals`, none of which may be empty.
    pub(super) fn new<'a>(literals: impl Iterator<Item = (&'a str, TokenId)>) -> Result<Self, TextError> {
        let (names, ids): (Vec<&str>, Vec<TokenId>) = literals.unzip();
        let found_bytes = names.iter().map(|name| name.len()).sum();
        let too_large = TextError::SpecialTokens { found_bytes, max_bytes: LITERALS_BYTES_MAX };
        if found_bytes > LITERALS_BYTES_MAX {
            return Err(too_large);
        }
        if names.is_empty() {
            return Ok(Self { matcher: None, ids: ids.into() });
        }
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostLongest).kind(Some(AhoCorasickKind::ContiguousNFA));
        let matcher = builder.build(names).map_err(|_| too_large)?;
        Ok(Self { matcher: Some(matcher), ids: ids.into() })
    }

    /// Cuts `text` at the literals and hands the parts out in order.
    pub(super) fn split<'t>(&self, text: &'t str, mut each: impl FnMut(Piece<'t>)) {
        let mut plain_start = 0;
        for found in self.matcher.iter().flat_map(|matcher| matcher.find_iter(text)) {
            if plain_start < found.start() {
                each(Piece::Plain(&text[plain_start..found.start()]));
            }
            each(Piece::Special(self.ids[found.pattern().as_usize()]));
            plain_start = found.end();
        }
        if plain_start < text.len() {
            each(Piece::Plain(&text[plain_start..]));
        }
    }

    /// Bytes of memory that the matcher takes.
    pub(super) fn estimated_bytes(&self) -> usize {
        self.matcher.as_ref().map_or(0, AhoCorasick::memory_usage) + size_of_val(&*self.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(literals: &[&str], text: &str, expect: &str) {
        let ids = (0..).map(TokenId);
        let matcher = Literals::new(literals.iter().copied().zip(ids)).unwrap();
        let mut seen = Vec::new();
        matcher.split(text, |piece| {
            seen.push(match piece {
                Piece::Plain(text) => format!("'{text}'"),
                Piece::Special(id) => id.to_string(),
            });
        });
        assert_eq!(seen.join(" "), expect);
    }

    #[test]
    fn the_longest_literal_wins() {
        check(&["<a>", "<a><b>"], "x<a><b><a>y", "'x' 1 0 'y'");
    }

    #[test]
    fn without_literals_text_stays_whole() {
        check(&[], "<a>", "'<a>'");
        check(&["<a>"], "", "");
    }

    #[test]
    fn a_huge_set_is_refused() {
        let long = "x".repeat(LITERALS_BYTES_MAX + 1);
        let error = Literals::new([(long.as_str(), TokenId(0))].into_iter()).unwrap_err();
        assert!(matches!(error, TextError::SpecialTokens { .. }));
    }
}
