//! Messages of a chat in Ollama's shape.

use forerun_decode::text::{FunctionCall, Message, Role, ToolCall};
use serde_json::Value;

use crate::ask::join_systems;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// The messages of a list.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(super) fn messages(list: Vec<Value>) -> Result<Vec<Message>, Refusal> {
    let mut messages: Vec<_> =
        list.into_iter().enumerate().map(|(index, value)| message(value, index)).collect::<Result<_, _>>()?;
    join_systems(&mut messages);
    Ok(messages)
}

fn message(value: Value, index: usize) -> Result<Message, Refusal> {
    let mut fields = Fields::of(value, format!("messages[{index}]"))?;
    fields.refuse(&[("images", "this model reads text only")])?;
    let role = fields.need("role")?;
    let role = match role.as_str() {
        Some("system") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        _ => return Err(fields.wrong("role", "system, user, assistant or tool", &role)),
    };
    let calls = calls(&mut fields)?;
    if calls.is_some() && role != Role::Assistant {
        let words = format!("only the assistant calls tools, but the role is {}", role.name());
        return Err(Refusal::invalid(fields.name("tool_calls"), words));
    }
    let name = fields.text("tool_name")?;
    Ok(Message {
        role,
        content: Some(fields.text("content")?.unwrap_or_default()),
        reasoning_content: fields.text("thinking")?,
        tool_calls: calls,
        tool_call_id: fields.text("tool_call_id")?,
        name: name.or(fields.text("name")?),
    })
}

fn calls(fields: &mut Fields) -> Result<Option<Vec<ToolCall>>, Refusal> {
    let place = fields.name("tool_calls");
    let list = fields.list("tool_calls")?.unwrap_or_default();
    let call = |(index, value)| {
        let mut call = Fields::of(value, format!("{place}[{index}]"))?;
        let id = call.text("id")?;
        let mut function = Fields::of(call.need("function")?, call.name("function"))?;
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
