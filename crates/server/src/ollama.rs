//! Ollama's shape, as desktop front ends speak it: chats and prompts in lines of JSON, and what they ask about models.

mod answer;
mod messages;
mod models;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::fields::Fields;
use crate::http::body::Object;
use crate::http::{App, Routes, error as http_error, streaming};
use crate::refusal::Refusal;
use answer::{Head, Lines, Shape};

/// Any path of these, for the shape of errors.
const PATH: &str = "/api/";
/// What a name ends with that says no version.
const LATEST: &str = ":latest";

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::running))
        .route("/api/show", post(models::show))
        .route("/api/version", get(models::version))
}

/// A refusal in Ollama's shape.
pub(crate) fn error(refusal: &Refusal) -> Value {
    json!({"error": refusal.message})
}

async fn chat(State(app): State<Arc<App>>, Object(fields): Object) -> Response {
    respond(&app, fields, Shape::Chat).await
}

async fn generate(State(app): State<Arc<App>>, Object(fields): Object) -> Response {
    respond(&app, fields, Shape::Generate).await
}

async fn respond(app: &Arc<App>, fields: Fields, shape: Shape) -> Response {
    match answer(app, fields, shape).await {
        Ok(response) => response,
        Err(refusal) => http_error::response(&refusal, PATH),
    }
}

async fn answer(app: &Arc<App>, mut fields: Fields, shape: Shape) -> Result<Response, Refusal> {
    let name = take_name(&mut fields)?;
    check_name(app, &name)?;
    let facts = app.desk.facts();
    let is_streamed = fields.flag("stream")?.unwrap_or(true);
    let head = Head::new(name, shape);
    let ask = match shape {
        Shape::Chat => request::chat(&mut fields, facts)?,
        Shape::Generate => request::generate(&mut fields, facts)?,
    };
    // Without a prompt a client asks for the model to be loaded, which it is.
    let Some(ask) = ask else { return Ok(Json(head.loaded()).into_response()) };
    // What nobody read isn't kept while the answer is made.
    drop(fields);
    let answer = app.answer(ask).await?;
    if is_streamed {
        return Ok(streaming::response(answer, Lines::new(head), app.config.limits.keep_alive));
    }
    let whole = answer.whole().await?.pop();
    Ok(Json(head.whole(&whole.ok_or(crate::desk::Failure::EngineGone)?)).into_response())
}

/// The name of the model that is asked for: `model`, or the older `name`.
fn take_name(fields: &mut Fields) -> Result<String, Refusal> {
    let name = fields.text("model")?;
    let name = name.or(fields.text("name")?);
    name.ok_or_else(|| Refusal::invalid("model", "`model` is missing"))
}

/// Refuses a name that isn't the model's, if that is wished.
fn check_name(app: &App, name: &str) -> Result<(), Refusal> {
    app.check_model(Some(name.strip_suffix(LATEST).unwrap_or(name)))
}
