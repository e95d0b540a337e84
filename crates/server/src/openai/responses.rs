//! `POST /v1/responses`: the part of it that needs no memory of earlier requests.

mod events;
mod items;
mod object;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::fields::Fields;
use crate::http::body::Object;
use crate::http::{App, error, streaming};
use crate::refusal::Refusal;
use events::Events;

const PATH: &str = "/v1/responses";

pub(super) async fn responses(State(app): State<Arc<App>>, Object(fields): Object) -> Response {
    match answer(&app, fields).await {
        Ok(response) => response,
        Err(refusal) => error::response(&refusal, PATH),
    }
}

async fn answer(app: &Arc<App>, mut fields: Fields) -> Result<Response, Refusal> {
    app.check_model(fields.text("model")?.as_deref())?;
    let facts = app.desk.facts();
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let echo = request::echo(&mut fields)?;
    let ask = request::ask(&mut fields, facts)?;
    let object = object::ResponseObject::new(facts.model_id(), &ask, echo);
    // What nobody read isn't kept while the answer is made.
    drop(fields);
    let answer = app.answer(ask).await?;
    if is_streamed {
        return Ok(streaming::response(answer, Events::new(object), app.config.limits.keep_alive));
    }
    let whole = answer.whole().await?.pop();
    let whole = whole.ok_or(crate::desk::Failure::EngineGone)?;
    Ok(Json(object.whole(whole)).into_response())
}
