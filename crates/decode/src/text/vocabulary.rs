//! The tokens of a model: what each one's bytes are, and which may come from whom.

use std::borrow::Cow;

use forerun_model::{KeyValue, KeyValues, TokenId};

use super::TextError;
use super::byte_alphabet;

/// Most tokens of a vocabulary; the largest known has about 260,000.
const TOKENS_MAX: usize = 1 << 20;

/// The kind of tokenizer that is supported: byte-level BPE.
const MODEL: &str = "gpt2";

/// Tokens that some files label as ordinary text although they steer the model.
const ALWAYS_CONTROL: [&str; 9] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// Tokens that end a generation wherever they exist, besides the one that the metadata names.
const ENDS: [&str; 5] = ["<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];

const MODEL_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const MERGES_KEY: &str = "tokenizer.ggml.merges";
const EOS_KEY: &str = "tokenizer.ggml.eos_token_id";
const BOS_KEY: &str = "tokenizer.ggml.bos_token_id";
const ADD_BOS_KEY: &str = "tokenizer.ggml.add_bos_token";
const PAD_KEY: &str = "tokenizer.ggml.padding_token_id";

/// A vocabulary as a file states it, not yet checked. Large parts can stay borrowed from the file's metadata.
#[derive(Clone, Debug, Default)]
pub struct VocabularyParts<'a> {
    /// The kind of tokenizer; must be `gpt2`.
    pub model: Cow<'a, str>,
    /// The rule that cuts text into words; one of [`PreTokenizer::NAMES`](super::PreTokenizer::NAMES).
    pub pre: Cow<'a, str>,
    /// Each token: in GPT-2's byte alphabet if it is ordinary text, as it is otherwise.
    pub tokens: Cow<'a, [String]>,
    /// ggml's token type of each token; empty when the file doesn't say, which means that all are ordinary.
    pub types: Vec<i128>,
    /// `left right`, most important first.
    pub merges: Cow<'a, [String]>,
    /// The token that ends a turn.
    pub eos: Option<i128>,
    /// The token that begins a text.
    pub bos: Option<i128>,
    /// Whether every text is to begin with that token.
    pub add_bos: bool,
    /// The token that fills a batch.
    pub pad: Option<i128>,
}

impl<'a> VocabularyParts<'a> {
    /// Takes the parts from a file's metadata, without a copy of tokens and merges.
    ///
    /// # Errors
    /// [`TextError::MissingKey`] and [`TextError::KeyType`]; the content is checked by [`Vocabulary::new`].
    pub fn from_metadata(kv: &'a dyn KeyValues) -> Result<Self, TextError> {
        let types = match kv.get(TYPES_KEY) {
            None => Vec::new(),
            Some(KeyValue::Integers(types)) => types,
            Some(other) => return Err(wrong_type(TYPES_KEY, "an array of integers", &other)),
        };
        Ok(Self {
            model: text(kv, MODEL_KEY)?,
            pre: text(kv, PRE_KEY)?,
            tokens: texts(kv, TOKENS_KEY)?,
            types,
            merges: texts(kv, MERGES_KEY)?,
            eos: token(kv, EOS_KEY)?,
            bos: token(kv, BOS_KEY)?,
            add_bos: flag(kv, ADD_BOS_KEY)?,
            pad: token(kv, PAD_KEY)?,
        })
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for text that has no token; byte-level BPE never needs it.
    Unknown,
    /// Steers the model; only a template or `--raw` text may name it, and it is not shown.
    Control,
    /// A literal such as `<think>`: taken whole like a control token, but shown.
    UserDefined,
    /// Padding of the table; must never be sampled.
    Unused,
    /// A raw byte; byte-level BPE has no such tokens.
    Byte,
}

impl TokenKind {
    /// Whether the token's literal is one unit in text whose special tokens are parsed.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::UserDefined)
    }

    fn from_ggml(token: usize, found: i128) -> Result<Self, TextError> {
        Ok(match found {
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return Err(TextError::TokenType { token, found }),
        })
    }
}

/// All tokens in one compact table.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// The bytes of all tokens, one after the other.
    bytes: Box<[u8]>,
    /// Where each token's bytes end.
    ends: Box<[u32]>,
    kinds: Box<[TokenKind]>,
    /// Special tokens by literal, sorted.
    specials: Box<[(Box<str>, TokenId)]>,
    /// Tokens that end a generation, sorted.
    end_ids: Box<[TokenId]>,
    eos: Option<TokenId>,
    bos: Option<TokenId>,
    adds_bos: bool,
    pad: Option<TokenId>,
}

