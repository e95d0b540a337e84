//! What a request for a response asks for.

use forerun_decode::GrammarSpec;
use forerun_decode::text::{Message, Role, Thinking};
use serde_json::{Map, Value, json};

use super::super::chat::effort;
use super::super::messages::tools as check_tools;
use super::super::settings::sampler;
use super::items;
use crate::ask::{Ask, Conversation, Form, Prompt, ToolChoice, join_systems};
use crate::desk::Facts;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// Fields that would change an answer, or need what this server doesn't keep.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("previous_response_id", "responses aren't kept; send the conversation in `input`"),
    ("conversation", "conversations aren't kept; send them in `input`"),
    ("background", "an answer comes with its request; stream it"),
    ("store", "responses aren't kept; write false"),
    ("prompt", "prompts aren't kept; write `instructions` and `input`"),
    ("context_management", "a conversation is what the request says"),
    ("moderation", "nothing is moderated here"),
    ("top_logprobs", "use /v1/chat/completions"),
    ("messages", "write `input`"),
    ("response_format", "write `text.format`"),
    ("max_tokens", "write `max_output_tokens`"),
    ("max_completion_tokens", "write `max_output_tokens`"),
    ("reasoning_effort", "write `reasoning.effort`"),
    ("regex", "write `text.format`, or use /v1/chat/completions"),
    ("grammar", "write `text.format`, or use /v1/chat/completions"),
    ("json_schema", "write `text.format`"),
    ("chat_template_kwargs", "write `reasoning.effort`"),
    ("stop", "use /v1/chat/completions"),
];

/// Fields that an answer repeats, and what it says where the request doesn't.
pub(super) fn echo(fields: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let mut echo = Map::new();
    for (field, default) in [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("user", Value::Null),
    ] {
        let value = fields.take(field);
        if let Some(value) = &value {
            fields.put(field, value.clone());
        }
        echo.insert(field.to_owned(), value.unwrap_or(default));
    }
    Ok(echo)
}

/// Takes the fields of a request.
///
/// # Errors
/// A refusal that names the first wrong one.
pub(super) fn ask(fields: &mut Fields, facts: &Facts) -> Result<Ask, Refusal> {
    fields.refuse(UNSUPPORTED)?;
    check_include(fields)?;
    if let Some(truncation) = fields.text("truncation")?.filter(|truncation| truncation != "disabled") {
        let words = format!("`truncation` is \"{truncation}\": prompts are never cut");
        return Err(Refusal::unsupported("truncation", words));
    }
    let defaults = &facts.config.defaults;
    let max_tokens = fields.count("max_output_tokens", 1..=usize::MAX)?.or(defaults.max_tokens);
    let sampler = sampler(fields, facts)?;
    let form = form(fields)?;
    let effort = match fields.object("reasoning")? {
        Some(mut reasoning) => effort(&mut reasoning, "effort")?,
        None => None,
    };
    let (tools, choice) = tools(fields)?;
    let is_single_call = fields.flag("parallel_tool_calls")? == Some(false);
    let messages = messages(fields, facts)?;
    let thinking: Thinking = effort.unwrap_or(defaults.thinking);
    let conversation = Conversation { messages, tools, choice, is_single_call, thinking };
    let stops = defaults.stops.clone();
    Ok(Ask { prompt: Prompt::Chat(conversation), sampler, stops, max_tokens, logprobs: None, n: 1, form })
}

/// What else may be in an answer: only what costs nothing.
fn check_include(fields: &mut Fields) -> Result<(), Refusal> {
    for (index, value) in fields.list("include")?.unwrap_or_default().iter().enumerate() {
        // Thoughts are in the answer as they are, and can be sent back so.
        if value != "reasoning.encrypted_content" {
            let name = format!("include[{index}]");
            let words = format!("`{name}` is {value}; only \"reasoning.encrypted_content\" is possible");
            return Err(Refusal::unsupported(name, words));
        }
    }
    Ok(())
}

/// `instructions` and `input`.
fn messages(fields: &mut Fields, facts: &Facts) -> Result<Vec<Message>, Refusal> {
    let instructions = fields.text("instructions")?;
    let mut messages: Vec<_> = instructions.map(Message::system).into_iter().collect();
    match fields.need("input")? {
        Value::String(text) => messages.push(Message::user(text)),
        Value::Array(list) if list.is_empty() => {
            return Err(Refusal::invalid("input", "`input` is empty; it must have at least one item"));
        }
        Value::Array(list) => messages.extend(items::messages(list)?),
        other => return Err(fields.wrong("input", "a string or a list of items", &other)),
    }
    let brings_own = messages.first().is_some_and(|first| first.role == Role::System);
    if let Some(system) = facts.config.defaults.system.as_ref().filter(|_| !brings_own) {
        messages.insert(0, Message::system(system));
    }
    join_systems(&mut messages);
    Ok(messages)
}

/// `text.format`.
fn form(fields: &mut Fields) -> Result<Option<Form>, Refusal> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let Some(mut format) = text.object("format")? else { return Ok(None) };
    let kind = format.need("type")?;
    let (spec, param) = match kind.as_str() {
        Some("text") => return Ok(None),
        Some("json_object") => (GrammarSpec::JsonObject, format.name("type")),
        Some("json_schema") => (GrammarSpec::JsonSchema(format.need("schema")?), format.name("schema")),
        _ => return Err(format.wrong("type", "text, json_object or json_schema", &kind)),
    };
    Ok(Some(Form { spec: spec.into(), param }))
}

/// Tools as templates take them, and whether one must be called.
fn tools(fields: &mut Fields) -> Result<(Vec<Value>, ToolChoice), Refusal> {
    let list = fields.list("tools")?.unwrap_or_default();
    let tools: Vec<_> = list
        .into_iter()
        .enumerate()
        .map(|(index, value)| tool(Fields::of(value, format!("tools[{index}]"))?))
        .collect::<Result<_, _>>()?;
    let tools = check_tools(tools)?;
    match fields.take("tool_choice") {
        None => Ok((tools, ToolChoice::Auto)),
        Some(Value::String(choice)) if choice == "auto" => Ok((tools, ToolChoice::Auto)),
        Some(Value::String(choice)) if choice == "none" => Ok((Vec::new(), ToolChoice::Auto)),
        Some(Value::String(choice)) if choice == "required" => Ok((tools, ToolChoice::Required)),
        Some(choice @ Value::Object(_)) => {
            let mut choice = Fields::of(choice, "tool_choice")?;
            let kind = choice.need("type")?;
            match (kind.as_str(), choice.need("name")) {
                (Some("function"), Ok(Value::String(name))) => Ok((tools, ToolChoice::Named(name))),
                (Some("function"), Ok(other)) => Err(choice.wrong("name", "a string", &other)),
                (Some("function"), Err(refusal)) => Err(refusal),
                _ => Err(choice.wrong("type", "\"function\"", &kind)),
            }
        }
        Some(other) => Err(fields.wrong("tool_choice", "none, auto, required, or a function", &other)),
    }
}

fn tool(mut fields: Fields) -> Result<Value, Refusal> {
    let kind = fields.need("type")?;
    if kind != "function" {
        let name = fields.name("type");
        let words = format!("`{name}` is {kind}: only functions of the client are possible");
        return Err(Refusal::unsupported(name, words));
    }
    let mut function = Map::new();
    for field in ["name", "description", "parameters", "strict"] {
        function.extend(fields.take(field).map(|value| (field.to_owned(), value)));
    }
    Ok(json!({"type": "function", "function": function}))
}
