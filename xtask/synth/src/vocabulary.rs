//! A real small tokenizer, filled up to a large vocabulary: script tokens, then fillers that nobody may sample.

use std::path::Path;

use forerun_storage::Gguf;
use forerun_storage::gguf::{Array, Value};

use crate::error::SynthError;
use crate::script::literal;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
/// ggml's types of tokens.
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The header's part about text.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// All keys of the tokenizer, the chat template among them.
    pub(crate) keys: Vec<(String, Value)>,
    /// The script's first token.
    pub(crate) first_token: usize,
    pub(crate) n_vocab: usize,
}

impl Vocabulary {
    /// The tokenizer of the model at `path`, with `n_script` script tokens and at least `n_vocab` tokens in all.
    ///
    /// # Errors
    /// [`SynthError`] when the file has no tokenizer.
    pub(crate) fn extended(path: &Path, n_script: usize, n_vocab: usize) -> Result<Self, SynthError> {
        let mut metadata = Gguf::open(path)?.metadata;
        let Some(Value::Array(Array::Text(mut tokens))) = metadata.take(TOKENS) else {
            return Err(SynthError::Tokenizer { key: TOKENS });
        };
        let Some(Value::Array(Array::I32(mut types))) = metadata.take(TYPES) else {
            return Err(SynthError::Tokenizer { key: TYPES });
        };
        let first_token = tokens.len();
        let n_vocab = n_vocab.max(first_token + n_script);
        tokens.extend((0..n_script).map(literal));
        types.resize(tokens.len(), USER_DEFINED);
        tokens.extend((tokens.len()..n_vocab).map(|token| format!("<|unused{token:06}|>")));
        types.resize(n_vocab, UNUSED);
        let others = metadata.entries().iter().filter(|(key, _)| key.starts_with("tokenizer.")).cloned();
        let mut keys: Vec<_> = others.collect();
        keys.push((TOKENS.into(), Value::Array(Array::Text(tokens))));
        keys.push((TYPES.into(), Value::Array(Array::I32(types))));
        Ok(Self { keys, first_token, n_vocab })
    }
}
