//! A refusal in OpenAI's shape.

use serde_json::{Value, json};

use crate::refusal::{Kind, Refusal};

/// `{"error": {message, type, param, code}}`.
pub(crate) fn body(refusal: &Refusal) -> Value {
    json!({
        "error": {
            "message": refusal.message,
            "type": name(refusal.kind),
            "param": refusal.param,
            "code": refusal.code,
        }
    })
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid | Kind::ContextLength | Kind::MethodNotAllowed | Kind::Slow | Kind::TooLarge => {
            "invalid_request_error"
        }
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound => "not_found_error",
        Kind::RateLimited | Kind::QueueFull => "rate_limit_error",
        Kind::Internal | Kind::Upstream => "server_error",
        Kind::Unavailable => "service_unavailable_error",
    }
}
