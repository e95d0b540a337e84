//! The grammar of tool calls, from the tools' schemas.

use std::fmt::Write as _;

use llguidance::api::TopLevelGrammar;
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use super::{GrammarError, GrammarSpec, schema};
use crate::text::CallFormat;
use crate::text::tool_calls::{CLOSE, OPEN, is_read_as_text};

/// What ends a parameter's value.
const PARAMETER_END: &str = "\n</parameter>\n";

/// Writing to a string doesn't fail.
macro_rules! line {
    ($lark:expr, $($what:tt)*) => {{ let _ = writeln!($lark, $($what)*); }};
}

/// The calls that an answer may consist of.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallSpec {
    /// Descriptions of the functions that may be called, as the client sent them.
    pub tools: Vec<Value>,
    /// How the model writes a call.
    pub format: CallFormat,
    /// Whether there may be more than one call.
    pub several: bool,
}

/// Calls as [`ToolCalls`](crate::text::ToolCalls) reads them, or a text of `form`; `is_special` knows which markers are
/// tokens.
pub(super) fn grammar(
    form: Option<&GrammarSpec>,
    spec: &ToolCallSpec,
    is_special: &dyn Fn(&str) -> bool,
) -> Result<TopLevelGrammar, GrammarError> {
    if spec.tools.is_empty() {
        return Err(refused("there is none to call".to_owned()));
    }
    let marker = |marker: &str| if is_special(marker) { marker.to_owned() } else { quoted(marker) };
    let more = if spec.several { r#" ("\n" call)*"# } else { "" };
    let names: Vec<_> = (0..spec.tools.len()).map(|i| format!("f{i}")).collect();
    let (open, close, names) = (marker(OPEN), marker(CLOSE), names.join(" | "));
    let text = if form.is_some() { "form | " } else { "" };
    let mut lark =
        format!("start: {text}calls\ncalls: call{more}\ncall: {open} \"\\n\" ({names}) \"\\n\" {close}\n");
    for (i, tool) in spec.tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| refused(format!("tool {i} has no name")))?;
        let none = json!({ "type": "object", "additionalProperties": false });
        let given = function.get("parameters").or_else(|| function.get("input_schema"));
        let given = given.filter(|given| given.as_object().is_none_or(|keywords| !keywords.is_empty()));
        let parameters = given.unwrap_or(&none);
        match spec.format {
            CallFormat::Json => json_call(i, name, parameters, &mut lark)?,
            CallFormat::Tagged => tagged_call(i, name, parameters, &mut lark)?,
        }
    }
    if let Some(form) = form {
        form_rule(form, &mut lark)?;
    }
    Ok(TopLevelGrammar::from_lark(lark))
}

/// The rule of a form. A grammar of Lark has rules of its own, which could have the same names.
fn form_rule(form: &GrammarSpec, lark: &mut String) -> Result<(), GrammarError> {
    match form {
        GrammarSpec::JsonSchema(schema) => line!(lark, "form: %json {}", schema::checked(schema)?),
        GrammarSpec::JsonObject => line!(lark, "form: %json {}", schema::any_object()),
        GrammarSpec::Regex(regex) => line!(lark, "form: /{}/", regex_to_lark(regex, "")),
        GrammarSpec::Lark(_) | GrammarSpec::ToolCalls(_) | GrammarSpec::FormOrCalls { .. } => {
            let reason = "it can't stand beside calls of tools; a schema or a regular expression can";
            return Err(GrammarError::Refused { kind: form.kind(), reason: reason.to_owned() });
        }
    }
    Ok(())
}

fn json_call(i: usize, name: &str, parameters: &Value, lark: &mut String) -> Result<(), GrammarError> {
    let object = schema::checked(&objects(name, parameters)?)?;
    let begin = quoted(&format!("{{\"name\": {}, \"arguments\": ", Value::from(name)));
    line!(lark, "f{i}: {begin} f{i}a \"}}\"\nf{i}a: %json {object}");
    Ok(())
}

