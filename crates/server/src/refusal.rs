//! Why a request isn't answered, before any API gives it its shape.

use axum::http::StatusCode;
use forerun_decode::text::TextError;
use forerun_decode::{DecodeError, GrammarError, SamplerError};

use crate::desk::{Failure, Refused};

/// What kind of thing is wrong; each API has its own names for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request says something that can't be done.
    Invalid,
    /// The request's prompt doesn't fit.
    ContextLength,
    /// No key, or a wrong one.
    Unauthorized,
    /// From where nobody may ask.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// Nothing of that method is here.
    MethodNotAllowed,
    /// The request took too long to arrive.
    Slow,
    /// The request is too large.
    TooLarge,
    /// Too many requests of one client.
    RateLimited,
    /// Too many requests of all.
    QueueFull,
    /// A fault of ours, or of the disk.
    Internal,
    /// Not now.
    Unavailable,
    /// A fault of the upstream's.
    Upstream,
}

impl Kind {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Invalid | Self::ContextLength => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RateLimited | Self::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Upstream => StatusCode::BAD_GATEWAY,
        }
    }
}

/// Why a request isn't answered: words for people, and names for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    /// The thing, its value, and what would be right.
    pub(crate) message: String,
    /// The field that is wrong, such as `messages[2].content`.
    pub(crate) param: Option<String>,
    /// A name for programs, where the kind doesn't say it all.
    pub(crate) code: Option<&'static str>,
    /// When to come again, in seconds.
    pub(crate) retry_after_s: Option<u64>,
    /// Tokens that a prompt has at least, where that is what is wrong.
    pub(crate) prompt_tokens: Option<usize>,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after_s: None,
            prompt_tokens: None,
        }
    }

    /// The field `param` is wrong.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(Kind::Invalid, message) }
    }

    /// The field `param` asks for something that isn't here, and can't be passed over.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    pub(crate) fn context(prompt_tokens: usize, context: usize) -> Self {
        let words = DecodeError::PromptTooLong { prompt_tokens, context }.to_string();
        Self { prompt_tokens: Some(prompt_tokens), ..Self::too_long(words) }
    }

    fn too_long(words: String) -> Self {
        Self::new(Kind::ContextLength, words).with_code("context_length_exceeded")
    }

    #[must_use]
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    #[must_use]
    pub(crate) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let words = refused.to_string();
        match refused {
            Refused::QueueFull { retry_after_s, .. } => Self {
                retry_after_s: Some(retry_after_s),
                ..Self::new(Kind::QueueFull, words).with_code("queue_full")
            },
            Refused::ShuttingDown => Self::new(Kind::Unavailable, words).with_code("shutting_down"),
            Refused::EngineGone => Self::new(Kind::Unavailable, words).with_code("engine_gone"),
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Decode(error) => error.into(),
            Failure::ShuttingDown => Refused::ShuttingDown.into(),
            Failure::EngineGone => Refused::EngineGone.into(),
        }
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Text(error) => error.into(),
            DecodeError::Sampler(error) => error.into(),
            DecodeError::PromptTooLong { prompt_tokens, context } => Self::context(prompt_tokens, context),
            DecodeError::PromptTooLarge { tokens_min, .. } => {
                Self { prompt_tokens: Some(tokens_min), ..Self::too_long(error.to_string()) }
            }
            DecodeError::EmptyPrompt => Self::new(Kind::Invalid, error.to_string()).with_code("empty_prompt"),
            other => {
                let words = chain(&other);
                tracing::warn!("the engine failed at a request; --log debug tells why");
                tracing::debug!("{words}");
                Self::new(Kind::Internal, without_folders(&words)).with_code("engine_failed")
            }
        }
    }
}

impl From<SamplerError> for Refusal {
    fn from(error: SamplerError) -> Self {
        match error {
            SamplerError::Parameter { name, .. } => Self::invalid(name, error.to_string()),
            SamplerError::Grammar(error) => error.into(),
            other => Self::new(Kind::Internal, other.to_string()).with_code("engine_failed"),
        }
    }
}

impl From<GrammarError> for Refusal {
    fn from(error: GrammarError) -> Self {
        let words = error.to_string();
        match error {
            GrammarError::Stack { .. } => Self::new(Kind::Unavailable, words),
            GrammarError::Outside { .. } => Self::new(Kind::Internal, words).with_code("engine_failed"),
            _ => Self::new(Kind::Invalid, words).with_code("grammar_not_supported"),
        }
    }
}

impl From<TextError> for Refusal {
    fn from(error: TextError) -> Self {
        let words = chain(&error);
        match error {
            TextError::Stack { .. } => Self::new(Kind::Unavailable, words),
            TextError::Bpe { .. } => Self::new(Kind::Internal, words),
            TextError::EmptyStop { .. } | TextError::StopSize { .. } => Self::invalid("stop", words),
            // What a template can't render is the conversation's affair: it rendered others.
            _ => Self::invalid("messages", words),
        }
    }
}

/// An error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

/// The same words without the folders in which files lie: they are no client's business.
fn without_folders(words: &str) -> String {
    let short = |word: &str| match word.rsplit_once('/') {
        Some((_, name)) if word.starts_with('/') && !name.is_empty() => name.to_owned(),
        _ => word.to_owned(),
    };
    words.split(' ').map(short).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_not_told_where_files_lie() {
        let words = "reading expert 3.5 at byte 7 of /data/models/pico.gguf: input/output error";
        assert_eq!(without_folders(words), "reading expert 3.5 at byte 7 of pico.gguf: input/output error");
    }

    #[test]
    fn what_a_request_got_wrong_is_no_fault_of_ours() {
        let refusal = |error: DecodeError| Refusal::from(error);
        assert_eq!(refusal(DecodeError::EmptyPrompt).kind.status(), StatusCode::BAD_REQUEST);
        let long = refusal(DecodeError::PromptTooLong { prompt_tokens: 9, context: 8 });
        assert_eq!(
            (long.kind.status(), long.code),
            (StatusCode::BAD_REQUEST, Some("context_length_exceeded"))
        );
        let setting = SamplerError::Parameter { name: "top_p", value: 2.0, range: "0 to 1" };
        assert_eq!(refusal(setting.into()).param.as_deref(), Some("top_p"));
        let nothing = refusal(SamplerError::NothingLeft.into());
        assert_eq!(nothing.kind.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let stale = refusal(DecodeError::StaleSession { n_tokens: 1 });
        assert_eq!(
            (stale.kind.status(), stale.code),
            (StatusCode::INTERNAL_SERVER_ERROR, Some("engine_failed"))
        );
    }
}