impl Vocabulary {
    /// Checks the parts and packs the tokens.
    ///
    /// # Errors
    /// [`TextError`]: an unsupported kind, types that don't fit the tokens, a named token out of range.
    pub fn new(parts: &VocabularyParts<'_>) -> Result<Self, TextError> {
        supported(parts)?;
        let n_tokens = parts.tokens.len();
        let kinds = kinds(parts)?;
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(n_tokens);
        for (token, &kind) in parts.tokens.iter().zip(&*kinds) {
            push_bytes(token, kind, &mut bytes);
            let end = u32::try_from(bytes.len());
            ends.push(end.map_err(|_| TextError::VocabularySize { found: n_tokens, max: TOKENS_MAX })?);
        }
        let specials = specials(parts, &kinds);
        let named = |key, value: Option<i128>| value.map(|v| in_range(key, v, n_tokens)).transpose();
        let eos = named(EOS_KEY, parts.eos)?;
        let mut vocabulary = Self {
            bytes: bytes.into(),
            ends: ends.into(),
            kinds,
            specials,
            end_ids: Box::default(),
            eos,
            bos: named(BOS_KEY, parts.bos)?,
            adds_bos: parts.add_bos,
            pad: named(PAD_KEY, parts.pad)?,
        };
        let mut end_ids: Vec<_> =
            ENDS.iter().filter_map(|name| vocabulary.special(name)).chain(eos).collect();
        end_ids.sort_unstable();
        end_ids.dedup();
        vocabulary.end_ids = end_ids.into();
        Ok(vocabulary)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no tokens; never true for a vocabulary that [`Self::new`] made.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of a token, or `None` for an id outside the vocabulary. A token may be a part of a character.
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        let end = *self.ends.get(id.idx())? as usize;
        let start = id.idx().checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(&self.bytes[start..end])
    }

    /// What a token is for, or `None` for an id outside the vocabulary.
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id.idx()).copied()
    }

    /// Whether a token steers the model and is not shown.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.kind(id) == Some(TokenKind::Control)
    }

    /// Whether a token is padding of the table.
    pub fn is_unused(&self, id: TokenId) -> bool {
        self.kind(id) == Some(TokenKind::Unused)
    }

    /// Tokens that must never be sampled, in order.
    #[expect(clippy::cast_possible_truncation, reason = "a vocabulary has at most 2^20 tokens")]
    pub fn banned(&self) -> impl Iterator<Item = TokenId> + '_ {
        let unused = self.kinds.iter().enumerate().filter(|(_, kind)| **kind == TokenKind::Unused);
        unused.map(|(id, _)| TokenId(id as u32))
    }

    /// The control or user-defined token with this literal.
    pub fn special(&self, literal: &str) -> Option<TokenId> {
        let found = self.specials.binary_search_by(|(name, _)| (**name).cmp(literal));
        found.ok().map(|at| self.specials[at].1)
    }

    /// All control and user-defined tokens with their literals, sorted by literal.
    pub fn specials(&self) -> impl ExactSizeIterator<Item = (&str, TokenId)> {
        self.specials.iter().map(|(name, id)| (&**name, *id))
    }

    /// Tokens that end a generation: the metadata's, and those known to by their literal.
    pub fn end_ids(&self) -> &[TokenId] {
        &self.end_ids
    }

    /// The metadata's end of a turn.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The metadata's begin of a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that the metadata puts in front of every text; `None` when it puts none there, as most files do.
    /// Chat templates write their own beginning, so prompts never get it.
    pub fn opening(&self) -> Option<TokenId> {
        self.bos.filter(|_| self.adds_bos)
    }

    /// The metadata's filler.
    pub fn pad(&self) -> Option<TokenId> {
        self.pad
    }

    /// Bytes of the longest token: a text of n bytes in composed form has at least n / this many tokens.
    pub fn token_bytes_max(&self) -> usize {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends.iter().zip(starts).map(|(end, start)| (end - start) as usize).max().unwrap_or(0)
    }

    /// Bytes of all tokens' text.
    pub fn text_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory that the table takes.
    pub fn estimated_bytes(&self) -> usize {
        let specials: usize =
            self.specials.iter().map(|(name, _)| name.len() + size_of::<(Box<str>, TokenId)>()).sum();
        self.bytes.len() + size_of_val(&*self.ends) + size_of_val(&*self.kinds) + specials
    }
}

