//! `GET /v1/models`: the one model that is here.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::desk::Facts;
use crate::http::{App, error, unknown_model};

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model(app.desk.facts())]}))
}

pub(super) async fn one(State(app): State<Arc<App>>, Path(id): Path<String>, uri: Uri) -> Response {
    let facts = app.desk.facts();
    if facts.is_called(&id) {
        Json(model(facts)).into_response()
    } else {
        error::response(&unknown_model(&id, facts.model_id()), uri.path())
    }
}

fn model(facts: &Facts) -> Value {
    json!({
        "id": facts.model_id(),
        "object": "model",
        "created": facts.config.created,
        "owned_by": "forerun",
        "context_length": facts.context,
        "max_model_len": facts.context,
        "meta": {
            "n_vocab": facts.n_vocab,
            "n_layers": facts.n_layers,
            "n_experts": facts.n_experts,
            "n_experts_used": facts.top_k,
            "memory_budget": facts.plan.budget,
        },
    })
}
