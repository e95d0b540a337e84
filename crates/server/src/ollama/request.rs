//! What a request in Ollama's shape asks for.

use forerun_decode::GrammarSpec;
use forerun_decode::text::{Message, Role, Thinking};
use serde_json::Value;

use super::messages;
use crate::ask::{Ask, Conversation, Form, Prompt, RawPrompt, Specials, ToolChoice};
use crate::desk::Facts;
use crate::fields::Fields;
use crate::openai::settings::{sampler, texts};
use crate::openai::tools as openai_tools;
use crate::refusal::Refusal;

/// Fields that would change an answer and have no counterpart here.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("images", "this model reads text only"),
    ("suffix", "text can't be filled in before another"),
    ("template", "the template is the model file's"),
    ("context", "send the conversation itself, to /api/chat"),
    ("logprobs", "use /v1/chat/completions"),
];

/// A chat; `None` without messages.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(super) fn chat(fields: &mut Fields, facts: &Facts) -> Result<Option<Ask>, Refusal> {
    fields.refuse(UNSUPPORTED)?;
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return Ok(None);
    }
    let mut messages = messages::messages(list)?;
    let brings_own = messages.first().is_some_and(|first| first.role == Role::System);
    if let Some(system) = facts.config.defaults.system.as_ref().filter(|_| !brings_own) {
        messages.insert(0, Message::system(system));
    }
    let tools = openai_tools(fields.list("tools")?.unwrap_or_default())?;
    let prompt = conversation(messages, tools, thinking(fields, facts)?);
    ask(fields, facts, prompt).map(Some)
}

/// A prompt, which is a chat of one message unless it is `raw`; `None` without a prompt.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(super) fn generate(fields: &mut Fields, facts: &Facts) -> Result<Option<Ask>, Refusal> {
    fields.refuse(UNSUPPORTED)?;
    let Some(text) = fields.text("prompt")?.filter(|text| !text.is_empty()) else { return Ok(None) };
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let thinking = thinking(fields, facts)?;
    let prompt = if fields.flag("raw")?.unwrap_or(false) {
        // Whoever writes a template's text means its markers.
        Prompt::Raw(vec![RawPrompt::Text { text, specials: Specials::Parsed }])
    } else {
        let system = system.or_else(|| facts.config.defaults.system.clone()).map(Message::system);
        conversation(system.into_iter().chain([Message::user(text)]).collect(), Vec::new(), thinking)
    };
    ask(fields, facts, prompt).map(Some)
}

fn conversation(messages: Vec<Message>, tools: Vec<Value>, thinking: Thinking) -> Prompt {
    let choice = ToolChoice::Auto;
    Prompt::Chat(Conversation { messages, tools, choice, is_single_call: false, thinking })
}

fn ask(fields: &mut Fields, facts: &Facts, prompt: Prompt) -> Result<Ask, Refusal> {
    let form = form(fields)?;
    let mut options = match fields.object("options")? {
        Some(options) => options,
        None => Fields::of(Value::Object(serde_json::Map::new()), "options")?,
    };
    let defaults = &facts.config.defaults;
    let mut stops = defaults.stops.clone();
    stops.extend(texts(&mut options, "stop")?);
    let max_tokens = num_predict(&mut options)?.or(defaults.max_tokens);
    let sampler = sampler(&mut options, facts)?;
    Ok(Ask { prompt, sampler, stops, max_tokens, logprobs: None, n: 1, form })
}

/// Most tokens; anything below 0 is as many as fit.
fn num_predict(options: &mut Fields) -> Result<Option<usize>, Refusal> {
    let number = options.integer("num_predict")?;
    Ok(number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
}

/// `think`: a truth value, or how much.
fn thinking(fields: &mut Fields, facts: &Facts) -> Result<Thinking, Refusal> {
    match fields.take("think") {
        None => Ok(facts.config.defaults.thinking),
        Some(Value::Bool(true)) => Ok(Thinking::On),
        Some(Value::Bool(false)) => Ok(Thinking::Off),
        Some(Value::String(effort)) if ["low", "medium", "high", "max"].contains(&&*effort) => {
            Ok(Thinking::On)
        }
        Some(other) => Err(fields.wrong("think", "true, false, low, medium, high or max", &other)),
    }
}

/// `format`: `json`, or a schema.
fn form(fields: &mut Fields) -> Result<Option<Form>, Refusal> {
    let spec = match fields.take("format") {
        None => return Ok(None),
        Some(Value::String(format)) if format.is_empty() => return Ok(None),
        Some(Value::String(format)) if format == "json" => GrammarSpec::JsonObject,
        Some(schema @ Value::Object(_)) => GrammarSpec::JsonSchema(schema),
        Some(other) => return Err(fields.wrong("format", "\"json\" or a JSON schema", &other)),
    };
    Ok(Some(Form { spec: spec.into(), param: "format".into() }))
}
