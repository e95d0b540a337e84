//! Checks a JSON schema word for word, so that nothing in it is ignored.
//!
//! What is behind this refuses less than we want: it takes unknown keywords for annotations, and follows options
//! that a schema brings. So a copy is made in which only what is enforced is left.

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value, json};

use super::finite::Finite;
use super::{EXPRESSION_BYTES_MAX, GrammarError};

/// Levels of a schema.
const DEPTH_MAX: usize = 64;
/// Most items, properties or characters that may be counted.
const COUNT_MAX: u64 = 65_536;
/// Most properties of one object: each may come next, and a matcher keeps all that may.
const PROPERTIES_MAX: usize = 400;
/// Largest divisor, without its decimal point: a matcher has as many states.
const DIVISOR_MAX: u32 = 4096;
/// Whole numbers up to here are the same as `f64`.
const EXACT_MAX: u64 = 1 << 53;
/// Most bytes of a wrong value that an error repeats.
const SHOWN_BYTES_MAX: usize = 80;

/// White space between the parts of a JSON text: one space, or a line end and an indent. It has an end, or a model that
/// likes white space would go on with nothing else.
const WHITE_SPACE: &str = r"\x20|\x0A(\x20{0,20}|\x09{0,8})";

/// Formats of strings that are enforced.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
const DRAFTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

/// The schema of any object.
pub(super) fn any_object() -> Value {
    with_options(json!({ "type": "object" }))
}

/// A copy of `schema` in which only what is enforced is left.
pub(super) fn checked(schema: &Value) -> Result<Value, GrammarError> {
    let mut walk =
        Walk { root: schema, path: String::new(), depth: 0, multiples: Vec::new(), n_pattern_bytes: 0 };
    let copy = walk.schema(schema)?;
    if !Finite::new(&copy).ends(&copy) {
        let reason = "it needs a value inside itself, without end".to_owned();
        return Err(GrammarError::Refused { kind: "schema", reason });
    }
    let copy = match copy {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => {
            let reason = "`false` allows no text at all".to_owned();
            return Err(GrammarError::Refused { kind: "schema", reason });
        }
        copy => copy,
    };
    Ok(with_options(copy))
}

fn with_options(mut schema: Value) -> Value {
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    schema
}

struct Walk<'a> {
    root: &'a Value,
    /// Where the walk is, as a JSON pointer.
    path: String,
    depth: usize,
    /// Different values of `multipleOf`: as whole numbers and decimal places.
    multiples: Vec<(u32, u32)>,
    /// Bytes of all regular expressions.
    n_pattern_bytes: usize,
}

