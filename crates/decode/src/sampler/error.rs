//! What a request for sampling can get wrong.

use crate::grammar::GrammarError;

/// Parameters or logits that give no token.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A parameter outside its range.
    #[error("`{name}` is {value}; it must be {range}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What would be right, in words.
        range: &'static str,
    },
    /// Logits of another vocabulary.
    #[error("there are {found} logits for a vocabulary of {expected}")]
    LogitsLength {
        /// Logits.
        found: usize,
        /// Tokens.
        expected: usize,
    },
    /// A logit that no finite arithmetic gives.
    #[error("the logit of token {token} is {value}; the weights are damaged or the arithmetic is")]
    NotFinite {
        /// The token.
        token: usize,
        /// NaN or +inf.
        value: f32,
    },
    /// All tokens are banned or masked.
    #[error("no token is left to draw: all are banned or masked")]
    NothingLeft,
    /// A grammar for another vocabulary.
    #[error("the grammar was compiled for {found} tokens, but there are logits of {expected}")]
    GrammarVocabulary {
        /// Tokens of the grammar's vocabulary.
        found: usize,
        /// Logits.
        expected: usize,
    },
    /// An answer that can't go on in its grammar.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
}
