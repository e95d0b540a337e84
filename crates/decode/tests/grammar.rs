//! Answers under JSON schemas: what is drawn is valid, what can't be enforced is refused by name.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod grammar_common;
mod text_common;

use forerun_decode::{GrammarError, GrammarSpec};
use grammar_common::{Writer, is_valid};
use serde_json::{Value, json};

fn schema(schema: Value) -> GrammarSpec {
    GrammarSpec::JsonSchema(schema)
}

/// What is said of a grammar that can't be used.
#[track_caller]
fn refused(writer: &Writer, spec: &GrammarSpec) -> String {
    match writer.factory.compile(spec) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{spec:?} was taken"),
    }
}

/// Schemas with every keyword that is enforced.
fn schemas() -> Vec<Value> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "tags": { "type": "array", "items": { "enum": ["a", "b\n", 3, null, true, [1], { "k": "v" }] }, "minItems": 1, "maxItems": 3 },
            "mail": { "type": "string", "format": "email" },
        },
        "required": ["name", "tags"],
        "additionalProperties": false,
    });
    vec![
        person.clone(),
        json!({ "type": "array", "prefixItems": [{ "type": "boolean" }, { "const": "x" }], "items": false, "minItems": 2 }),
        json!({ "type": "array", "items": [{ "type": "null" }], "additionalItems": { "type": "integer", "multipleOf": 7, "exclusiveMinimum": -50, "exclusiveMaximum": 50 }, "minItems": 3, "maxItems": 4 }),
        json!({ "type": "number", "minimum": -1.5, "maximum": 2.25 }),
        json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 10, "multipleOf": 0.25 }),
        json!({ "type": "string", "pattern": "^[a-c]+-\\d{2}$" }),
        json!({ "type": "string", "pattern": "b|^c", "maxLength": 5 }),
        json!({ "type": "string", "pattern": "^hello there indeed\\!$" }),
        json!({ "type": "string", "pattern": "[/\"\\\\]x" , "maxLength": 8 }),
        json!({ "type": ["string", "null"], "maxLength": 3 }),
        json!({ "const": { "a": [1, 2.5, "é\u{7}"] } }),
        json!({ "enum": [0.1, -3, 9_007_199_254_740_992_i64, "🦙", ""] }),
        json!({ "anyOf": [{ "type": "integer", "minimum": 5, "maximum": 9 }, { "type": "boolean" }] }),
        json!({ "oneOf": [{ "type": "object", "properties": { "kind": { "const": "a" } }, "required": ["kind"], "additionalProperties": false },
                          { "type": "object", "properties": { "kind": { "const": "b" }, "n": { "type": "null" } }, "required": ["kind", "n"], "additionalProperties": false }] }),
        json!({ "allOf": [{ "type": "integer", "minimum": 3 }, { "maximum": 40, "multipleOf": 2 }, { "multipleOf": 3 }] }),
        json!({ "type": "object", "patternProperties": { "^n_": { "type": "integer", "minimum": 1, "maximum": 3 } }, "additionalProperties": false, "maxProperties": 2 }),
        json!({ "type": "object", "properties": { "a": { "type": "null" } }, "required": ["a", "b"], "additionalProperties": { "type": "boolean" }, "maxProperties": 3 }),
        json!({ "type": "object", "additionalProperties": { "type": "null" }, "minProperties": 1, "maxProperties": 1 }),
        json!({ "$ref": "#/$defs/tree", "$defs": { "tree": { "type": "object",
            "properties": { "left": { "anyOf": [{ "$ref": "#/$defs/tree" }, { "type": "null" }] }, "v": { "type": "integer", "minimum": 1, "maximum": 9 } },
            "required": ["left", "v"], "additionalProperties": false } } }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "title": "T", "definitions": { "p": person }, "type": "array", "items": { "$ref": "#/definitions/p" }, "maxItems": 2, "x-order": 1 }),
        json!({ "type": "string", "format": "date-time" }),
        json!({ "type": "string", "format": "uuid" }),
        json!({ "type": "string", "format": "ipv4" }),
        json!({ "minimum": 3, "maximum": 4, "type": ["integer", "boolean"] }),
    ]
}

