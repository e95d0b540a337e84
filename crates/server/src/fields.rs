//! The fields of a JSON object, taken one by one, so that each error names its field and nothing is passed over unseen.

use forerun_model::TokenId;
use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// Most characters of a wrong value that an error repeats.
const SHOWN_CHARS_MAX: usize = 60;
/// Integers up to here are exact in an f64.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// An object of a request, and where it is.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Such as `messages[2]`; empty for the request itself.
    place: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The fields of `value`.
    ///
    /// # Errors
    /// A refusal that names `place` when it is no object.
    pub(crate) fn of(value: Value, place: impl Into<String>) -> Result<Self, Refusal> {
        let place = place.into();
        match value {
            Value::Object(map) => Ok(Self { place, map }),
            other if place.is_empty() => {
                let words = format!("the request must be a JSON object, but is {}", shown(&other));
                Err(Refusal::new(crate::refusal::Kind::Invalid, words))
            }
            other => Err(wrong(&place, "an object", &other)),
        }
    }

    /// The whole name of a field.
    pub(crate) fn name(&self, field: &str) -> String {
        if self.place.is_empty() { field.to_owned() } else { format!("{}.{field}", self.place) }
    }

    /// Takes a field; `null` is none.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub(crate) fn need(&mut self, field: &str) -> Result<Value, Refusal> {
        let missing = || Refusal::invalid(self.name(field), format!("`{}` is missing", self.name(field)));
        self.map.get(field).filter(|value| !value.is_null()).ok_or_else(missing)?;
        Ok(self.map.remove(field).unwrap_or_default())
    }

    /// Puts a field back.
    pub(crate) fn put(&mut self, field: &str, value: Value) {
        self.map.insert(field.to_owned(), value);
    }

    /// Takes a truth value.
    pub(crate) fn flag(&mut self, field: &str) -> Result<Option<bool>, Refusal> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong(field, "true or false", &other)),
        }
    }

    /// Takes a number.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "settings are f32, and their ranges are checked behind this"
    )]
    pub(crate) fn number(&mut self, field: &str) -> Result<Option<f32>, Refusal> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number as f32)),
                None => Err(self.wrong(field, "a number", &value)),
            },
        }
    }

    /// Takes an integer of any sign.
    pub(crate) fn integer(&mut self, field: &str) -> Result<Option<i128>, Refusal> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => match integer(&value) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(field, "an integer", &value)),
            },
        }
    }

    /// Takes an integer within `range`.
    pub(crate) fn count(
        &mut self,
        field: &str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<Option<usize>, Refusal> {
        let Some(number) = self.integer(field)? else { return Ok(None) };
        match usize::try_from(number) {
            Ok(count) if range.contains(&count) => Ok(Some(count)),
            _ => {
                let (name, first, last) = (self.name(field), range.start(), range.end());
                let right = if *last == usize::MAX {
                    format!("at least {first}")
                } else {
                    format!("{first} to {last}")
                };
                Err(Refusal::invalid(&name, format!("`{name}` is {number}; it must be {right}")))
            }
        }
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, field: &str) -> Result<Option<String>, Refusal> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(field, "a string", &other)),
        }
    }

    /// Takes a list.
    pub(crate) fn list(&mut self, field: &str) -> Result<Option<Vec<Value>>, Refusal> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(field, "a list", &other)),
        }
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Self>, Refusal> {
        let place = self.name(field);
        self.take(field).map(|value| Self::of(value, place)).transpose()
    }

    /// Refuses fields that would change the answer and aren't supported, unless they hold what changes nothing.
    pub(crate) fn refuse(&self, fields: &[(&str, &str)]) -> Result<(), Refusal> {
        for (field, reason) in fields {
            if self.map.get(*field).is_some_and(|value| !is_neutral(value)) {
                let name = self.name(field);
                let words = format!("`{name}` is not supported: {reason}");
                return Err(Refusal::unsupported(name, words));
            }
        }
        Ok(())
    }

    /// Refuses every field that is still there and asks for something.
    ///
    /// # Errors
    /// A refusal that names the first.
    pub(crate) fn refuse_rest(&self, reason: &str) -> Result<(), Refusal> {
        self.map.keys().try_for_each(|field| self.refuse(&[(field, reason)]))
    }

    /// `field` should have been `right`.
    pub(crate) fn wrong(&self, field: &str, right: &str, found: &Value) -> Refusal {
        wrong(&self.name(field), right, found)
    }
}