fn tagged_call(i: usize, name: &str, parameters: &Value, lark: &mut String) -> Result<(), GrammarError> {
    check_tag(name, name)?;
    let checked = schema::checked(&objects(name, parameters)?)?;
    let described =
        ["type", "properties", "required", "additionalProperties", "$defs", "definitions", "x-guidance"];
    if let Some(other) =
        checked.as_object().and_then(|all| all.keys().find(|key| !described.contains(&key.as_str())))
    {
        return Err(refused(format!("{name}: {other:?} can't be enforced over parameters in tags")));
    }
    let none = Map::new();
    let properties = checked["properties"].as_object().unwrap_or(&none);
    let required: Vec<&str> =
        checked["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(unknown) = required.iter().find(|key| !properties.contains_key(**key)) {
        return Err(refused(format!("{name}: {unknown:?} is required, but isn't among the properties")));
    }
    let mut parts = String::new();
    for (k, (key, property)) in properties.iter().enumerate() {
        check_tag(name, key)?;
        let optional = if required.contains(&key.as_str()) { "" } else { "?" };
        let _ = write!(parts, " f{i}p{k}{optional}");
        let tag = quoted(&format!("<parameter={key}>\n"));
        line!(lark, "f{i}p{k}: {tag} f{i}v{k}");
        if is_read_as_text(&checked, key) {
            text_value(&format!("f{i}v{k}"), (name, key), property, lark)?;
        } else {
            let value = standing_alone(property, &checked);
            line!(lark, "f{i}v{k}: f{i}j{k} {}\nf{i}j{k}: %json {value}", quoted(PARAMETER_END));
        }
    }
    line!(lark, "f{i}: {}{parts} \"</function>\"", quoted(&format!("<function={name}>\n")));
    Ok(())
}

/// A string stands without quotes: any text up to the end of the parameter, or one of a list.
fn text_value(
    rule: &str,
    (name, key): (&str, &str),
    property: &Value,
    lark: &mut String,
) -> Result<(), GrammarError> {
    let listed = property.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    let listed = listed.or_else(|| property.get("const").map(std::slice::from_ref));
    if let Some(values) = listed {
        let texts = values.iter().map(|value| value.as_str().filter(|text| !text.contains("</parameter>")));
        let texts: Option<Vec<_>> =
            texts.map(|text| Some(quoted(&format!("{}{PARAMETER_END}", text?)))).collect();
        let others = || {
            refused(format!("{name}: values of {key:?} that are no plain strings can't be enforced in tags"))
        };
        line!(lark, "{rule}: {}", texts.ok_or_else(others)?.join(" | "));
        return Ok(());
    }
    if !is_any_text(property) {
        return Err(refused(format!(
            "{name}: a string {key:?} in tags can have an `enum`, but no other limits"
        )));
    }
    line!(lark, "{rule}[suffix={}]: /(?s:.*)/", quoted(PARAMETER_END));
    Ok(())
}

/// Whether every string is valid.
fn is_any_text(property: &Value) -> bool {
    let Some(keywords) = property.as_object() else { return property == &Value::Bool(true) };
    keywords.iter().all(|(keyword, value)| match keyword.as_str() {
        "type" => value == "string" || value.as_array().is_some_and(|names| names.contains(&json!("string"))),
        "anyOf" => value.as_array().is_some_and(|branches| branches.iter().any(is_any_text)),
        // These say nothing of strings.
        "minimum"
        | "maximum"
        | "exclusiveMinimum"
        | "exclusiveMaximum"
        | "multipleOf"
        | "items"
        | "minItems"
        | "maxItems"
        | "properties"
        | "required"
        | "additionalProperties" => true,
        _ => false,
    })
}

/// A property's schema with what it may refer to.
fn standing_alone(property: &Value, root: &Value) -> Value {
    let mut alone = property.as_object().cloned().unwrap_or_default();
    for key in ["$defs", "definitions", "x-guidance"] {
        if let Some(value) = root.get(key) {
            alone.insert(key.to_owned(), value.clone());
        }
    }
    Value::Object(alone)
}

/// Arguments are an object, whether the schema says so or not.
fn objects(name: &str, parameters: &Value) -> Result<Value, GrammarError> {
    let mut keywords = parameters.as_object().cloned().unwrap_or_default();
    let kind = keywords.entry("type").or_insert_with(|| json!("object"));
    if kind == "object" && (parameters.is_object() || parameters == &Value::Bool(true)) {
        Ok(Value::Object(keywords))
    } else {
        Err(refused(format!("{name}: the schema of the parameters must be one of an object")))
    }
}

/// A name that can stand in a tag.
fn check_tag(function: &str, name: &str) -> Result<(), GrammarError> {
    if name.is_empty() || name.trim() != name || name.contains(['<', '>']) || name.contains(char::is_control)
    {
        return Err(refused(format!("{function}: the name {name:?} can't stand in a tag")));
    }
    Ok(())
}

/// A text in a Lark grammar.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn refused(reason: String) -> GrammarError {
    GrammarError::Refused { kind: "tools", reason }
}