fn supported(parts: &VocabularyParts<'_>) -> Result<(), TextError> {
    if parts.model != MODEL {
        return Err(TextError::UnsupportedModel { found: parts.model.to_string(), supported: MODEL });
    }
    match parts.tokens.len() {
        1..=TOKENS_MAX => Ok(()),
        found => Err(TextError::VocabularySize { found, max: TOKENS_MAX }),
    }
}

fn kinds(parts: &VocabularyParts<'_>) -> Result<Box<[TokenKind]>, TextError> {
    let expected = parts.tokens.len();
    let mut kinds = vec![TokenKind::Normal; expected];
    if !parts.types.is_empty() {
        if parts.types.len() != expected {
            return Err(TextError::TypesLength { found: parts.types.len(), expected });
        }
        for (token, &found) in parts.types.iter().enumerate() {
            kinds[token] = TokenKind::from_ggml(token, found)?;
        }
    }
    for (token, kind) in parts.tokens.iter().zip(&mut kinds) {
        if ALWAYS_CONTROL.contains(&token.as_str()) {
            *kind = TokenKind::Control;
        }
    }
    Ok(kinds.into())
}

/// Ordinary tokens are spelled in the byte alphabet, all others as they are. A character outside the alphabet in
/// an ordinary token stands for itself.
fn push_bytes(token: &str, kind: TokenKind, bytes: &mut Vec<u8>) {
    if kind != TokenKind::Normal {
        bytes.extend_from_slice(token.as_bytes());
        return;
    }
    for symbol in token.chars() {
        match byte_alphabet::byte(symbol) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(symbol.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Of two tokens with one literal, the first counts.
#[expect(clippy::cast_possible_truncation, reason = "a vocabulary has at most 2^20 tokens")]
fn specials(parts: &VocabularyParts<'_>, kinds: &[TokenKind]) -> Box<[(Box<str>, TokenId)]> {
    let all = parts.tokens.iter().zip(kinds).enumerate();
    let special = all.filter(|(_, (literal, kind))| kind.is_special() && !literal.is_empty());
    let mut list: Vec<(Box<str>, TokenId)> =
        special.map(|(id, (literal, _))| (literal.as_str().into(), TokenId(id as u32))).collect();
    list.sort();
    list.dedup_by(|later, first| later.0 == first.0);
    list.into()
}

fn in_range(key: &'static str, value: i128, n_tokens: usize) -> Result<TokenId, TextError> {
    let id = u32::try_from(value).ok().filter(|&id| (id as usize) < n_tokens);
    id.map(TokenId).ok_or(TextError::TokenRange { key, value, last: n_tokens - 1 })
}

fn text<'a>(kv: &'a dyn KeyValues, key: &'static str) -> Result<Cow<'a, str>, TextError> {
    match kv.get(key) {
        Some(KeyValue::Text(text)) => Ok(text.into()),
        Some(other) => Err(wrong_type(key, "a string", &other)),
        None => Err(TextError::MissingKey { key }),
    }
}

fn texts<'a>(kv: &'a dyn KeyValues, key: &'static str) -> Result<Cow<'a, [String]>, TextError> {
    match kv.get(key) {
        Some(KeyValue::Texts(texts)) => Ok(texts.into()),
        Some(other) => Err(wrong_type(key, "an array of strings", &other)),
        None => Err(TextError::MissingKey { key }),
    }
}

fn token(kv: &dyn KeyValues, key: &'static str) -> Result<Option<i128>, TextError> {
    match kv.get(key) {
        None => Ok(None),
        Some(KeyValue::Integer(id)) => Ok(Some(id)),
        Some(other) => Err(wrong_type(key, "an integer", &other)),
    }
}

fn flag(kv: &dyn KeyValues, key: &'static str) -> Result<bool, TextError> {
    match kv.get(key) {
        None => Ok(false),
        Some(KeyValue::Bool(value)) => Ok(value),
        Some(other) => Err(wrong_type(key, "a bool", &other)),
    }
}

fn wrong_type(key: &'static str, expected: &'static str, found: &KeyValue<'_>) -> TextError {
    TextError::KeyType { key, expected, found: found.kind() }
}
