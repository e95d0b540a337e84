//! Text to tokens: special literals, NFC, pieces, byte-level BPE.
//!
//! The steps and their order are those of Hugging Face's tokenizer. The merging itself is the `tokenizers` crate's;
//! it only knows the ordinary tokens, so that no text can become a control token, whatever the merge rules say.

use std::borrow::Cow;

use ahash::AHashMap;
use forerun_model::TokenId;
use tokenizers::Model;
use tokenizers::models::bpe::BPE;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::byte_alphabet;
use super::literals::{Literals, Piece};
use super::{PreTokenizer, TextError, TextStream, TokenKind, Vocabulary, VocabularyParts};

/// Pieces whose merging is remembered. Words repeat, but a conversation has few different ones.
const CACHED_PIECES: usize = 1024;

/// Encodes text to tokens and decodes tokens to text.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    pre: PreTokenizer,
    bpe: BPE,
    /// Every special literal.
    specials: Literals,
    /// The literals that a chat template may write.
    scaffold: Literals,
    bpe_bytes: usize,
}

impl Tokenizer {
    /// Checks a file's vocabulary and builds the tokenizer.
    ///
    /// # Errors
    /// [`TextError`]: those of [`Vocabulary::new`]; a pre-tokenizer that isn't there; merges about unknown tokens; a byte without a token.
    pub fn new(parts: &VocabularyParts<'_>) -> Result<Self, TextError> {
        let vocabulary = Vocabulary::new(parts)?;
        let unsupported = || {
            let (found, supported) = (parts.pre.to_string(), PreTokenizer::NAMES);
            TextError::UnsupportedPre { found, supported }
        };
        let pre = PreTokenizer::named(&parts.pre).ok_or_else(unsupported)?;
        let symbols = ordinary_tokens(parts, &vocabulary);
        check_bytes(&symbols)?;
        let merges = merges(parts, &vocabulary, &symbols)?;
        let bpe_bytes = bpe_bytes(&symbols, merges.len());
        let builder = BPE::builder().vocab_and_merges(symbols, merges).cache_capacity(CACHED_PIECES);
        let bpe = builder.build().map_err(|e| TextError::Bpe { reason: e.to_string() })?;
        let specials = Literals::new(vocabulary.specials())?;
        let scaffold = Literals::new(vocabulary.specials().filter(|(literal, _)| is_scaffold(literal)))?;
        Ok(Self { vocabulary, pre, bpe, specials, scaffold, bpe_bytes })
    }

    /// The tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The tokens of `text` as ordinary text: never a control or user-defined token, whatever the text says.
    ///
    /// # Errors
    /// [`TextError::Bpe`]: the BPE model failed.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        let mut ids = Vec::new();
        self.push_plain(text, &mut ids)?;
        Ok(ids)
    }

    /// The tokens of `text`, in which the literals of control and user-defined tokens stand for these tokens; for
    /// text whose author may steer the model.
    ///
    /// # Errors
    /// [`TextError::Bpe`]: the BPE model failed.
    pub fn encode_special(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        self.encode_pieces(&self.specials, text, Cow::Borrowed)
    }

    /// Like [`Self::encode_special`] for a rendered prompt: literals of the template only; `restore` gives back
    /// what a person wrote.
    pub(super) fn encode_scaffold<'t>(
        &self,
        text: &'t str,
        restore: impl Fn(&'t str) -> Cow<'t, str>,
    ) -> Result<Vec<TokenId>, TextError> {
        self.encode_pieces(&self.scaffold, text, restore)
    }

    /// The text of `ids`: all tokens, control tokens too; bytes that are no UTF-8 become U+FFFD, ids outside the
    /// vocabulary nothing. For text that is shown as it is made, use [`TextStream`].
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> =
            ids.iter().flat_map(|&id| self.vocabulary.token_bytes(id).unwrap_or_default()).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A stream that hides control tokens.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(&self.vocabulary)
    }

    /// Bytes of memory that the tokenizer takes, the cache of pieces included.
    pub fn estimated_bytes(&self) -> usize {
        let literals = self.specials.estimated_bytes() + self.scaffold.estimated_bytes();
        self.vocabulary.estimated_bytes() + literals + self.bpe_bytes
    }

    fn encode_pieces<'t>(
        &self,
        literals: &Literals,
        text: &'t str,
        restore: impl Fn(&'t str) -> Cow<'t, str>,
    ) -> Result<Vec<TokenId>, TextError> {
        let mut ids = Vec::new();
        let mut outcome = Ok(());
        literals.split(text, |piece| match piece {
            Piece::Special(id) => ids.push(id),
            Piece::Plain(plain) if outcome.is_ok() => outcome = self.push_plain(&restore(plain), &mut ids),
            Piece::Plain(_) => {}
        });
        outcome.map(|()| ids)
    }

    fn push_plain(&self, text: &str, ids: &mut Vec<TokenId>) -> Result<(), TextError> {
        let text = nfc(text);
        let mut symbols = String::new();
        for piece in self.pre.pieces(&text) {
            symbols.clear();
            byte_alphabet::push_symbols(piece, &mut symbols);
            let tokens = self.bpe.tokenize(&symbols).map_err(|e| TextError::Bpe { reason: e.to_string() })?;
            ids.extend(tokens.iter().map(|token| TokenId(token.id)));
        }
        Ok(())
    }
}

