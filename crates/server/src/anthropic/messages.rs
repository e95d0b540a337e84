//! Messages of a conversation in Anthropic's shape, as templates take them.

use std::collections::BTreeMap;

use forerun_decode::text::{FunctionCall, Message, Role, ToolCall};
use serde_json::Value;

use super::content::{self, Piece};
use crate::ask::join_systems;
use crate::desk::Facts;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// Takes `system` and `messages`.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(super) fn take(fields: &mut Fields, facts: &Facts) -> Result<Vec<Message>, Refusal> {
    let mut all = Vec::new();
    let system = content::system(fields)?;
    all.extend(system.or_else(|| facts.config.defaults.system.clone()).map(Message::system));
    let list = match fields.need("messages")? {
        Value::Array(list) if list.is_empty() => {
            let words = "`messages` is empty; it must have at least one message";
            return Err(Refusal::invalid("messages", words));
        }
        Value::Array(list) => list,
        other => return Err(fields.wrong("messages", "a list", &other)),
    };
    let mut called = BTreeMap::new();
    for (index, value) in list.into_iter().enumerate() {
        let mut fields = Fields::of(value, format!("messages[{index}]"))?;
        let role = fields.need("role")?;
        let pieces = content::pieces(&mut fields)?;
        match role.as_str() {
            Some("user") => user(pieces, &fields, &called, &mut all)?,
            Some("assistant") => all.push(assistant(pieces, &fields, &mut called)?),
            Some("system") => all.push(Message::system(plain(pieces, &fields)?)),
            _ => return Err(fields.wrong("role", "user or assistant", &role)),
        }
    }
    if all.last().is_some_and(|last| last.role == Role::Assistant) {
        let words = "the last message is the assistant's: an answer can't be begun by the client";
        return Err(Refusal::unsupported("messages", words));
    }
    join_systems(&mut all);
    Ok(all)
}

/// Results of tools become messages of their own; text around them stays in its place.
fn user(
    pieces: Vec<Piece>,
    fields: &Fields,
    called: &BTreeMap<String, String>,
    all: &mut Vec<Message>,
) -> Result<(), Refusal> {
    let mut text: Option<String> = None;
    for piece in pieces {
        match piece {
            Piece::Text(more) => text.get_or_insert_default().push_str(&more),
            Piece::Result { id, content } => {
                all.extend(text.take().map(Message::user));
                let Some(name) = called.get(&id) else {
                    let words = format!("no message before this one has a tool_use whose id is `{id}`");
                    return Err(Refusal::invalid(fields.name("content"), words));
                };
                let mut message = Message::new(Role::Tool, content);
                message.tool_call_id = Some(id);
                message.name = Some(name.clone());
                all.push(message);
            }
            Piece::Use { .. } | Piece::Thought(_) => return Err(misplaced(fields, "user")),
        }
    }
    all.extend(text.map(Message::user));
    Ok(())
}

fn assistant(
    pieces: Vec<Piece>,
    fields: &Fields,
    called: &mut BTreeMap<String, String>,
) -> Result<Message, Refusal> {
    let (mut text, mut thoughts, mut calls) = (None::<String>, None::<String>, Vec::new());
    for piece in pieces {
        match piece {
            Piece::Text(more) => text.get_or_insert_default().push_str(&more),
            Piece::Thought(more) => thoughts.get_or_insert_default().push_str(&more),
            Piece::Use { id, name, input } => {
                called.insert(id.clone(), name.clone());
                calls.push(ToolCall { id: Some(id), function: FunctionCall { name, arguments: input } });
            }
            Piece::Result { .. } => return Err(misplaced(fields, "assistant")),
        }
    }
    Ok(Message {
        role: Role::Assistant,
        content: text,
        reasoning_content: thoughts,
        tool_calls: (!calls.is_empty()).then_some(calls),
        tool_call_id: None,
        name: None,
    })
}

fn plain(pieces: Vec<Piece>, fields: &Fields) -> Result<String, Refusal> {
    let text = |piece| match piece {
        Piece::Text(text) => Ok(text),
        _ => Err(misplaced(fields, "system")),
    };
    pieces.into_iter().map(text).collect()
}

fn misplaced(fields: &Fields, role: &str) -> Refusal {
    let words = format!(
        "`{}` has a block that a message of the role {role} can't have: tool_use and thinking are the assistant's, \
         tool_result is the user's",
        fields.name("content")
    );
    Refusal::invalid(fields.name("content"), words)
}