#[test]
fn whatever_is_drawn_under_a_schema_is_valid() {
    let writer = Writer::pico();
    for schema in schemas() {
        let spec = GrammarSpec::JsonSchema(schema.clone());
        let grammar = writer.factory.compile(&spec).unwrap_or_else(|error| panic!("{error}\n{schema}"));
        let mut n_ended = 0;
        for seed in 0..24 {
            let answer = writer.write(&grammar, seed);
            // What was cut off at the most tokens is no whole value.
            if !answer.is_ended {
                continue;
            }
            n_ended += 1;
            let value: Value = serde_json::from_str(&answer.text)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}: {:?}", answer.text));
            assert!(is_valid(&schema, &schema, &value), "seed {seed}: {value} of {schema}");
        }
        assert!(n_ended > 10, "{n_ended} of {schema}");
    }
}

#[test]
fn any_json_is_json() {
    let writer = Writer::pico();
    for (spec, begins) in [
        (GrammarSpec::JsonObject, "{"),
        (schema(json!({})), ""),
        (schema(json!(true)), ""),
        (schema(json!({ "description": "d" })), ""),
    ] {
        let grammar = writer.factory.compile(&spec).unwrap();
        for seed in 0..40 {
            let answer = writer.write(&grammar, seed);
            if answer.is_ended {
                // Numbers may be larger than any that we could hold.
                serde_json::from_str::<serde::de::IgnoredAny>(&answer.text).unwrap();
                assert!(answer.text.trim_start().starts_with(begins), "{:?}", answer.text);
            }
        }
    }
}

#[test]
fn what_a_schema_asks_and_we_do_not_enforce_is_refused_by_name() {
    let writer = Writer::pico();
    for (keyword, value) in [
        ("not", json!({})),
        ("if", json!({})),
        ("contains", json!({})),
        ("uniqueItems", json!(true)),
        ("propertyNames", json!({})),
        ("dependentRequired", json!({})),
        ("dependencies", json!({})),
        ("unevaluatedProperties", json!(false)),
        ("$dynamicRef", json!("#")),
        ("nullable", json!(true)),
        ("discriminator", json!({})),
        ("minLenght", json!(3)),
        ("x-guidance", json!({ "lenient": true })),
        ("$id", json!("http://a/b")),
    ] {
        match writer.factory.compile(&schema(object(keyword, &value))) {
            Err(GrammarError::Keyword { path, keyword: found, .. }) => {
                assert_eq!((path.as_str(), found.as_str()), ("/properties/a", keyword));
            }
            other => panic!("{keyword}: {other:?}"),
        }
    }
}

/// A property that has this keyword.
fn object(keyword: &str, value: &Value) -> Value {
    json!({ "type": "object", "properties": { "a": { keyword: value } } })
}

#[test]
fn values_that_mean_nothing_or_can_not_be_enforced_are_refused_by_name() {
    let writer = Writer::pico();
    for (keyword, value) in [
        ("type", json!("int")),
        ("type", json!([])),
        ("enum", json!([])),
        ("enum", json!([9_007_199_254_740_993_i64])),
        ("const", json!(u64::MAX)),
        ("format", json!("int32")),
        ("format", json!("unknown")),
        ("pattern", json!(3)),
        ("minLength", json!(-1)),
        ("maxLength", json!(1_000_000_000)),
        ("maxItems", json!(2.5)),
        ("minimum", json!("1")),
        ("exclusiveMinimum", json!(true)),
        ("multipleOf", json!(0)),
        ("multipleOf", json!(-2)),
        ("multipleOf", json!(1e-9)),
        ("multipleOf", json!(4_294_967_291_u32)),
        ("required", json!("a")),
        ("minProperties", json!(2)),
        ("properties", json!([])),
        ("anyOf", json!([])),
        ("$ref", json!("http://json-schema.org/draft-07/schema#")),
        ("$ref", json!("#/nowhere")),
        ("$ref", json!("other.json#/a")),
        ("$schema", json!("https://example.org/my-dialect")),
    ] {
        match writer.factory.compile(&schema(object(keyword, &value))) {
            Err(GrammarError::KeywordValue { path, keyword: found, .. }) => {
                assert_eq!((path.as_str(), found.as_str()), ("/properties/a", keyword));
            }
            other => panic!("{keyword}: {value}: {other:?}"),
        }
    }
    assert_eq!(
        refused(&writer, &schema(json!({ "items": { "not": {} } }))),
        "schema keyword \"not\" at \"/items\" is not supported: conditions can't be enforced; list the cases with `anyOf`"
    );
    assert_eq!(
        refused(&writer, &schema(json!(3))),
        "the schema at \"\" is 3; it must be an object, or `true` or `false`"
    );
}

