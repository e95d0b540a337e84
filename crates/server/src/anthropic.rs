//! Anthropic's shape: messages, and the count of their tokens.

mod answer;
mod content;
pub(crate) mod error;
mod messages;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;

use crate::ask::{Ask, Prompt, encode_chat};
use crate::fields::Fields;
use crate::http::body::Object;
use crate::http::{App, Routes, error as http_error, streaming};
use crate::refusal::Refusal;
use answer::{Events, Head};

const PATH: &str = "/v1/messages";

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().route(PATH, post(messages)).route("/v1/messages/count_tokens", post(count_tokens))
}

async fn messages(State(app): State<Arc<App>>, Object(fields): Object) -> Response {
    match answer(&app, fields).await {
        Ok(response) => response,
        Err(refusal) => http_error::response(&refusal, PATH),
    }
}

async fn answer(app: &Arc<App>, mut fields: Fields) -> Result<Response, Refusal> {
    app.check_model(fields.text("model")?.as_deref())?;
    let facts = app.desk.facts();
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let ask = request::ask(&mut fields, facts)?;
    let head = Head::new(facts.model_id());
    // What nobody read isn't kept while the answer is made.
    drop(fields);
    let answer = app.answer(ask).await?;
    if is_streamed {
        let events = Events::new(head, answer.prompt_tokens());
        return Ok(streaming::response(answer, events, app.config.limits.keep_alive));
    }
    // One answer was asked for.
    let whole = answer.whole().await?.pop();
    let whole = whole.ok_or(crate::desk::Failure::EngineGone)?;
    Ok(Json(head.whole(whole)).into_response())
}

async fn count_tokens(State(app): State<Arc<App>>, Object(fields): Object) -> Response {
    match count(&app, fields).await {
        Ok(n) => Json(json!({"input_tokens": n})).into_response(),
        Err(refusal) => http_error::response(&refusal, PATH),
    }
}

async fn count(app: &Arc<App>, mut fields: Fields) -> Result<usize, Refusal> {
    app.check_model(fields.text("model")?.as_deref())?;
    // A count needs no bound of an answer.
    fields.put("max_tokens", 1.into());
    let Ask { prompt, .. } = request::ask(&mut fields, app.desk.facts())?;
    app.prepared(move |desk| match prompt {
        Prompt::Chat(conversation) => Ok(encode_chat(&conversation, desk.facts())?.len()),
        Prompt::Raw(_) => Ok(0),
    })
    .await
}
