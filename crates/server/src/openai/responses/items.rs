//! Items of a response's input, as messages that templates take.

use forerun_decode::text::{FunctionCall, Message, Role, ToolCall};
use serde_json::Value;

use super::super::messages::{content, role};
use crate::fields::Fields;
use crate::refusal::Refusal;

/// The messages of a list of items. Thoughts, text and calls that follow one another are one message of the model.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(super) fn messages(list: Vec<Value>) -> Result<Vec<Message>, Refusal> {
    let mut turns = Turns::default();
    for (index, value) in list.into_iter().enumerate() {
        let mut item = Fields::of(value, format!("input[{index}]"))?;
        let kind = item.text("type")?;
        match kind.as_deref() {
            None | Some("message") => turns.message(&mut item)?,
            Some("reasoning") => turns.reasoning(&mut item)?,
            Some("function_call") => turns.call(&mut item)?,
            Some("function_call_output") => turns.output(&mut item)?,
            Some(other) => {
                let name = item.name("type");
                let words = format!(
                    "`{name}` is \"{other}\"; only message, reasoning, function_call and function_call_output are possible"
                );
                return Err(Refusal::unsupported(name, words));
            }
        }
    }
    turns.end();
    Ok(turns.messages)
}

#[derive(Default)]
struct Turns {
    messages: Vec<Message>,
    /// The model's message that isn't complete.
    open: Option<Message>,
}

impl Turns {
    fn end(&mut self) {
        self.messages.extend(self.open.take());
    }

    fn model(&mut self) -> &mut Message {
        self.open.get_or_insert_with(|| Message { content: None, ..Message::assistant("") })
    }

    fn message(&mut self, item: &mut Fields) -> Result<(), Refusal> {
        let role = role(item)?;
        let Some(text) = content(item)? else {
            item.need("content")?;
            return Ok(());
        };
        if role == Role::Assistant {
            let has_more = |open: &Message| open.content.is_some() || open.tool_calls.is_some();
            if self.open.as_ref().is_some_and(has_more) {
                self.end();
            }
            self.model().content = Some(text);
        } else {
            self.end();
            self.messages.push(Message::new(role, text));
        }
        Ok(())
    }

    fn reasoning(&mut self, item: &mut Fields) -> Result<(), Refusal> {
        let mut thoughts = String::new();
        for field in ["content", "summary"] {
            let place = item.name(field);
            let parts = item.list(field)?.unwrap_or_default();
            if !thoughts.is_empty() {
                continue;
            }
            for (index, part) in parts.into_iter().enumerate() {
                let mut part = Fields::of(part, format!("{place}[{index}]"))?;
                part.need("text").map(|text| part.put("text", text))?;
                thoughts += &part.text("text")?.unwrap_or_default();
            }
        }
        self.end();
        if !thoughts.is_empty() {
            self.model().reasoning_content = Some(thoughts);
        }
        Ok(())
    }

    fn call(&mut self, item: &mut Fields) -> Result<(), Refusal> {
        let id = Some(string(item, "call_id")?);
        let name = string(item, "name")?;
        let arguments = item.take("arguments").unwrap_or_default();
        let call = ToolCall { id, function: FunctionCall { name, arguments } };
        self.model().tool_calls.get_or_insert_default().push(call);
        Ok(())
    }

    fn output(&mut self, item: &mut Fields) -> Result<(), Refusal> {
        let id = string(item, "call_id")?;
        let output = item.need("output")?;
        item.put("content", output);
        let text = content(item)?.unwrap_or_default();
        self.end();
        let mut message = Message::new(Role::Tool, text);
        message.tool_call_id = Some(id);
        self.messages.push(message);
        Ok(())
    }
}

fn string(item: &mut Fields, field: &str) -> Result<String, Refusal> {
    match item.need(field)? {
        Value::String(text) => Ok(text),
        other => Err(item.wrong(field, "a string", &other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn thoughts_text_and_calls_are_one_message() {
        let list = json!([
            {"role": "user", "content": "Add."},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
            {"role": "assistant", "content": "7"},
            {"role": "assistant", "content": "Really."},
        ]);
        let found = messages(list.as_array().unwrap().clone()).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|m| {
                let thought = m.reasoning_content.as_deref().unwrap_or("-");
                let text = m.content.as_deref().unwrap_or("-");
                format!("{} {thought} {text} {}", m.role.name(), m.tool_calls.as_ref().map_or(0, Vec::len))
            })
            .collect();
        let expect = [
            "user - Add. 0",
            "assistant Hm. I add. 2",
            "tool - 3 0",
            "tool - 4 0",
            "assistant So. 7 0",
            "assistant - Really. 0",
        ];
        assert_eq!(shown, expect);
    }
}
