//! What a request in Anthropic's shape asks for.

use forerun_decode::GrammarSpec;
use forerun_decode::text::Thinking;
use serde_json::{Value, json};

use super::messages;
use crate::ask::{Ask, Conversation, Form, Prompt, ToolChoice};
use crate::desk::Facts;
use crate::fields::Fields;
use crate::openai::settings::{sampler, texts};
use crate::refusal::Refusal;

/// Fields that would change an answer and have no counterpart here.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("container", "no code is run here"),
    ("mcp_servers", "tools are the client's"),
    ("context_management", "a conversation is what the request says"),
    ("prefill", "an answer can't be begun by the client"),
    ("stop", "write `stop_sequences`"),
    ("max_completion_tokens", "write `max_tokens`"),
    ("response_format", "write `output_config.format`"),
    ("regex", "use /v1/chat/completions"),
    ("grammar", "use /v1/chat/completions"),
    ("json_schema", "write `output_config.format`"),
    ("functions", "write `tools`"),
];

/// Takes the fields of a request.
///
/// # Errors
/// A refusal that names the first wrong one.
pub(super) fn ask(fields: &mut Fields, facts: &Facts) -> Result<Ask, Refusal> {
    fields.refuse(UNSUPPORTED)?;
    fields.need("max_tokens").map(|max| fields.put("max_tokens", max))?;
    let max_tokens = fields.count("max_tokens", 1..=usize::MAX)?;
    let mut stops = facts.config.defaults.stops.clone();
    stops.extend(texts(fields, "stop_sequences")?);
    let sampler = sampler(fields, facts)?;
    let form = form(fields)?;
    let thinking = thinking(fields, facts)?;
    let (tools, choice, is_single_call) = tools(fields)?;
    let messages = messages::take(fields, facts)?;
    let conversation = Conversation { messages, tools, choice, is_single_call, thinking };
    Ok(Ask { prompt: Prompt::Chat(conversation), sampler, stops, max_tokens, logprobs: None, n: 1, form })
}

/// Without a word of it, the model doesn't think, unless the server was told otherwise. A budget is a wish: how long a
/// model thinks can't be bound, but by `max_tokens`.
fn thinking(fields: &mut Fields, facts: &Facts) -> Result<Thinking, Refusal> {
    let Some(mut thinking) = fields.object("thinking")? else {
        return Ok(match facts.config.defaults.thinking {
            Thinking::On => Thinking::On,
            Thinking::Default | Thinking::Off => Thinking::Off,
        });
    };
    if let Some(display) = thinking.text("display")?.filter(|display| display != "summarized") {
        let words =
            format!("`thinking.display` is \"{display}\"; thoughts are shown as they are, or turned off");
        return Err(Refusal::unsupported("thinking.display", words));
    }
    let kind = thinking.need("type")?;
    match kind.as_str() {
        Some("enabled") => {
            thinking.need("budget_tokens").map(|budget| thinking.put("budget_tokens", budget))?;
            thinking.count("budget_tokens", 1..=usize::MAX)?;
            Ok(Thinking::On)
        }
        Some("adaptive") => Ok(Thinking::On),
        Some("disabled") => Ok(Thinking::Off),
        _ => Err(thinking.wrong("type", "enabled, adaptive or disabled", &kind)),
    }
}

/// `output_config.format`, or the older `output_format`: a JSON schema.
fn form(fields: &mut Fields) -> Result<Option<Form>, Refusal> {
    let config = fields.object("output_config")?;
    let inner = config.map(|mut config| config.object("format")).transpose()?.flatten();
    let older = fields.object("output_format")?;
    let Some(mut format) = inner.or(older) else { return Ok(None) };
    let kind = format.need("type")?;
    if kind != "json_schema" {
        return Err(format.wrong("type", "\"json_schema\"", &kind));
    }
    let spec = GrammarSpec::JsonSchema(format.need("schema")?);
    Ok(Some(Form { spec: spec.into(), param: format.name("schema") }))
}

/// Tools, whether one must be called, and whether at most one may be.
fn tools(fields: &mut Fields) -> Result<(Vec<Value>, ToolChoice, bool), Refusal> {
    let list = fields.list("tools")?.unwrap_or_default();
    let tools: Vec<_> = list
        .into_iter()
        .enumerate()
        .map(|(index, value)| tool(Fields::of(value, format!("tools[{index}]"))?))
        .collect::<Result<_, _>>()?;
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Ok((tools, ToolChoice::Auto, false));
    };
    let is_single = choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    let kind = choice.need("type")?;
    match kind.as_str() {
        Some("auto") => Ok((tools, ToolChoice::Auto, is_single)),
        Some("any") => Ok((tools, ToolChoice::Required, is_single)),
        Some("none") => Ok((Vec::new(), ToolChoice::Auto, is_single)),
        Some("tool") => match choice.need("name")? {
            Value::String(name) => Ok((tools, ToolChoice::Named(name), is_single)),
            other => Err(choice.wrong("name", "a string", &other)),
        },
        _ => Err(choice.wrong("type", "auto, any, tool or none", &kind)),
    }
}

/// A tool as templates take it.
fn tool(mut fields: Fields) -> Result<Value, Refusal> {
    let kind = fields.text("type")?;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        let name = fields.name("type");
        let words =
            format!("`{name}` is \"{kind}\": only tools of the client are possible, with an `input_schema`");
        return Err(Refusal::unsupported(name, words));
    }
    let name = fields.need("name")?;
    if name.as_str().is_none_or(str::is_empty) {
        return Err(fields.wrong("name", "a string that isn't empty", &name));
    }
    let mut function = json!({"name": name});
    if let Some(description) = fields.text("description")? {
        function["description"] = description.into();
    }
    match fields.need("input_schema")? {
        schema @ Value::Object(_) => function["parameters"] = schema,
        other => return Err(fields.wrong("input_schema", "an object", &other)),
    }
    Ok(json!({"type": "function", "function": function}))
}