impl Walk<'_> {
    fn schema(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        let Value::Object(keywords) = schema else {
            let no_schema = || GrammarError::NoSchema { path: self.path.clone(), found: shown(schema) };
            return if schema.is_boolean() { Ok(schema.clone()) } else { Err(no_schema()) };
        };
        if self.depth == DEPTH_MAX {
            return Err(GrammarError::Nesting { path: self.path.clone(), max: DEPTH_MAX });
        }
        self.depth += 1;
        let mut copy = Map::new();
        for (keyword, value) in keywords {
            if let Some(value) = self.keyword(keyword, value, keywords)? {
                copy.insert(keyword.clone(), value);
            }
        }
        self.depth -= 1;
        Ok(Value::Object(copy))
    }

    /// What is left of a keyword; `None` for one that only describes.
    fn keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        all: &Map<String, Value>,
    ) -> Result<Option<Value>, GrammarError> {
        let copy = match keyword {
            "title" | "description" | "default" | "examples" | "$comment" | "deprecated" | "readOnly"
            | "writeOnly" | "contentMediaType" | "contentEncoding" | "contentSchema" | "$anchor" => {
                return Ok(None);
            }
            "$schema" | "$id" | "id" | "uniqueItems" => return self.harmless(keyword, value),
            "x-guidance" => return Err(self.refused(keyword, "settings can't be given in a schema")),
            _ if keyword.starts_with("x-") => return Ok(None),
            "properties" | "patternProperties" | "$defs" | "definitions" => self.map(keyword, value)?,
            "items" if value.is_array() => self.list(keyword, value)?,
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => self.list(keyword, value)?,
            "items" | "additionalItems" | "additionalProperties" => {
                self.below(keyword, |walk| walk.schema(value))?
            }
            "multipleOf" => self.multiple(value)?,
            "pattern" if value.is_string() => {
                self.pattern(value.as_str().unwrap_or_default())?;
                value.clone()
            }
            _ => {
                if let Some(expected) = self.wrong(keyword, value, all)? {
                    return Err(self.wrong_value(keyword, value, expected));
                }
                value.clone()
            }
        };
        Ok(Some(copy))
    }

    /// A keyword that changes nothing, as long as its value is this one.
    fn harmless(&self, keyword: &str, value: &Value) -> Result<Option<Value>, GrammarError> {
        match (keyword, value) {
            ("uniqueItems", Value::Bool(false)) => Ok(None),
            ("uniqueItems", _) => {
                Err(self.refused(keyword, "that items differ can't be enforced; leave it out"))
            }
            ("$schema", Value::String(draft)) if DRAFTS.contains(&draft.trim_end_matches('#')) => Ok(None),
            ("$schema", _) => {
                Err(self.wrong_value(keyword, value, "the URI of draft 4, 6, 7, 2019-09 or 2020-12"))
            }
            _ if self.depth == 1 => Ok(None),
            _ => Err(self.refused(keyword, "references are resolved in the whole schema only; leave it out")),
        }
    }

    /// What a plain keyword's value must be, if it isn't that.
    fn wrong(
        &self,
        keyword: &str,
        value: &Value,
        all: &Map<String, Value>,
    ) -> Result<Option<&'static str>, GrammarError> {
        let (right, expected) = match keyword {
            "type" => (is_type(value), "one of JSON's types, `integer`, or a list of such"),
            "enum" => {
                let right =
                    value.as_array().is_some_and(|values| !values.is_empty() && values.iter().all(exact));
                (right, "a list of values, with whole numbers up to 2^53")
            }
            "const" => (exact(value), "a value, with whole numbers up to 2^53"),
            "$ref" => (
                self.resolves(value),
                "`#`, or `#/` and the path of a schema in this one, without `~` and `%`",
            ),
            "required" => {
                let right = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
                (right, "a list of names")
            }
            "minItems" | "maxItems" | "minLength" | "maxLength" | "maxProperties" => {
                (value.as_u64().is_some_and(|n| n <= COUNT_MAX), "a whole number from 0 to 65536")
            }
            "minProperties" => {
                let n_required = all.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
                let right = value.as_u64().is_some_and(|n| n <= n_required + 1);
                (right, "at most one more than there are required names: others could repeat one name")
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                (value.is_number() && exact(value), "a number; a whole one up to 2^53")
            }
            "pattern" => (false, "a regular expression"),
            "format" => {
                let right = value.as_str().is_some_and(|name| FORMATS.contains(&name));
                (right, "date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid or uri")
            }
            _ => return Err(self.refused(keyword, hint(keyword))),
        };
        Ok((!right).then_some(expected))
    }

    fn map(&mut self, keyword: &str, value: &Value) -> Result<Value, GrammarError> {
        let Some(schemas) =
            value.as_object().filter(|all| keyword != "properties" || all.len() <= PROPERTIES_MAX)
        else {
            return Err(self.wrong_value(
                keyword,
                value,
                "an object of schemas, with at most 400 properties",
            ));
        };
        self.below(keyword, |walk| {
            let copies = schemas
                .iter()
                .map(|(name, schema)| Ok((name.clone(), walk.below(name, |walk| walk.schema(schema))?)));
            Ok(Value::Object(copies.collect::<Result<_, _>>()?))
        })
    }

    fn list(&mut self, keyword: &str, value: &Value) -> Result<Value, GrammarError> {
        let Some(schemas) = value.as_array().filter(|schemas| !schemas.is_empty()) else {
            return Err(self.wrong_value(keyword, value, "a list of schemas"));
        };
        self.below(keyword, |walk| {
            let copies = schemas.iter().enumerate();
            let copies = copies.map(|(i, schema)| walk.below(&i.to_string(), |walk| walk.schema(schema)));
            Ok(Value::Array(copies.collect::<Result<_, _>>()?))
        })
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), GrammarError> {
        self.n_pattern_bytes += pattern.len();
        let (found_bytes, max_bytes) = (self.n_pattern_bytes, EXPRESSION_BYTES_MAX);
        if found_bytes <= max_bytes {
            return Ok(());
        }
        Err(GrammarError::Size { kind: "schema's regular expressions", found_bytes, max_bytes })
    }

    /// A divisor. All divisors of a schema may have to be combined, in 32 bits.
    fn multiple(&mut self, value: &Value) -> Result<Value, GrammarError> {
        let wrong = "above 0 and at most 4096, decimals without their point; and the product of all divisors under 2^32";
        let divisor = decimal(value).ok_or_else(|| self.wrong_value("multipleOf", value, wrong))?;
        if !self.multiples.contains(&divisor) {
            self.multiples.push(divisor);
        }
        let places = self.multiples.iter().map(|(_, places)| *places).max().unwrap_or(0);
        let scaled = |&(digits, exp): &(u32, u32)| u64::from(digits) * 10_u64.pow(places - exp);
        let product =
            self.multiples.iter().try_fold(1_u64, |product, divisor| product.checked_mul(scaled(divisor)));
        let largest = self.multiples.iter().map(scaled).max().unwrap_or(1);
        let fits = product
            .and_then(|product| product.checked_mul(largest))
            .is_some_and(|n| n <= u64::from(u32::MAX));
        if fits { Ok(value.clone()) } else { Err(self.wrong_value("multipleOf", value, wrong)) }
    }

    fn resolves(&self, value: &Value) -> bool {
        let Some(path) = value.as_str().and_then(|reference| reference.strip_prefix('#')) else {
            return false;
        };
        path != "/" && !path.contains(['~', '%']) && self.root.pointer(path).is_some()
    }

    fn below<T>(
        &mut self,
        name: &str,
        step: impl FnOnce(&mut Self) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        let length = self.path.len();
        self.path.push('/');
        self.path.push_str(name);
        let done = step(self)?;
        self.path.truncate(length);
        Ok(done)
    }

    fn refused(&self, keyword: &str, hint: &'static str) -> GrammarError {
        GrammarError::Keyword { path: self.path.clone(), keyword: keyword.to_owned(), hint }
    }

    fn wrong_value(&self, keyword: &str, value: &Value, expected: &'static str) -> GrammarError {
        let (path, keyword) = (self.path.clone(), keyword.to_owned());
        GrammarError::KeywordValue { path, keyword, found: shown(value), expected }
    }
}

