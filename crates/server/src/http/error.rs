//! A refusal as a response, in the shape of the API that was asked.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::refusal::{Kind, Refusal};
use crate::{anthropic, ollama, openai};

/// The response to a request for `path`.
pub(crate) fn response(refusal: &Refusal, path: &str) -> Response {
    let (status, body) = if path.starts_with("/v1/messages") {
        (anthropic::error::status(refusal.kind), anthropic::error::body(refusal))
    } else if path.starts_with("/api/") {
        (refusal.kind.status(), ollama::error(refusal))
    } else {
        (refusal.kind.status(), openai::error::body(refusal))
    };
    let mut response = (status, axum::Json(body)).into_response();
    let headers = response.headers_mut();
    if let Some(seconds) = refusal.retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if refusal.kind == Kind::Unauthorized {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
