//! `GET /health`: whether requests are taken, and how much is going on.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::http::App;

/// 200 while requests are taken, else 503.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let status = app.desk.status();
    let word = match (status.is_alive, status.is_open) {
        (true, true) => "ok",
        (true, false) => "shutting down",
        (false, _) => "engine gone",
    };
    let code = if word == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "status": word,
        "model": app.desk.facts().model_id(),
        "slots": status.slots,
        "active": status.active,
        "queued": status.queued,
        "queue_max": status.queue_max,
    });
    (code, Json(body)).into_response()
}
