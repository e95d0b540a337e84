//! A refusal in Anthropic's shape.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::refusal::{Kind, Refusal};

/// What Anthropic answers when too much is going on.
const OVERLOADED: u16 = 529;

/// `{"type": "error", "error": {type, message}}`.
pub(crate) fn body(refusal: &Refusal) -> Value {
    json!({
        "type": "error",
        "error": {"type": name(refusal.kind), "message": refusal.message, "param": refusal.param},
    })
}

/// The status, which for a full queue is Anthropic's own.
pub(crate) fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::QueueFull => StatusCode::from_u16(OVERLOADED).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        other => other.status(),
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid | Kind::ContextLength | Kind::MethodNotAllowed => "invalid_request_error",
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound => "not_found_error",
        Kind::TooLarge => "request_too_large",
        Kind::Slow => "timeout_error",
        Kind::RateLimited => "rate_limit_error",
        Kind::QueueFull => "overloaded_error",
        Kind::Internal | Kind::Unavailable | Kind::Upstream => "api_error",
    }
}
