//! Messages of a chat.

use forerun_decode::text::{FunctionCall, Message, Role, ToolCall};
use serde_json::Value;

use crate::fields::{Fields, wrong};
use crate::refusal::Refusal;

/// The messages of a list.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(super) fn messages(list: Vec<Value>) -> Result<Vec<Message>, Refusal> {
    if list.is_empty() {
        return Err(Refusal::invalid("messages", "`messages` is empty; it must have at least one message"));
    }
    list.into_iter().enumerate().map(|(index, value)| message(value, index)).collect()
}

fn message(value: Value, index: usize) -> Result<Message, Refusal> {
    let mut fields = Fields::of(value, format!("messages[{index}]"))?;
    fields.refuse(&[
        ("audio", "this model reads text only"),
        ("function_call", "write `tool_calls`"),
        ("prefix", "an answer can't be begun by the client"),
    ])?;
    let role = role(&mut fields)?;
    let content = content(&mut fields)?;
    let tool_calls = tool_calls(&mut fields)?;
    let thoughts = fields.text("reasoning_content")?;
    let thoughts = thoughts.or(fields.text("reasoning")?);
    if content.is_none() && role != Role::Assistant {
        fields.need("content")?;
    }
    if tool_calls.is_some() && role != Role::Assistant {
        let words = format!("only the assistant calls tools, but the role is {}", role.name());
        return Err(Refusal::invalid(fields.name("tool_calls"), words));
    }
    Ok(Message {
        role,
        content,
        reasoning_content: thoughts,
        tool_calls,
        tool_call_id: fields.text("tool_call_id")?,
        name: fields.text("name")?,
    })
}

pub(super) fn role(fields: &mut Fields) -> Result<Role, Refusal> {
    let value = fields.need("role")?;
    match value.as_str() {
        Some("system" | "developer") => Ok(Role::System),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some("tool") => Ok(Role::Tool),
        _ => Err(fields.wrong("role", "system, developer, user, assistant or tool", &value)),
    }
}

/// A text, or parts that are texts.
pub(super) fn content(fields: &mut Fields) -> Result<Option<String>, Refusal> {
    let parts = match fields.take("content") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(fields.wrong("content", "a string or a list of parts", &other)),
    };
    let mut text = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of(part, format!("{}[{index}]", fields.name("content")))?;
        let kind = part.need("type")?;
        let field = match kind.as_str() {
            Some("text" | "input_text" | "output_text") => "text",
            Some("refusal") => "refusal",
            Some("image_url" | "image" | "input_image" | "input_audio" | "file" | "video_url") => {
                let name = part.name("type");
                let words = format!("`{name}` is {kind}: this model reads text only");
                return Err(Refusal::unsupported(name, words));
            }
            _ => return Err(part.wrong("type", "\"text\"", &kind)),
        };
        match part.need(field)? {
            Value::String(more) => text.push_str(&more),
            other => return Err(part.wrong(field, "a string", &other)),
        }
    }
    Ok(Some(text))
}

fn tool_calls(fields: &mut Fields) -> Result<Option<Vec<ToolCall>>, Refusal> {
    let place = fields.name("tool_calls");
    let Some(list) = fields.list("tool_calls")? else { return Ok(None) };
    let call = |(index, value)| {
        let mut call = Fields::of(value, format!("{place}[{index}]"))?;
        let id = call.text("id")?;
        let function = call.need("function")?;
        let mut function = Fields::of(function, call.name("function"))?;
        let name = match function.need("name")? {
            Value::String(name) => name,
            other => return Err(function.wrong("name", "a string", &other)),
        };
        let arguments = function.take("arguments").unwrap_or_default();
        Ok(ToolCall { id, function: FunctionCall { name, arguments } })
    };
    let calls: Vec<_> = list.into_iter().enumerate().map(call).collect::<Result<_, Refusal>>()?;
    Ok((!calls.is_empty()).then_some(calls))
}

/// Tools as a template takes them: each a function with a name.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(crate) fn tools(list: Vec<Value>) -> Result<Vec<Value>, Refusal> {
    for (index, tool) in list.iter().enumerate() {
        let place = format!("tools[{index}]");
        let mut fields = Fields::of(tool.clone(), &*place)?;
        let kind = fields.need("type")?;
        if kind != "function" {
            return Err(wrong(&fields.name("type"), "\"function\"", &kind));
        }
        let function = fields.need("function")?;
        let mut function = Fields::of(function, fields.name("function"))?;
        let name = function.need("name")?;
        if name.as_str().is_none_or(str::is_empty) {
            return Err(function.wrong("name", "a string that isn't empty", &name));
        }
        function.text("description")?;
        function.object("parameters")?;
    }
    Ok(list)
}