/// What to write instead of a keyword that isn't enforced.
fn hint(keyword: &str) -> &'static str {
    match keyword {
        "nullable" => r#"name the type too, as in "type": ["string", "null"]"#,
        "not" | "if" | "then" | "else" | "dependentRequired" | "dependentSchemas" | "dependencies" => {
            "conditions can't be enforced; list the cases with `anyOf`"
        }
        "discriminator" => "a `const` in each case of `anyOf` says the same",
        "contains" | "minContains" | "maxContains" => "only all items, or the first ones, can be described",
        "propertyNames" => "`patternProperties` with `additionalProperties: false` says the same",
        "unevaluatedProperties" | "unevaluatedItems" => "use `additionalProperties` or `items` in each case",
        _ => "nothing enforces it; leave it out",
    }
}

fn is_type(value: &Value) -> bool {
    let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    known(value) || value.as_array().is_some_and(|names| !names.is_empty() && names.iter().all(known))
}

/// Whether a constant's numbers mean the same as `f64`.
fn exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (None, None) => number
                .as_f64()
                .is_some_and(|number| number.fract() != 0.0 || number.abs() <= EXACT_MAX as f64),
            (Some(number), _) => number.unsigned_abs() <= EXACT_MAX,
            (None, Some(number)) => number <= EXACT_MAX,
        },
        Value::Array(values) => values.iter().all(exact),
        Value::Object(values) => values.values().all(exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// A positive number as digits and decimal places.
fn decimal(value: &Value) -> Option<(u32, u32)> {
    let text = value.as_number()?.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let places = u32::try_from(fraction.len()).ok().filter(|&places| places <= 6)?;
    let digits: u32 = format!("{whole}{fraction}").parse().ok()?;
    (1..=DIVISOR_MAX).contains(&digits).then_some((digits, places))
}

/// A value for an error.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let cut = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)];
    if cut.len() < text.len() { format!("{cut}…") } else { text }
}
