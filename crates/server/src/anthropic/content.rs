//! Blocks of a message's content.

use serde_json::Value;

use crate::fields::Fields;
use crate::refusal::Refusal;

/// A block of a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Thought(String),
    /// The model called a tool.
    Use {
        id: String,
        name: String,
        input: Value,
    },
    /// What a tool said.
    Result {
        id: String,
        content: String,
    },
}

/// `system`: a text, or blocks of text.
///
/// # Errors
/// A refusal that names what is wrong.
pub(super) fn system(fields: &mut Fields) -> Result<Option<String>, Refusal> {
    Ok(texts(fields, "system")?.filter(|text| !text.is_empty()))
}

/// `content`: a text, or blocks.
///
/// # Errors
/// A refusal that names what is wrong.
pub(super) fn pieces(fields: &mut Fields) -> Result<Vec<Piece>, Refusal> {
    match fields.need("content")? {
        Value::String(text) => Ok(vec![Piece::Text(text)]),
        Value::Array(blocks) => {
            let place = fields.name("content");
            let blocks = blocks.into_iter().enumerate();
            blocks.map(|(index, value)| piece(Fields::of(value, format!("{place}[{index}]"))?)).collect()
        }
        other => Err(fields.wrong("content", "a string or a list of blocks", &other)),
    }
}

fn piece(mut block: Fields) -> Result<Piece, Refusal> {
    let kind = block.need("type")?;
    match kind.as_str() {
        Some("text") => Ok(Piece::Text(string(&mut block, "text")?)),
        Some("thinking") => Ok(Piece::Thought(string(&mut block, "thinking")?)),
        Some("tool_use") => Ok(Piece::Use {
            id: string(&mut block, "id")?,
            name: string(&mut block, "name")?,
            input: match block.need("input")? {
                input @ Value::Object(_) => input,
                other => return Err(block.wrong("input", "an object", &other)),
            },
        }),
        Some("tool_result") => {
            let id = string(&mut block, "tool_use_id")?;
            let is_error = block.flag("is_error")?.unwrap_or(false);
            let text = texts(&mut block, "content")?.unwrap_or_default();
            // Templates have no place for it, and the model should know.
            Ok(Piece::Result { id, content: if is_error { format!("Error: {text}") } else { text } })
        }
        Some(_) => {
            let name = block.name("type");
            let words =
                format!("`{name}` is {kind}: this model reads text, thinking, tool_use and tool_result only");
            Err(Refusal::unsupported(name, words))
        }
        None => Err(block.wrong("type", "a string", &kind)),
    }
}

/// A text, or blocks of text, joined as they are.
fn texts(fields: &mut Fields, field: &str) -> Result<Option<String>, Refusal> {
    let blocks = match fields.take(field) {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(blocks)) => blocks,
        Some(other) => return Err(fields.wrong(field, "a string or a list of text blocks", &other)),
    };
    let place = fields.name(field);
    let mut texts = Vec::new();
    for (index, value) in blocks.into_iter().enumerate() {
        match piece(Fields::of(value, format!("{place}[{index}]"))?)? {
            Piece::Text(text) => texts.push(text),
            _ => {
                let words = format!("`{place}[{index}]` must be a block of text");
                return Err(Refusal::invalid(format!("{place}[{index}].type"), words));
            }
        }
    }
    Ok(Some(texts.join("\n")))
}

fn string(block: &mut Fields, field: &str) -> Result<String, Refusal> {
    match block.need(field)? {
        Value::String(text) => Ok(text),
        other => Err(block.wrong(field, "a string", &other)),
    }
}