#[test]
fn schemas_that_no_text_fulfils_are_refused() {
    let writer = Writer::pico();
    for impossible in [
        json!(false),
        json!({ "type": "string", "enum": [1] }),
        json!({ "allOf": [{ "type": "string" }, { "type": "null" }] }),
        json!({ "type": "integer", "minimum": 3, "maximum": 2 }),
        json!({ "type": "string", "minLength": 3, "maxLength": 2 }),
        json!({ "type": "array", "minItems": 3, "maxItems": 2 }),
        json!({ "type": "object", "properties": { "a": false }, "required": ["a"] }),
        json!({ "type": "string", "pattern": "^a$", "minLength": 2 }),
        json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }),
        json!({ "$ref": "#" }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 1 }),
        json!({ "$ref": "#/$defs/a", "$defs": {
            "a": { "type": "object", "properties": { "b": { "anyOf": [{ "$ref": "#/$defs/b" }] } }, "required": ["b"] },
            "b": { "allOf": [{ "$ref": "#/$defs/a" }, {}] },
        } }),
        json!({ "type": "object", "patternProperties": { "a": {}, "b": {} } }),
    ] {
        refused(&writer, &schema(impossible));
    }
}

#[test]
fn patterns_that_can_not_be_matched_are_refused() {
    let writer = Writer::pico();
    for pattern in [
        "(",
        "[a",
        "a{2,1}",
        "(?=a)b",
        "(?!a)b",
        "(?<=a)b",
        "(a)\\1",
        "\\bword\\b",
        "*",
        "\\p{Nonsense}",
        "(?P<n>",
    ] {
        let error = refused(&writer, &schema(json!({ "type": "string", "pattern": pattern })));
        assert!(error.starts_with("the schema can't be used:"), "{pattern}: {error}");
        assert!(!error.contains("backtrace") && !error.contains("panic"), "{pattern}: {error}");
        let error = refused(&writer, &GrammarSpec::Regex(pattern.to_owned()));
        assert!(error.starts_with("the regular expression can't be used:"), "{pattern}: {error}");
    }
    refused(&writer, &GrammarSpec::Regex(String::new()));
}

/// Work and memory for a grammar have bounds, whatever a client sends.
#[test]
fn costly_schemas_end() {
    let writer = Writer::pico();
    let mut chain: serde_json::Map<String, Value> =
        (0..3000).map(|i| (format!("d{i}"), json!({ "$ref": format!("#/$defs/d{}", i + 1) }))).collect();
    chain.insert("d3000".to_owned(), json!({ "type": "null" }));
    let required: serde_json::Map<String, Value> = (0..400).map(|i| (format!("k{i}"), json!({}))).collect();
    let mut deep = json!({ "type": "null" });
    for _ in 0..100 {
        deep = json!({ "items": deep });
    }
    assert!(matches!(writer.factory.compile(&schema(deep)), Err(GrammarError::Nesting { .. })));
    let alternatives: Vec<Value> =
        (0..40).map(|i| json!({ "properties": { format!("p{i}"): { "const": i } } })).collect();
    let explosion: Vec<Value> = (0..12).map(|_| json!({ "anyOf": alternatives })).collect();
    for costly in [
        json!({ "$ref": "#/$defs/d0", "$defs": chain }),
        json!({ "type": "object", "properties": required }),
        json!({ "allOf": explosion }),
        json!({ "type": "string", "minLength": 60_000 }),
        json!({ "type": "string", "pattern": "^(a|b)*a(a|b){500}$" }),
        json!({ "type": "string", "pattern": "((a{1,100}){1,100}){1,100}" }),
        json!({ "type": "array", "minItems": 60_000, "maxItems": 65_536 }),
        json!({ "type": "integer", "multipleOf": 4093 }),
        json!({ "minimum": 1e300, "type": "number" }),
        json!({ "description": "é".repeat(80), "enum": ["é".repeat(80)] , "type": "null" }),
    ] {
        if let Ok(grammar) = writer.factory.compile(&schema(costly)) {
            writer.write(&grammar, 1);
        }
    }
    let text = "a".repeat(200_000);
    assert!(matches!(
        writer.factory.compile(&schema(json!({ "const": text }))),
        Err(GrammarError::Size { .. })
    ));
}
