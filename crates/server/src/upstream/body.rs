//! Bodies on their way to an upstream and back. Values are moved as they were written: a number that is read and written
//! again may be another one.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

/// Fields of ours that change nothing of an answer, or ask for what a cluster does anyway.
const OURS: &[&str] = &["prompt_progress", "return_progress", "parse_special"];
/// Fields in which -1 is ours: as many as fit, which is what leaving them out means.
const COUNTS: &[&str] = &["max_tokens", "max_completion_tokens"];

type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// A request's body as an upstream gets it: with the model's name there, and without what only we know.
///
/// # Errors
/// A body that is no JSON object.
pub(super) fn outgoing(body: &[u8], model: Option<&str>) -> Result<Bytes, serde_json::Error> {
    let mut fields: Fields<'_> = serde_json::from_slice(body)?;
    fields.retain(|name, value| {
        let is_ours = OURS.contains(&name.as_str());
        let is_any = COUNTS.contains(&name.as_str()) && value.get().parse() == Ok(-1.0);
        !is_ours && !is_any
    });
    if let Some(penalty) = fields.remove("repeat_penalty")
        && fields.get("repetition_penalty").is_none_or(|value| value.get() == "null")
    {
        fields.insert("repetition_penalty".into(), penalty);
    }
    let model = model.map(to_raw_value).transpose()?;
    if let Some(model) = &model {
        fields.insert("model".into(), model);
    }
    Ok(serde_json::to_vec(&fields)?.into())
}

/// An upstream's answer with a field that says whose it is; `None` if it is no JSON object.
pub(super) fn marked(body: &[u8], host: &str) -> Option<Bytes> {
    let mut fields: Fields<'_> = serde_json::from_slice(body).ok()?;
    let host = to_raw_value(host).ok()?;
    fields.insert("upstream".into(), &host);
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}

/// The name of the only model of a list, if there is only one.
pub(super) fn only_model(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    let List { data } = serde_json::from_slice(body).ok()?;
    let [Model { id }] = <[Model; 1]>::try_from(data).ok()?;
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, model: Option<&str>, expect: &str) {
        let found = outgoing(body.as_bytes(), model).unwrap();
        assert_eq!(std::str::from_utf8(&found).unwrap(), expect, "{body}");
    }

    #[test]
    fn values_leave_as_they_came() {
        let body = r#"{"a":1e-7,"b":0.30000000000000004,"c":[1, 2],"d":123456789012345678901}"#;
        check(body, None, body);
        check(r#"{"model":"x","prompt":"é\u00e9"}"#, None, r#"{"model":"x","prompt":"é\u00e9"}"#);
    }

    #[test]
    fn the_model_is_the_upstreams_and_what_is_ours_stays_here() {
        check(r#"{"model":"x","n":1}"#, Some("a\"b"), r#"{"model":"a\"b","n":1}"#);
        check(r#"{"prompt_progress":true,"return_progress":1,"parse_special":true}"#, None, "{}");
        check(r#"{"max_tokens":-1,"max_completion_tokens":-1.0}"#, None, "{}");
        check(r#"{"max_tokens":10}"#, None, r#"{"max_tokens":10}"#);
        check(r#"{"repeat_penalty":1.10}"#, None, r#"{"repetition_penalty":1.10}"#);
        check(r#"{"repeat_penalty":2,"repetition_penalty":1.1}"#, None, r#"{"repetition_penalty":1.1}"#);
        check(r#"{"a":1,"a":2}"#, None, r#"{"a":2}"#);
    }

    #[test]
    fn answers_say_whose_they_are() {
        let marked = |body: &str| marked(body.as_bytes(), "host:1");
        assert_eq!(marked(r#"{"id":1.50}"#).unwrap(), r#"{"id":1.50,"upstream":"host:1"}"#);
        assert_eq!(marked(r#"{"upstream":"x"}"#).unwrap(), r#"{"upstream":"host:1"}"#);
        for wrong in ["[]", "", "<html>", "{\"a\":", "null"] {
            assert_eq!(marked(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_list_of_one_model_names_it() {
        assert_eq!(only_model(br#"{"object":"list","data":[{"id":"m","x":1}]}"#).as_deref(), Some("m"));
        for other in [r#"{"data":[]}"#, r#"{"data":[{"id":"a"},{"id":"b"}]}"#, "{}", "no", r#"{"data":7}"#] {
            assert_eq!(only_model(other.as_bytes()), None, "{other}");
        }
    }
}