/// The value at `place` should have been `right`.
pub(crate) fn wrong(place: &str, right: &str, found: &Value) -> Refusal {
    Refusal::invalid(place, format!("`{place}` must be {right}, but is {}", shown(found)))
}

/// A token id below `n_vocab`.
pub(crate) fn token(value: &Value, n_vocab: usize, place: &str) -> Result<TokenId, Refusal> {
    let id = integer(value).and_then(|number| u32::try_from(number).ok());
    match id {
        Some(id) if (id as usize) < n_vocab => Ok(TokenId(id)),
        _ => Err(wrong(place, &format!("a token from 0 to {}", n_vocab - 1), value)),
    }
}

/// An integer, also one that is written with a point, as some clients do.
#[expect(clippy::cast_possible_truncation, reason = "the guard lets exact integers through only")]
fn integer(value: &Value) -> Option<i128> {
    if let Some(number) = value.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = value.as_u64() {
        return Some(number.into());
    }
    value
        .as_f64()
        .filter(|number| number.fract() == 0.0 && number.abs() <= EXACT_MAX)
        .map(|number| number as i128)
}

/// Whether a field with this value asks for nothing.
fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(list) if !list.is_empty() => format!("a list of {}", list.len()),
        Value::Object(map) if !map.is_empty() => format!("an object of {} fields", map.len()),
        other => other.to_string(),
    };
    if text.chars().count() <= SHOWN_CHARS_MAX {
        return text;
    }
    let begin: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    format!("{begin}…")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of(value, "").unwrap()
    }

    #[test]
    fn errors_name_field_value_and_what_would_be_right() {
        let mut request = fields(json!({"n": 300, "temperature": "hot", "stop": {"a": 1}, "user": 7}));
        let words = |refusal: Refusal| (refusal.param.unwrap(), refusal.message);
        let (param, message) = words(request.count("n", 1..=64).unwrap_err());
        assert_eq!((&*param, &*message), ("n", "`n` is 300; it must be 1 to 64"));
        let (_, message) = words(request.number("temperature").unwrap_err());
        assert_eq!(message, "`temperature` must be a number, but is \"hot\"");
        let (_, message) = words(request.list("stop").unwrap_err());
        assert_eq!(message, "`stop` must be a list, but is an object of 1 fields");
        let (param, _) = words(request.need("model").unwrap_err());
        assert_eq!(param, "model");
    }

    #[test]
    fn places_are_paths() {
        let inner = Fields::of(json!({"content": 5}), "messages[2]").unwrap();
        assert_eq!(inner.name("content"), "messages[2].content");
        assert_eq!(Fields::of(json!([1]), "messages[2]").unwrap_err().param.as_deref(), Some("messages[2]"));
    }

    #[test]
    fn integers_may_be_written_with_a_point_but_not_broken() {
        let mut request = fields(json!({"a": 3.0, "b": 3.5, "c": 1e30, "d": -1, "e": u64::MAX}));
        assert_eq!(request.integer("a"), Ok(Some(3)));
        assert!(request.integer("b").is_err() && request.integer("c").is_err());
        assert_eq!(request.integer("d"), Ok(Some(-1)));
        assert_eq!(request.integer("e"), Ok(Some(u64::MAX.into())));
    }

    #[test]
    fn what_asks_for_nothing_is_not_refused() {
        let table = &[("logit_bias", "reason")];
        for neutral in [json!(null), json!({}), json!(0), json!(false), json!("")] {
            assert_eq!(fields(json!({"logit_bias": neutral})).refuse(table), Ok(()));
        }
        let refusal = fields(json!({"logit_bias": {"5": 1}})).refuse(table).unwrap_err();
        assert_eq!(refusal.code, Some("unsupported_parameter"));
    }
}
