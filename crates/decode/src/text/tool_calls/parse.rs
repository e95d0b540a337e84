//! The text between a call's markers.

use std::fmt::Write as _;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Deserializer;

use super::arguments::{Tools, quoted};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// A call as it was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    /// A JSON object.
    pub(super) arguments: String,
}

/// Why a text is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A glance shows that it isn't at its end.
    Open,
    /// It ends inside a value, which may go on behind this end marker.
    Incomplete,
    /// Nothing that follows can make it a call.
    Malformed,
}

/// Reads `body`, what stands between the markers.
pub(super) fn call(body: &str, tools: &Tools) -> Result<Call, Fault> {
    let body = body.trim();
    if body.starts_with('{') {
        return if body.ends_with('}') { json(body) } else { Err(Fault::Open) };
    }
    match body.strip_prefix(FUNCTION) {
        Some(rest) if body.ends_with(FUNCTION_END) => tagged(rest, tools),
        Some(_) => Err(Fault::Open),
        None => Err(Fault::Malformed),
    }
}

/// `{"name": …, "arguments": {…}}`; other fields mean nothing. The arguments are taken as they are written.
fn json(body: &str) -> Result<Call, Fault> {
    let (mut name, mut arguments) = (None, None);
    let mut rest = body[1..].trim_start();
    while !rest.starts_with('}') {
        let (key, _, behind) = next::<String>(rest)?;
        let behind = behind.trim_start().strip_prefix(':').ok_or(Fault::Malformed)?;
        let (_, value, behind) = next::<IgnoredAny>(behind)?;
        match key.as_str() {
            "name" => name = Some(serde_json::from_str::<String>(value).map_err(|_| Fault::Malformed)?),
            "arguments" | "parameters" => arguments = Some(value),
            _ => {}
        }
        let behind = behind.trim_start();
        rest = match behind.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if behind.is_empty() => return Err(Fault::Incomplete),
            None if behind.starts_with('}') => behind,
            None => return Err(Fault::Malformed),
        };
    }
    let arguments = match arguments {
        None | Some("null") => "{}".to_owned(),
        Some(object) if object.starts_with('{') => object.to_owned(),
        Some(text) => serde_json::from_str::<String>(text).map_err(|_| Fault::Malformed)?,
    };
    let is_object =
        arguments.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(&arguments).is_ok();
    match name.filter(|name| !name.is_empty() && rest == "}" && is_object) {
        Some(name) => Ok(Call { name, arguments }),
        None => Err(Fault::Malformed),
    }
}

/// The JSON value that `text` begins with, its text, and what is behind it.
fn next<T: DeserializeOwned>(text: &str) -> Result<(T, &str, &str), Fault> {
    let text = text.trim_start();
    let mut values = Deserializer::from_str(text).into_iter::<T>();
    match values.next() {
        Some(Ok(value)) => {
            let (own, behind) = text.split_at(values.byte_offset());
            Ok((value, own, behind))
        }
        // A marker in the middle of a string is text of the string.
        Some(Err(error)) if !error.is_eof() => Err(Fault::Malformed),
        Some(Err(_)) | None => Err(Fault::Incomplete),
    }
}

/// What follows `<function=`.
fn tagged(rest: &str, tools: &Tools) -> Result<Call, Fault> {
    let (name, mut rest) = tag(rest)?;
    let mut arguments = "{".to_owned();
    let mut keys = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix(FUNCTION_END) {
            if !behind.is_empty() {
                return Err(Fault::Malformed);
            }
            arguments.push('}');
            return Ok(Call { name: name.to_owned(), arguments });
        }
        let parameter = rest.strip_prefix(PARAMETER).ok_or(Fault::Malformed)?;
        let (key, behind) = tag(parameter)?;
        let end = value_end(behind).ok_or(Fault::Incomplete)?;
        if keys.contains(&key) {
            return Err(Fault::Malformed);
        }
        let separator = if keys.is_empty() { "" } else { ", " };
        keys.push(key);
        let value = tools.value(name, key, line(&behind[..end]));
        // Writing to a string doesn't fail.
        let _ = write!(arguments, "{separator}{}: {value}", quoted(key));
        rest = &behind[end + PARAMETER_END.len()..];
    }
}

/// The name in a tag, and what is behind it.
fn tag(text: &str) -> Result<(&str, &str), Fault> {
    let (name, rest) = text.split_once('>').ok_or(Fault::Malformed)?;
    let name = name.trim();
    if name.is_empty() || name.contains(['\n', '<']) { Err(Fault::Malformed) } else { Ok((name, rest)) }
}

/// Where a value ends: at an end marker with another parameter or the function's end behind it, since the value may itself
/// speak of markers.
fn value_end(text: &str) -> Option<usize> {
    text.match_indices(PARAMETER_END).map(|(at, _)| at).find(|at| {
        let behind = text[at + PARAMETER_END.len()..].trim_start();
        behind.starts_with(PARAMETER) || behind.starts_with(FUNCTION_END)
    })
}

/// Without the line ends that belong to the tags.
fn line(value: &str) -> &str {
    let value = value.strip_prefix("\r\n").or_else(|| value.strip_prefix('\n')).unwrap_or(value);
    value.strip_suffix('\n').map_or(value, |value| value.strip_suffix('\r').unwrap_or(value))
}
