//! Draws answers under grammars, and checks them by the letter of their schemas.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use forerun_decode::sampler::{Draw, History};
use forerun_decode::text::Tokenizer;
use forerun_decode::{Grammar, GrammarFactory, Sampler, SamplerConfig};
use forerun_model::TokenId;
use serde_json::Value;

use crate::text_common;

/// Most tokens of an answer.
const TOKENS_MAX: usize = 300;

/// Draws answers from logits that know nothing but a liking for what ends things.
pub struct Writer {
    pub tokenizer: Tokenizer,
    pub factory: GrammarFactory,
    logits: Vec<f32>,
}

pub struct Answer {
    pub text: String,
    pub tokens: Vec<TokenId>,
    /// Whether it ended by itself.
    pub is_ended: bool,
}

impl Writer {
    pub fn pico() -> Self {
        let tokenizer = text_common::pico().tokenizer;
        let vocabulary = tokenizer.vocabulary();
        let factory = GrammarFactory::new(vocabulary).unwrap();
        let mut logits = vec![0.0; vocabulary.len()];
        let mut like = |text: &str, logit: f32| {
            for id in tokenizer.encode_plain(text).unwrap() {
                logits[id.idx()] = logit;
            }
        };
        for end in ["\"", "}", "]", "\n"] {
            like(end, 8.0);
        }
        for id in vocabulary.end_ids() {
            logits[id.idx()] = 9.0;
        }
        Self { factory, logits, tokenizer }
    }

    /// The same with a liking for thoughts that end.
    pub fn thinking(&self) -> Self {
        let mut logits = self.logits.clone();
        logits[self.tokenizer.vocabulary().special("<think>").unwrap().idx()] = 8.0;
        logits[self.tokenizer.vocabulary().special("</think>").unwrap().idx()] = 6.0;
        let tokenizer = text_common::pico().tokenizer;
        Self { tokenizer, factory: self.factory.clone(), logits }
    }

    pub fn sampler(&self, grammar: &Grammar, seed: u64) -> Sampler {
        let config = SamplerConfig { seed, top_k: 0, top_p: 1.0, ..SamplerConfig::default() };
        let banned = self.tokenizer.vocabulary().banned();
        Sampler::new(config, self.logits.len(), banned).unwrap().with_grammar(Some(grammar)).unwrap()
    }

    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    pub fn write(&self, grammar: &Grammar, seed: u64) -> Answer {
        let mut sampler = self.sampler(grammar, seed);
        let mut history = History::default();
        let mut is_ended = false;
        while history.answer().len() < TOKENS_MAX {
            let draw = Draw { choice: 0, position: history.answer().len() as u64 };
            let token = sampler.sample(&self.logits, &history, draw).unwrap();
            if self.tokenizer.vocabulary().end_ids().contains(&token) {
                is_ended = true;
                break;
            }
            history.push(token);
        }
        let tokens = history.answer().to_vec();
        Answer { text: self.tokenizer.decode(&tokens), tokens, is_ended }
    }
}

/// Whether `value` is what `schema`, a part of `root`, says.
pub fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else { return schema == &Value::Bool(true) };
    keywords.iter().all(|(keyword, rule)| holds(root, schema, (keyword, rule), value))
}

fn holds(root: &Value, schema: &Value, (keyword, rule): (&str, &Value), value: &Value) -> bool {
    let list = || rule.as_array().unwrap();
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    let number = value.as_f64();
    let compared = |right: fn(f64, f64) -> bool| number.is_none_or(|n| right(n, rule.as_f64().unwrap()));
    let counted = |count: Option<usize>, right: fn(u64, u64) -> bool| {
        count.is_none_or(|n| right(n as u64, rule.as_u64().unwrap()))
    };
    let items = value.as_array();
    let fields = value.as_object();
    let n_chars = value.as_str().map(|text| text.chars().count());
    match keyword {
        "type" => match rule {
            Value::Array(names) => names.iter().any(|name| is_type(name.as_str().unwrap(), value)),
            name => is_type(name.as_str().unwrap(), value),
        },
        "const" => same(rule, value),
        "enum" => list().iter().any(|constant| same(constant, value)),
        "anyOf" => list().iter().any(|schema| valid(schema, value)),
        "oneOf" => list().iter().filter(|schema| valid(schema, value)).count() == 1,
        "allOf" => list().iter().all(|schema| valid(schema, value)),
        "$ref" => valid(root.pointer(&rule.as_str().unwrap()[1..]).unwrap(), value),
        "minimum" => compared(|n, bound| n >= bound),
        "maximum" => compared(|n, bound| n <= bound),
        "exclusiveMinimum" => compared(|n, bound| n > bound),
        "exclusiveMaximum" => compared(|n, bound| n < bound),
        "multipleOf" => compared(|n, divisor| (n / divisor - (n / divisor).round()).abs() < 1e-9),
        "minItems" => counted(items.map(Vec::len), |n, bound| n >= bound),
        "maxItems" => counted(items.map(Vec::len), |n, bound| n <= bound),
        "minLength" => counted(n_chars, |n, bound| n >= bound),
        "maxLength" => counted(n_chars, |n, bound| n <= bound),
        "minProperties" => counted(fields.map(|fields| fields.len()), |n, bound| n >= bound),
        "maxProperties" => counted(fields.map(|fields| fields.len()), |n, bound| n <= bound),
        "required" => {
            fields.is_none_or(|fields| list().iter().all(|name| fields.contains_key(name.as_str().unwrap())))
        }
        "pattern" => value.as_str().is_none_or(|text| matches(rule.as_str().unwrap(), text)),
        "format" => value.as_str().is_none_or(|text| matches(format(rule.as_str().unwrap()), text)),
        "items" | "prefixItems" | "additionalItems" => items.is_none_or(|items| {
            items.iter().enumerate().all(|(i, item)| valid(item_schema(schema, i), item))
        }),
        "properties" | "patternProperties" | "additionalProperties" => fields.is_none_or(|fields| {
            fields
                .iter()
                .all(|(name, field)| field_schemas(schema, name).into_iter().all(|rule| valid(rule, field)))
        }),
        _ => true,
    }
}

fn item_schema(schema: &Value, i: usize) -> &Value {
    let first = schema.get("prefixItems").or_else(|| schema.get("items").filter(|items| items.is_array()));
    let rest = if schema["items"].is_array() { schema.get("additionalItems") } else { schema.get("items") };
    first.and_then(|first| first.get(i)).or(rest).unwrap_or(&Value::Bool(true))
}

fn field_schemas<'a>(schema: &'a Value, name: &str) -> Vec<&'a Value> {
    let named = schema.get("properties").and_then(|properties| properties.get(name));
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let by_pattern = patterns.into_iter().flatten().filter(|(pattern, _)| matches(pattern, name));
    let found: Vec<_> = named.into_iter().chain(by_pattern.map(|(_, schema)| schema)).collect();
    if found.is_empty() { schema.get("additionalProperties").into_iter().collect() } else { found }
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

/// JSON Schema takes 1 and 1.0 for the same.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    fancy_regex::Regex::new(pattern).unwrap().is_match(text).unwrap()
}

fn format(name: &str) -> &'static str {
    match name {
        "date-time" => r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$",
        "uuid" => "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        "ipv4" => r"^\d{1,3}(\.\d{1,3}){3}$",
        _ => "^[^@ ]+@[^@ ]+$",
    }
}
