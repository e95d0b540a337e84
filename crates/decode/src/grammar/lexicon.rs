//! A vocabulary's tokens as a grammar sees them.

use std::sync::Arc;

use forerun_model::TokenId;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::{GrammarError, thoughts};
use crate::text::{TokenKind, Vocabulary};

/// Longer tokens can't be drawn under a grammar; the tree has no deeper branches.
const TOKEN_BYTES_MAX: usize = 1000;
/// Most bytes of all tokens: the tree numbers its nodes with 22 bits.
const VOCABULARY_BYTES_MAX: usize = 4_000_000;

/// The tokens as a tree, and what some of them mean.
#[derive(Clone)]
pub(super) struct Lexicon {
    pub(super) env: TokEnv,
    /// Control tokens, sorted: they aren't shown.
    hidden: Box<[TokenId]>,
    /// Tokens that end an answer.
    pub(super) ends: Box<[TokenId]>,
    /// The token that opens thoughts, if it is one.
    pub(super) open: Option<TokenId>,
    /// Tokens that are nothing but white space, sorted.
    pub(super) blanks: Box<[TokenId]>,
    /// Tokens with a `>` and something other than white space behind it: they could end thoughts and begin the answer
    /// in one.
    pub(super) closers: Box<[TokenId]>,
}

impl Lexicon {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        let refused = |reason: &str| GrammarError::Vocabulary { reason: reason.to_owned() };
        let Some(&first_end) = vocabulary.end_ids().first() else {
            return Err(refused("it has no token that ends an answer"));
        };
        let words: Vec<_> = ids(vocabulary.len()).map(|id| word(vocabulary, id)).collect();
        if words.iter().map(Vec::len).sum::<usize>() > VOCABULARY_BYTES_MAX {
            return Err(refused("its tokens have more than 4 MB of text"));
        }
        let n_vocab = u32::try_from(words.len()).map_err(|_| refused("it has more than 2^32 tokens"))?;
        let ends: Vec<u32> = vocabulary.end_ids().iter().map(|id| id.0).collect();
        let trie = TokTrie::from(&TokRxInfo::new(n_vocab, first_end.0), &words).with_eos_tokens(&ends);
        let mut lexicon = Self {
            env: Arc::new(ApproximateTokEnv::new(trie)),
            hidden: ids(words.len()).filter(|&id| vocabulary.is_control(id)).collect(),
            ends: vocabulary.end_ids().into(),
            open: vocabulary.special(thoughts::OPEN),
            blanks: Box::default(),
            closers: Box::default(),
        };
        let holding = |what: &dyn Fn(&[u8]) -> bool| -> Box<[TokenId]> {
            ids(words.len()).filter(|&id| what(lexicon.shown(id))).collect()
        };
        let blanks = holding(&|bytes| !bytes.is_empty() && bytes.trim_ascii().is_empty());
        let closers = holding(&|bytes| {
            let behind = bytes.iter().position(|&byte| byte == b'>').map(|at| &bytes[at + 1..]);
            behind.is_some_and(|rest| !rest.trim_ascii().is_empty())
        });
        lexicon.blanks = blanks;
        lexicon.closers = closers;
        Ok(lexicon)
    }

    /// The bytes of a token that a reader sees: none of a control token, and none of an id outside the vocabulary.
    pub(super) fn shown(&self, id: TokenId) -> &[u8] {
        if id.idx() >= self.len() || self.hidden.binary_search(&id).is_ok() {
            return &[];
        }
        let bytes = self.env.tok_trie().token(id.0);
        bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
    }

    /// Whether a text is a token of its own, which no other tokens stand for.
    pub(super) fn is_special(&self, literal: &str) -> bool {
        self.env.tok_trie().get_special_token(literal).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.env.tok_trie().vocab_size()
    }

    pub(super) fn is_blank(&self, id: TokenId) -> bool {
        self.blanks.binary_search(&id).is_ok()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a vocabulary has at most 2^20 tokens")]
fn ids(n: usize) -> impl Iterator<Item = TokenId> {
    (0..n as u32).map(TokenId)
}

/// A token's bytes in the tree: special ones only by name, behind a byte that no text has; nothing for those that are never
/// drawn.
fn word(vocabulary: &Vocabulary, id: TokenId) -> Vec<u8> {
    let bytes = vocabulary.token_bytes(id).unwrap_or_default();
    match vocabulary.kind(id) {
        _ if bytes.is_empty() || bytes.len() > TOKEN_BYTES_MAX => Vec::new(),
        Some(TokenKind::Control | TokenKind::UserDefined) => {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
        }
        Some(TokenKind::Normal) if !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) => bytes.to_vec(),
        _ => Vec::new(),
    }
}
