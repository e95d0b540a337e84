//! What front ends ask about models.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{LATEST, PATH, check_name, take_name};
use crate::desk::Facts;
use crate::http::body::Object;
use crate::http::{App, error as http_error};

/// The version of Ollama whose shapes these are: front ends ask what a server can do by it.
const SHAPE_VERSION: &str = "0.12.0";
/// What all models here are; front ends show it, and find the length of the context under it.
const FAMILY: &str = "moe";
/// What a front end takes for never.
const NEVER: &str = "2318-01-01T00:00:00Z";

/// `GET /api/tags`: the models that are here.
pub(super) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"models": [model(app.desk.facts())]}))
}

/// `GET /api/ps`: the models that are in memory.
pub(super) async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let facts = app.desk.facts();
    let mut model = model(facts);
    model["expires_at"] = NEVER.into();
    model["size_vram"] = 0.into();
    model["context_length"] = facts.context.into();
    Json(json!({"models": [model]}))
}

/// `GET /api/version`.
pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": SHAPE_VERSION, "forerun": env!("CARGO_PKG_VERSION")}))
}

/// `POST /api/show`: what is known of a model.
pub(super) async fn show(State(app): State<Arc<App>>, Object(mut fields): Object) -> Response {
    let checked = take_name(&mut fields).and_then(|name| check_name(&app, &name));
    match checked {
        Ok(()) => Json(shown(app.desk.facts())).into_response(),
        Err(refusal) => http_error::response(&refusal, PATH),
    }
}

fn shown(facts: &Facts) -> Value {
    let mut capabilities = vec!["completion"];
    if let Some(template) = &facts.template {
        if template.call_format().is_some() {
            capabilities.push("tools");
        }
        if template.knows_thoughts() {
            capabilities.push("thinking");
        }
    }
    json!({
        "modelfile": format!("FROM {}", facts.model_id()),
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": crate::date::rfc3339(facts.config.created),
        "details": details(),
        "model_info": {
            "general.architecture": FAMILY,
            "moe.context_length": facts.context,
            "moe.block_count": facts.n_layers,
            "moe.expert_count": facts.n_experts,
            "moe.expert_used_count": facts.top_k,
        },
        "capabilities": capabilities,
    })
}

fn model(facts: &Facts) -> Value {
    let name = format!("{}{LATEST}", facts.model_id());
    let digest: String = Sha256::digest(&name).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": name,
        "model": name,
        "modified_at": crate::date::rfc3339(facts.config.created),
        "size": 0,
        "digest": digest,
        "details": details(),
    })
}

fn details() -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": FAMILY,
        "families": [FAMILY],
        "parameter_size": "",
        "quantization_level": "",
    })
}