/// Whether a chat template may write this literal: it begins and ends in punctuation, like `<|im_start|>`. Plain
/// words and white space that a file declares as tokens are no markers, and the guard of the template can't
/// tell them from what a person writes.
pub(super) fn is_scaffold(literal: &str) -> bool {
    let marks = |c: Option<char>| c.is_some_and(|c| !c.is_alphanumeric() && !c.is_whitespace());
    let mut chars = literal.chars();
    marks(chars.next()) && marks(chars.next_back())
}

/// The tokens that text can become, by their symbols; of two with the same symbols the first counts.
#[expect(clippy::cast_possible_truncation, reason = "a vocabulary has at most 2^20 tokens")]
fn ordinary_tokens(parts: &VocabularyParts<'_>, vocabulary: &Vocabulary) -> AHashMap<String, u32> {
    let mut symbols = AHashMap::with_capacity(parts.tokens.len());
    for (id, token) in parts.tokens.iter().enumerate() {
        if vocabulary.kind(TokenId(id as u32)) == Some(TokenKind::Normal) {
            symbols.entry(token.clone()).or_insert(id as u32);
        }
    }
    symbols
}

/// Every byte that UTF-8 uses must have a token, or text would be dropped in silence.
fn check_bytes(symbols: &AHashMap<String, u32>) -> Result<(), TextError> {
    let in_utf8 = |byte: &u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff);
    for byte in (0..=u8::MAX).filter(in_utf8) {
        if !symbols.contains_key(byte_alphabet::symbol(byte).encode_utf8(&mut [0; 4]) as &str) {
            return Err(TextError::MissingByte { byte });
        }
    }
    Ok(())
}

/// The merge rules between ordinary tokens. A rule about a special token is left out: text doesn't become one.
fn merges(
    parts: &VocabularyParts<'_>,
    vocabulary: &Vocabulary,
    symbols: &AHashMap<String, u32>,
) -> Result<Vec<(String, String)>, TextError> {
    let mut merges = Vec::with_capacity(parts.merges.len());
    let mut joined = String::new();
    for (index, rule) in parts.merges.iter().enumerate() {
        let two = rule.split_once(' ').filter(|(l, r)| !l.is_empty() && !r.is_empty() && !r.contains(' '));
        let (left, right) = two.ok_or_else(|| TextError::MergeForm { index, found: rule.clone() })?;
        joined.clear();
        joined.extend([left, right]);
        match [left, right, &joined].into_iter().find(|name| !symbols.contains_key(*name)) {
            None => merges.push((left.to_owned(), right.to_owned())),
            Some(name) if vocabulary.special(name).is_some() => {}
            Some(name) => return Err(TextError::MergeToken { index, found: name.to_owned() }),
        }
    }
    Ok(merges)
}

/// What the BPE model keeps: two maps between tokens and ids, each with its own strings, the merges, the cache.
fn bpe_bytes(symbols: &AHashMap<String, u32>, n_merges: usize) -> usize {
    /// Hash tables fill at most 7/8 of a power of two and keep a control byte per entry.
    fn table(n: usize, entry_bytes: usize) -> usize {
        (n * 8 / 7).next_power_of_two() * (entry_bytes + 1)
    }
    /// A short string's heap block, with the allocator's header.
    const STRING_BYTES: usize = 32;
    /// A cached piece: its string, and the symbols of a word of usual length.
    const PIECE_BYTES: usize = 256;
    let tokens = symbols.len();
    2 * (table(tokens, size_of::<(String, u32)>()) + tokens * STRING_BYTES)
        + table(n_merges, size_of::<[u32; 4]>())
        + table(CACHED_PIECES, 2 * size_of::<String>())
        + CACHED_PIECES * PIECE_BYTES
}

/// `text` in composed form; most text is already.
fn nfc(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.nfc().map(|(c, _)| c).collect())
}
