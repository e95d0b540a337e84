//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forerun_decode::text::{Message, Role, Thinking};
use serde_json::Value;

use super::chat_answer::{Chunks, whole};
use super::settings::{Settings, StreamOptions, TOP_LOGPROBS_MAX};
use super::{Head, messages};
use crate::ask::{Ask, Conversation, Prompt, ToolChoice, join_systems};
use crate::desk::Facts;
use crate::fields::Fields;
use crate::http::body::Forwarding;
use crate::http::{App, error, streaming};
use crate::refusal::Refusal;
use crate::upstream::{Answered, Forwardable};

const PATH: &str = "/v1/chat/completions";

/// Fields of chats that would change an answer.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("functions", "write `tools`"),
    ("function_call", "write `tool_choice`"),
    ("audio", "this model answers in text only"),
    ("web_search_options", "this model can't search the web"),
    ("continue_final_message", "an answer can't be begun by the client"),
    ("chat_template", "the template is the model file's"),
];

pub(super) async fn chat(State(app): State<Arc<App>>, Forwarding(fields, body): Forwarding) -> Response {
    match answer(&app, fields, body).await {
        Ok(response) => response,
        Err(refusal) => error::response(&refusal, PATH),
    }
}

async fn answer(app: &Arc<App>, mut fields: Fields, body: Option<Bytes>) -> Result<Response, Refusal> {
    app.check_model(fields.text("model")?.as_deref())?;
    let facts = app.desk.facts();
    let (ask, stream) = parse(&mut fields, facts)?;
    let head = Head::new("chatcmpl", facts.model_id());
    let has_logprobs = ask.logprobs.is_some();
    // What nobody read isn't kept while the answer is made.
    drop(fields);
    let request = Forwardable { endpoint: "chat/completions", body, is_streamed: stream.is_some() };
    let answer = match app.answer_or_forward(ask, request).await? {
        Answered::Here(answer) => answer,
        Answered::There(response) => return Ok(response),
    };
    let tokenizer = &facts.tokenizer;
    match stream {
        Some(options) => {
            let chunks = Chunks::new(head, options, answer.n_choices(), Arc::clone(tokenizer));
            Ok(streaming::response(answer, chunks, app.config.limits.keep_alive))
        }
        None => Ok(Json(whole(&head, answer.whole().await?, has_logprobs, tokenizer)).into_response()),
    }
}

/// What is asked, and how the answer is streamed, if it is.
fn parse(fields: &mut Fields, facts: &Facts) -> Result<(Ask, Option<StreamOptions>), Refusal> {
    fields.refuse(UNSUPPORTED)?;
    check_modalities(fields)?;
    let settings = Settings::take(fields, facts)?;
    settings.check_choices(1, facts)?;
    let logprobs = logprobs(fields)?;
    let conversation = conversation(fields, facts)?;
    let Settings { sampler, stops, max_tokens, n, stream, form } = settings;
    Ok((Ask { prompt: Prompt::Chat(conversation), sampler, stops, max_tokens, logprobs, n, form }, stream))
}

/// Messages, tools, and whether the model thinks.
pub(super) fn conversation(fields: &mut Fields, facts: &Facts) -> Result<Conversation, Refusal> {
    fields.need("messages").and_then(|list| match list {
        Value::Array(list) => {
            let mut messages = messages::messages(list)?;
            let defaults = &facts.config.defaults;
            let brings_own = messages.first().is_some_and(|first| first.role == Role::System);
            if let Some(system) = defaults.system.as_ref().filter(|_| !brings_own) {
                messages.insert(0, Message::system(system));
            }
            join_systems(&mut messages);
            let (tools, choice) = tools(fields)?;
            let is_single_call = fields.flag("parallel_tool_calls")? == Some(false);
            Ok(Conversation { messages, tools, choice, is_single_call, thinking: thinking(fields, facts)? })
        }
        other => Err(fields.wrong("messages", "a list", &other)),
    })
}

/// The tools that the model may call, and whether it must.
fn tools(fields: &mut Fields) -> Result<(Vec<Value>, ToolChoice), Refusal> {
    let tools = messages::tools(fields.list("tools")?.unwrap_or_default())?;
    let choice = match fields.take("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(choice)) if choice == "auto" => ToolChoice::Auto,
        Some(Value::String(choice)) if choice == "none" => return Ok((Vec::new(), ToolChoice::Auto)),
        Some(Value::String(choice)) if choice == "required" => ToolChoice::Required,
        Some(choice @ Value::Object(_)) => {
            let mut choice = Fields::of(choice, "tool_choice")?;
            let kind = choice.need("type")?;
            if kind != "function" {
                return Err(choice.wrong("type", "\"function\"", &kind));
            }
            let mut function = Fields::of(choice.need("function")?, choice.name("function"))?;
            match function.need("name")? {
                Value::String(name) => ToolChoice::Named(name),
                other => return Err(function.wrong("name", "a string", &other)),
            }
        }
        Some(other) => {
            return Err(fields.wrong("tool_choice", "none, auto, required, or a function", &other));
        }
    };
    Ok((tools, choice))
}

/// Whether the model thinks: `chat_template_kwargs.enable_thinking`, or `reasoning_effort`.
fn thinking(fields: &mut Fields, facts: &Facts) -> Result<Thinking, Refusal> {
    let mut wish = effort(fields, "reasoning_effort")?;
    if let Some(mut kwargs) = fields.object("chat_template_kwargs")? {
        if let Some(thinks) = kwargs.flag("enable_thinking")? {
            wish = Some(if thinks { Thinking::On } else { Thinking::Off });
        }
        kwargs.refuse_rest("only `enable_thinking` is taken")?;
    }
    Ok(wish.unwrap_or(facts.config.defaults.thinking))
}

/// An effort other than none is a wish to think.
///
/// # Errors
/// A refusal that names the field.
pub(super) fn effort(fields: &mut Fields, field: &str) -> Result<Option<Thinking>, Refusal> {
    let effort = fields.take(field);
    match effort.as_ref().map(|effort| (effort, effort.as_str())) {
        None => Ok(None),
        Some((_, Some("none"))) => Ok(Some(Thinking::Off)),
        Some((_, Some("minimal" | "low" | "medium" | "high" | "xhigh"))) => Ok(Some(Thinking::On)),
        Some((other, _)) => Err(fields.wrong(field, "none, minimal, low, medium, high or xhigh", other)),
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    let is_wanted = fields.flag("logprobs")?.unwrap_or(false);
    let n = fields.count("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    if n.is_some_and(|n| n > 0) && !is_wanted {
        let words = "`top_logprobs` needs `logprobs`: true";
        return Err(Refusal::invalid("top_logprobs", words));
    }
    Ok(is_wanted.then_some(n.unwrap_or(0)))
}

fn check_modalities(fields: &mut Fields) -> Result<(), Refusal> {
    let others = |list: &Vec<Value>| list.iter().any(|modality| modality != "text");
    match fields.list("modalities")?.filter(others) {
        None => Ok(()),
        Some(_) => Err(Refusal::unsupported("modalities", "this model answers in text only")),
    }
}
