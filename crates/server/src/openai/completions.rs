//! `POST /v1/completions`: prompts as they are, without a template.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::Head;
use super::completions_answer::{Chunks, whole};
use super::settings::{Settings, StreamOptions, TOP_LOGPROBS_MAX};
use crate::ask::{Ask, Prompt, RawPrompt, Specials};
use crate::desk::Facts;
use crate::fields::{Fields, token, wrong};
use crate::http::body::Forwarding;
use crate::http::{App, error, streaming};
use crate::refusal::Refusal;
use crate::upstream::{Answered, Forwardable};

const PATH: &str = "/v1/completions";

/// Fields of plain completions that would change an answer.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("echo", "the answer is without its prompt"),
    ("suffix", "text can't be filled in before another"),
    ("response_format", "write `json_schema`, `regex` or `grammar`"),
    ("tools", "only chats take tools"),
    ("messages", "that is for /v1/chat/completions"),
];

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    Forwarding(fields, body): Forwarding,
) -> Response {
    match answer(&app, fields, body).await {
        Ok(response) => response,
        Err(refusal) => error::response(&refusal, PATH),
    }
}

async fn answer(app: &Arc<App>, mut fields: Fields, body: Option<Bytes>) -> Result<Response, Refusal> {
    app.check_model(fields.text("model")?.as_deref())?;
    let facts = app.desk.facts();
    let (ask, stream) = parse(&mut fields, facts)?;
    let head = Head::new("cmpl", facts.model_id());
    let (n, has_logprobs) = (ask.n as usize, ask.logprobs.is_some());
    // What nobody read isn't kept while the answer is made.
    drop(fields);
    let request = Forwardable { endpoint: "completions", body, is_streamed: stream.is_some() };
    let answer = match app.answer_or_forward(ask, request).await? {
        Answered::Here(answer) => answer,
        Answered::There(response) => return Ok(response),
    };
    let tokenizer = &facts.tokenizer;
    match stream {
        Some(options) => {
            let chunks = Chunks::new(head, options, (answer.n_choices(), n), Arc::clone(tokenizer));
            Ok(streaming::response(answer, chunks, app.config.limits.keep_alive))
        }
        None => {
            let answers = answer.whole().await?;
            Ok(Json(whole(&head, answers, n, has_logprobs.then_some(tokenizer))).into_response())
        }
    }
}

fn parse(fields: &mut Fields, facts: &Facts) -> Result<(Ask, Option<StreamOptions>), Refusal> {
    fields.refuse(UNSUPPORTED)?;
    let settings = Settings::take(fields, facts)?;
    if let Some(best_of) = fields.count("best_of", 0..=usize::MAX)?
        && best_of > settings.n as usize
    {
        let words = format!("`best_of` is {best_of}: of n answers all are given, so it can be at most n");
        return Err(Refusal::unsupported("best_of", words));
    }
    let specials = match fields.flag("parse_special")? {
        Some(true) => Specials::Parsed,
        Some(false) | None => Specials::Text,
    };
    let logprobs = fields.count("logprobs", 0..=TOP_LOGPROBS_MAX)?;
    let prompt = fields.need("prompt")?;
    let prompts = prompts(prompt, specials, facts)?;
    settings.check_choices(prompts.len(), facts)?;
    let Settings { sampler, stops, max_tokens, n, stream, form } = settings;
    Ok((Ask { prompt: Prompt::Raw(prompts), sampler, stops, max_tokens, logprobs, n, form }, stream))
}

/// A text, tokens, or a list of either.
fn prompts(prompt: Value, specials: Specials, facts: &Facts) -> Result<Vec<RawPrompt>, Refusal> {
    let list = match prompt {
        Value::String(text) => return Ok(vec![RawPrompt::Text { text, specials }]),
        Value::Array(list) if list.is_empty() => {
            let words = "`prompt` is an empty list; it must have at least one text or token";
            return Err(Refusal::invalid("prompt", words).with_code("empty_prompt"));
        }
        Value::Array(list) if list.iter().all(Value::is_number) => {
            return Ok(vec![tokens(&list, "prompt", facts)?]);
        }
        Value::Array(list) => list,
        other => return Err(wrong("prompt", "a string, tokens, or a list of either", &other)),
    };
    let one = |(index, value)| {
        let place = format!("prompt[{index}]");
        match value {
            Value::String(text) => Ok(RawPrompt::Text { text, specials }),
            Value::Array(list) => tokens(&list, &place, facts),
            other => Err(wrong(&place, "a string or a list of tokens", &other)),
        }
    };
    list.into_iter().enumerate().map(one).collect()
}

fn tokens(list: &[Value], place: &str, facts: &Facts) -> Result<RawPrompt, Refusal> {
    let token = |(index, value)| token(value, facts.n_vocab, &format!("{place}[{index}]"));
    list.iter().enumerate().map(token).collect::<Result<_, _>>().map(RawPrompt::Tokens)
}
