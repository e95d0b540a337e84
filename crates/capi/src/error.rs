//! What can go wrong at the boundary, and which status it is.

use std::error::Error as _;

use forerun_decode::DecodeError;

use crate::abi;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CapiError {
    /// A pointer that must not be NULL.
    #[error("`{name}` is NULL; it must be {right}")]
    Null {
        /// The argument or field.
        name: String,
        /// What would be right.
        right: &'static str,
    },
    /// A pointer that no such array can have.
    #[error("`{name}` is {address:#x}, which isn't aligned; it must be {right}")]
    Unaligned {
        /// The argument or field.
        name: String,
        /// The pointer.
        address: usize,
        /// What would be right.
        right: &'static str,
    },
    /// Text in another encoding.
    #[error("`{name}` is not UTF-8 at byte {offset_bytes}; text must be UTF-8")]
    NotUtf8 {
        /// The argument or field.
        name: String,
        /// Where it isn't.
        offset_bytes: usize,
    },
    /// A structure whose `size` wasn't set.
    #[error(
        "`size` of {name} is {found}; zero the structure and set it to sizeof({name}), which is {expected} here"
    )]
    Size {
        /// The structure.
        name: &'static str,
        /// Its `size`.
        found: usize,
        /// What would be right.
        expected: usize,
    },
    /// A structure of a later version.
    #[error(
        "{name} has a field set at byte {offset_bytes}, behind the {known} bytes that version {version} knows; leave it \
         zero, or link the library that the header came with",
        version = env!("CARGO_PKG_VERSION")
    )]
    UnknownField {
        /// The structure.
        name: &'static str,
        /// The first byte that isn't zero.
        offset_bytes: usize,
        /// Bytes that are known here.
        known: usize,
    },
    /// A number out of range.
    #[error("`{name}` is {found}; it must be {right}")]
    Value {
        /// The argument or field.
        name: String,
        /// Its value.
        found: i128,
        /// What would be right.
        right: &'static str,
    },
    /// Two things to answer, or none.
    #[error("a request must have either `messages` or `prompt`, and this one has {found}")]
    Asked {
        /// What it has.
        found: &'static str,
    },
    /// Messages for a model that has no template.
    #[error("the model's file has no chat template, so it takes no messages; use `prompt`")]
    NoTemplate,
    /// A prompt that doesn't fit.
    #[error(
        "the prompt has {at_least}{prompt_tokens} tokens, but the context holds {context} and at least one must be left for \
         the answer; leave out old messages, or open the model with more `context`"
    )]
    Context {
        /// Nothing where the number is exact.
        at_least: &'static str,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The model can't be opened.
    #[error(transparent)]
    Open(DecodeError),
    /// The budget can't be lowered so far.
    #[error(transparent)]
    Lower(DecodeError),
    /// The request can't be answered, or the answer failed.
    #[error(transparent)]
    Answer(DecodeError),
    /// Another answer is being made.
    #[error("the engine is making an answer; wait until forerun_generate() has returned, or cancel it")]
    Busy,
    /// Loading was stopped.
    #[error("loading was stopped by its callback, after {bytes_done} of {bytes_total} bytes")]
    Cancelled {
        /// Bytes loaded.
        bytes_done: u64,
        /// Bytes to load.
        bytes_total: u64,
    },
    /// A bug, just now.
    #[error("a bug in forerun: {words}; the engine can only be closed")]
    Panicked {
        /// What the panic said.
        words: String,
    },
    /// A bug, before.
    #[error("an earlier call with this engine met a bug in forerun; the engine can only be closed")]
    Poisoned,
}

impl CapiError {
    /// What a failed request or answer is.
    pub(crate) fn answer(error: DecodeError) -> Self {
        match error {
            DecodeError::PromptTooLong { prompt_tokens, context } => {
                Self::Context { at_least: "", prompt_tokens, context }
            }
            DecodeError::NoTemplate { .. } => Self::NoTemplate,
            other => Self::Answer(other),
        }
    }

    /// The number that C gets.
    pub fn status(&self) -> abi::Status {
        match self {
            Self::Null { .. }
            | Self::Unaligned { .. }
            | Self::NotUtf8 { .. }
            | Self::Size { .. }
            | Self::UnknownField { .. }
            | Self::Value { .. }
            | Self::Asked { .. }
            | Self::NoTemplate => abi::ERROR_ARGUMENT,
            Self::Context { .. } => abi::ERROR_CONTEXT,
            Self::Open(error) | Self::Lower(error) => match error {
                DecodeError::Budget { .. } | DecodeError::Arena(_) => abi::ERROR_MEMORY,
                DecodeError::Context { .. } => abi::ERROR_ARGUMENT,
                DecodeError::System { .. } => abi::ERROR_ENGINE,
                _ => abi::ERROR_MODEL,
            },
            Self::Answer(error) => match error {
                DecodeError::Sampler(_) | DecodeError::Text(_) | DecodeError::EmptyPrompt => {
                    abi::ERROR_ARGUMENT
                }
                _ => abi::ERROR_ENGINE,
            },
            Self::Busy => abi::ERROR_BUSY,
            Self::Cancelled { .. } => abi::ERROR_CANCELLED,
            Self::Panicked { .. } | Self::Poisoned => abi::ERROR_INTERNAL,
        }
    }

    /// The message, and those of its causes.
    pub fn words(&self) -> String {
        let mut words = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            words += ": ";
            words += &error.to_string();
            cause = error.source();
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_causes() {
        let source = std::io::Error::other("no more threads");
        let error = CapiError::Open(DecodeError::System { doing: "start threads", source });
        assert_eq!(error.words(), "can't start threads: no more threads");
        assert_eq!(error.status(), abi::ERROR_ENGINE);
    }

    #[test]
    fn a_prompt_that_does_not_fit_is_told_in_the_words_of_this_interface() {
        let error = CapiError::answer(DecodeError::PromptTooLong { prompt_tokens: 40, context: 32 });
        assert_eq!(error.status(), abi::ERROR_CONTEXT);
        let words = error.words();
        assert!(words.contains("has 40 tokens") && words.contains("holds 32"), "{words}");
        assert!(!words.contains("--ctx"), "{words}");
    }
}
