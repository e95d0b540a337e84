//! Forms that an answer must have: `response_format`, and the names that other servers have for it.

use forerun_decode::GrammarSpec;
use serde_json::Value;

use crate::ask::Form;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// How the value of a field becomes a form.
type Reader = fn(&Fields, &str, Value) -> Result<GrammarSpec, Refusal>;

/// Fields beside `response_format`.
const OTHERS: &[(&str, Reader)] = &[
    ("json_schema", schema),
    ("guided_json", schema),
    ("grammar", lark),
    ("guided_grammar", lark),
    ("regex", regex),
    ("guided_regex", regex),
];

/// Takes the form that a request asks for.
///
/// # Errors
/// A refusal that names what is wrong, or the second of two forms.
pub(super) fn take(fields: &mut Fields) -> Result<Option<Form>, Refusal> {
    let mut found = match fields.object("response_format")? {
        Some(format) => response_format(format)?,
        None => None,
    };
    for (field, read) in OTHERS {
        let Some(value) = fields.take(field).filter(|value| value != "") else { continue };
        let spec = read(fields, field, value)?;
        let form = Form { spec: spec.into(), param: (*field).to_owned() };
        if let Some(first) = found.replace(form) {
            let words = format!("`{field}` and `{}` both bind the answer; write one of them", first.param);
            return Err(Refusal::invalid(*field, words));
        }
    }
    Ok(found)
}

/// `text`, `json_object`, perhaps with a `schema`, or `json_schema`.
fn response_format(mut format: Fields) -> Result<Option<Form>, Refusal> {
    let kind = format.need("type")?;
    let (spec, param) = match kind.as_str() {
        Some("text") => return Ok(None),
        Some("json_object") => match format.take("schema") {
            Some(schema) => (GrammarSpec::JsonSchema(schema), format.name("schema")),
            None => (GrammarSpec::JsonObject, format.name("type")),
        },
        Some("json_schema") => {
            let inner = format.need("json_schema")?;
            let mut inner = Fields::of(inner, format.name("json_schema"))?;
            inner.text("name")?;
            inner.flag("strict")?;
            (GrammarSpec::JsonSchema(inner.need("schema")?), inner.name("schema"))
        }
        _ => return Err(format.wrong("type", "text, json_object or json_schema", &kind)),
    };
    Ok(Some(Form { spec: spec.into(), param }))
}

/// A schema, or a text that holds one.
fn schema(fields: &Fields, field: &str, value: Value) -> Result<GrammarSpec, Refusal> {
    let Value::String(text) = value else { return Ok(GrammarSpec::JsonSchema(value)) };
    let schema = serde_json::from_str(&text);
    schema.map(GrammarSpec::JsonSchema).map_err(|_| fields.wrong(field, "a JSON schema", &text.into()))
}

fn lark(fields: &Fields, field: &str, value: Value) -> Result<GrammarSpec, Refusal> {
    text(fields, field, value).map(GrammarSpec::Lark)
}

fn regex(fields: &Fields, field: &str, value: Value) -> Result<GrammarSpec, Refusal> {
    text(fields, field, value).map(GrammarSpec::Regex)
}

fn text(fields: &Fields, field: &str, value: Value) -> Result<String, Refusal> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(fields.wrong(field, "a string", &other)),
    }
}
