//! Expressions, Lark, calls of tools, and where in an answer a grammar begins.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod grammar_common;
mod text_common;

use forerun_decode::sampler::{Draw, History, SamplerError};
use forerun_decode::text::{CallFormat, ToolCalls, ToolEvent};
use forerun_decode::{GrammarBegin, GrammarError, GrammarSpec, ToolCallSpec};
use forerun_model::TokenId;
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

#[test]
fn an_expression_is_matched_as_a_whole() {
    let writer = Writer::pico();
    for pattern in ["[a-c]{3}/\\d+", "yes|no", "(?i)ok\n[^x]", "a\"b", "é{2,3}"] {
        let grammar = writer.factory.compile(&GrammarSpec::Regex(pattern.to_owned())).unwrap();
        let whole = fancy_regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        for seed in 0..20 {
            let answer = writer.write(&grammar, seed);
            assert!(
                !answer.is_ended || whole.is_match(&answer.text).unwrap(),
                "{pattern}: {:?}",
                answer.text
            );
        }
    }
}

#[test]
fn malformed_lark_is_an_error() {
    let writer = Writer::pico();
    let lark = |text: &str| GrammarSpec::Lark(text.to_owned());
    for text in [
        "",
        " \n\t",
        "root ::=",
        "root ::= \"a\"",
        "start:",
        "start: \"unclosed",
        "start: /unclosed",
        "start: missing",
        "other: \"a\"",
        "start: (\"a\"",
        "start: start",
        "start: start \"a\"",
        "start: a\na: b\nb: a",
        "start: \"a\"{3,2}",
        "start: <|im_start|>",
        "start: <[8167]>",
        "start: @other",
        "start: %json { \"not\": {} }",
        "start: /x\n/ %json { \"not\": {} }",
        "%llguidance { \"allow_invalid_utf8\": true }\nstart: \"a\"",
        "%override start: \"a\"",
        "start[temperature=0.5]: \"a\"",
        "start[max_tokens=3]: /.*/",
        "start[stop=\"x\"]: /.*/",
        "start[capture]: /.*/",
        "start::_[temperature=0.5]: \"a\"",
        "%import nothing.here\nstart: \"a\"",
        "start: \"\u{0}\"",
        "{\"grammars\": []}",
        "🦙",
    ] {
        let error = refused(&writer, &lark(text));
        assert!(!error.contains("backtrace") && !error.contains("panic"), "{text:?}: {error}");
    }
    let big = format!("start: \"{}\"", "a".repeat(1 << 20));
    assert_eq!(
        refused(&writer, &lark(&big)),
        "the Lark grammar has 1048585 bytes; at most 16384 are supported"
    );
    for text in [
        "start: \"a\" start".to_owned(),
        format!("start: {}", (0..2100).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join("|")),
        "(".repeat(15_000),
        format!("start: {}\"a\"{}", "(".repeat(7_000), ")".repeat(7_000)),
        format!("start: /{}a{}/", "(".repeat(7_000), ")".repeat(7_000)),
        format!("start: {}", "\"a\"~1..100000 ".repeat(1_000)),
        format!("start: {}", "~".repeat(15_000)),
    ] {
        let _ = writer.factory.compile(&lark(&text));
    }
}

#[test]
fn lark_grammars_are_followed() {
    let writer = Writer::pico();
    for (text, check) in [
        ("start: \"a\" | start \"b\"", "^ab*$"),
        ("start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]{1,2}/", r"^\d{1,2}(\+\d{1,2})*$"),
        ("start: line\nline[suffix=\"\\n\"]: /[a-z ]*/", "^[a-z ]*\n$"),
        ("// a comment\nstart: \"<%@\" // more: <x>\n", "^<%@$"),
    ] {
        let grammar = writer.factory.compile(&GrammarSpec::Lark(text.to_owned())).unwrap();
        let check = fancy_regex::Regex::new(check).unwrap();
        for seed in 0..20 {
            let answer = writer.write(&grammar, seed);
            assert!(!answer.is_ended || check.is_match(&answer.text).unwrap(), "{text}: {:?}", answer.text);
        }
    }
}

#[test]
fn a_prompt_says_where_the_grammar_begins() {
    assert_eq!(GrammarBegin::after("<|im_start|>assistant\n<think>\n"), GrammarBegin::AfterThoughts);
    assert_eq!(GrammarBegin::after("assistant\n<think>\n\n</think>\n\n"), GrammarBegin::AtOnce);
    assert_eq!(GrammarBegin::after("<|im_start|>assistant\n"), GrammarBegin::MayThink);
}

/// Thinking on and off, opened by the template or by the model: the grammar rules the answer and nothing else.
#[test]
fn thoughts_are_free_and_the_answer_is_not() {
    let writer = Writer::pico();
    let grammar =
        writer.factory.compile(&schema(json!({ "type": "integer", "minimum": 10, "maximum": 99 }))).unwrap();
    let number = |text: &str| text.trim().parse::<u32>().is_ok_and(|n| (10..100).contains(&n));
    for seed in 0..30 {
        let answer = writer.write(&grammar, seed);
        assert!(answer.is_ended && number(&answer.text), "{:?}", answer.text);
        let after = writer.thinking().write(&grammar.clone().beginning(GrammarBegin::AfterThoughts), seed);
        let (thoughts, rest) = after.text.split_once("</think>").unwrap();
        assert!(after.is_ended && !thoughts.is_empty() && number(rest), "{:?}", after.text);
        let may = writer.thinking().write(&grammar.clone().beginning(GrammarBegin::MayThink), seed);
        let rest = match may.text.strip_prefix("<think>") {
            Some(thoughts) => thoughts.split_once("</think>").unwrap().1,
            None => may.text.as_str(),
        };
        assert!(may.is_ended && number(rest), "{:?}", may.text);
        let at_once = writer.thinking().write(&grammar, seed);
        assert!(at_once.is_ended && number(&at_once.text), "{:?}", at_once.text);
    }
}

/// An answer that the caller takes back and goes on with elsewhere is masked as one that was never longer.
#[test]
fn what_is_taken_back_leaves_no_trace() {
    let writer = Writer::pico();
    let thinking = writer.thinking();
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "tags": { "type": "array", "items": { "enum": ["a", 3, null, [1], { "k": "v" }] }, "maxItems": 3 },
        },
        "required": ["name", "tags"],
        "additionalProperties": false,
    });
    let grammar = writer.factory.compile(&schema(person)).unwrap();
    for (begin, writer) in [
        (GrammarBegin::AtOnce, &writer),
        (GrammarBegin::AfterThoughts, &thinking),
        (GrammarBegin::MayThink, &thinking),
    ] {
        let grammar = grammar.clone().beginning(begin);
        for seed in 0..20 {
            let whole = writer.write(&grammar, seed);
            let mut sampler = writer.sampler(&grammar, seed);
            let mut history = History::default();
            for (i, &token) in whole.tokens.iter().enumerate() {
                let at = |history: &History| Draw { choice: 0, position: history.answer().len() as u64 };
                // A draft of another answer, and something outside the grammar behind it.
                for wrong in 0..(i as u64 + seed) % 5 {
                    let draw = Draw { choice: 7, ..at(&history) };
                    match sampler.sample(writer.logits(), &history, draw) {
                        Ok(drafted) if wrong < 3 => history.push(drafted),
                        _ => history.push(TokenId(u32::try_from(wrong).unwrap())),
                    }
                }
                while history.answer().len() > i {
                    history.pop();
                }
                assert_eq!(
                    sampler.sample(writer.logits(), &history, at(&history)),
                    Ok(token),
                    "seed {seed}, {begin:?}"
                );
                history.push(token);
            }
        }
    }
}

/// Tokens that end the marker and say more at once aren't drawn, and parts of it aren't the whole.
#[test]
fn thoughts_end_at_their_marker_however_it_is_cut() {
    let writer = Writer::pico();
    let grammar = writer.factory.compile(&GrammarSpec::Regex("[0-9]".into())).unwrap();
    let grammar = grammar.beginning(GrammarBegin::AfterThoughts);
    let encode = |text: &str| writer.tokenizer.encode_plain(text).unwrap();
    // As ordinary text the marker is several tokens.
    for (thoughts, ended) in [
        ("so </think>", true),
        ("so </think>\n\n", true),
        ("a < b </thin </think>", true),
        ("<</think>", true),
        ("</thi", false),
        ("</think", false),
        ("</ think>", false),
    ] {
        let mut history = History::default();
        encode(thoughts).into_iter().for_each(|token| history.push(token));
        let mut sampler = writer.sampler(&grammar, 3);
        let mut drawn: Vec<_> = (0..300)
            .map(|position| sampler.sample(writer.logits(), &history, Draw { choice: 0, position }).unwrap())
            .map(|token| writer.tokenizer.decode(&[token]))
            .collect();
        drawn.sort();
        drawn.dedup();
        let is_answer = |text: &String| text.trim().is_empty() || text.chars().all(|c| c.is_ascii_digit());
        assert_eq!(drawn.iter().all(is_answer), ended, "{thoughts:?}: {drawn:?}");
        assert!(
            ended || !drawn.iter().any(|text| text.starts_with("<|")),
            "the answer can't end in thoughts"
        );
    }
}

fn tools() -> Vec<Value> {
    let parameters = json!({
        "type": "object",
        "description": "d",
        "properties": {
            "city": { "type": "string", "description": "Where." },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
            "unit": { "enum": ["C", "F"] },
            "where": { "$ref": "#/$defs/place" },
        },
        "required": ["city", "unit"],
        "$defs": { "place": { "type": "object", "properties": { "x": { "type": "null" } }, "required": ["x"], "additionalProperties": false } },
        "additionalProperties": false,
    });
    vec![
        json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } }),
        json!({ "type": "function", "function": { "name": "now", "parameters": {} } }),
    ]
}

/// What is drawn under the tools' grammar is what the reader of calls finds, and its arguments are valid.
#[test]
fn calls_under_a_grammar_are_read_and_valid() {
    let writer = Writer::pico();
    let tools = tools();
    let parameters = &tools[0]["function"]["parameters"];
    for format in [CallFormat::Tagged, CallFormat::Json] {
        for several in [false, true] {
            let spec = ToolCallSpec { tools: tools.clone(), format, several };
            let grammar = writer.factory.compile(&GrammarSpec::ToolCalls(spec)).unwrap();
            let mut n_ended = 0;
            for seed in 0..30 {
                let answer = writer.write(&grammar, seed);
                if !answer.is_ended {
                    continue;
                }
                n_ended += 1;
                let mut reader = ToolCalls::new(&tools);
                let mut events = Vec::new();
                reader.push(&answer.text, &mut events);
                reader.finish(&mut events);
                let mut name = "";
                for event in &events {
                    match event {
                        ToolEvent::Content(text) => {
                            panic!("{format:?}, seed {seed}: {text:?} of {:?}", answer.text)
                        }
                        ToolEvent::CallStarted { name: started, .. } => name = started,
                        ToolEvent::Arguments { fragment, .. } => {
                            let value: Value = serde_json::from_str(fragment).unwrap();
                            let valid = match name {
                                "weather" => is_valid(parameters, parameters, &value),
                                _ => name == "now" && value == json!({}),
                            };
                            assert!(valid, "{format:?}, seed {seed}: {fragment}");
                        }
                        ToolEvent::CallEnded { .. } => {}
                    }
                }
                assert!(reader.n_calls() == 1 || several && reader.n_calls() > 0, "{:?}", answer.text);
            }
            assert!(n_ended > 12, "{n_ended}, {format:?}");
        }
    }
}

/// A text of the form, or calls: both come, and nothing else does.
#[test]
fn a_form_or_calls() {
    let writer = Writer::pico();
    let number = json!({ "type": "integer", "minimum": 10, "maximum": 99 });
    let two = |text: &str| text.len() == 2 && text.parse::<u32>().is_ok();
    for form in [schema(number), GrammarSpec::Regex("[1-9][0-9]".to_owned())] {
        for format in [CallFormat::Tagged, CallFormat::Json] {
            let calls = ToolCallSpec { tools: tools(), format, several: true };
            let spec = GrammarSpec::FormOrCalls { form: Box::new(form.clone()), calls };
            let grammar = writer.factory.compile(&spec).unwrap();
            let (mut n_texts, mut n_calls) = (0, 0);
            for seed in 0..60 {
                let answer = writer.write(&grammar, seed);
                let mut reader = ToolCalls::new(&tools());
                let mut events = Vec::new();
                reader.push(&answer.text, &mut events);
                reader.finish(&mut events);
                if answer.is_ended && reader.n_calls() == 0 {
                    assert!(two(&answer.text), "{form:?}, seed {seed}: {:?}", answer.text);
                    n_texts += 1;
                } else if answer.is_ended {
                    let is_text = |event: &ToolEvent| matches!(event, ToolEvent::Content(_));
                    assert!(!events.iter().any(is_text), "{form:?}, seed {seed}: {:?}", answer.text);
                    n_calls += 1;
                }
            }
            assert!(n_texts > 0 && n_calls > 0, "{form:?}, {format:?}: {n_texts} texts, {n_calls} calls");
        }
    }
    let calls = || ToolCallSpec { tools: tools(), format: CallFormat::Json, several: true };
    let impossible = Box::new(schema(json!({ "type": "integer", "minimum": 3, "maximum": 2 })));
    refused(&writer, &GrammarSpec::FormOrCalls { form: impossible, calls: calls() });
    let lark = Box::new(GrammarSpec::Lark("start: \"a\"".to_owned()));
    assert_eq!(
        refused(&writer, &GrammarSpec::FormOrCalls { form: lark, calls: calls() }),
        "the Lark grammar can't be used: it can't stand beside calls of tools; a schema or a regular expression can"
    );
}

/// An answer whose lexer has too much to do ends, and no other of the same grammar does.
#[test]
fn a_runaway_is_one_answers_own() {
    let writer = Writer::pico();
    let costly = GrammarSpec::Regex(r".*(ab|bc|cd|de).{20,60}(x|y)\w{30}".to_owned());
    let grammar = writer.factory.compile(&costly).unwrap();
    let before = writer.write(&grammar, 1);
    let mut sampler = writer.sampler(&grammar, 2);
    let mut history = History::default();
    // All tokens are alike to it, so it goes everywhere.
    let mut logits = vec![0.0; writer.logits().len()];
    let ends = writer.tokenizer.vocabulary().end_ids();
    ends.iter().for_each(|end| logits[end.idx()] = -20.0);
    let broken = (0..5000).find_map(|position| {
        let drawn = sampler.sample(&logits, &history, Draw { choice: 0, position });
        drawn.map(|token| history.push(token)).err()
    });
    let broken = broken.unwrap();
    assert!(matches!(broken, SamplerError::Grammar(GrammarError::Runaway { .. })), "{broken}");
    let draw = Draw { choice: 0, position: 0 };
    assert_eq!(sampler.sample(&logits, &History::default(), draw), Err(broken), "it is final");
    assert_eq!(writer.write(&grammar, 1).tokens, before.tokens);
}

#[test]
fn tools_that_can_not_be_bound_are_refused() {
    let writer = Writer::pico();
    let call = |parameters: Value, format| {
        let tools = vec![json!({ "name": "f", "parameters": parameters })];
        GrammarSpec::ToolCalls(ToolCallSpec { tools, format, several: false })
    };
    let text = json!({ "type": "object", "properties": { "a": { "type": "string", "pattern": "^x$" } } });
    assert_eq!(
        refused(&writer, &call(text.clone(), CallFormat::Tagged)),
        "the tools can't be used: f: a string \"a\" in tags can have an `enum`, but no other limits"
    );
    writer.factory.compile(&call(text, CallFormat::Json)).unwrap();
    for format in [CallFormat::Tagged, CallFormat::Json] {
        for parameters in [json!({ "not": {} }), json!({ "type": "array" }), json!(3), json!(false)] {
            refused(&writer, &call(parameters, format));
        }
        refused(&writer, &GrammarSpec::ToolCalls(ToolCallSpec { tools: vec![], format, several: true }));
        refused(
            &writer,
            &GrammarSpec::ToolCalls(ToolCallSpec { tools: vec![json!({})], format, several: true }),
        );
    }
    for parameters in [
        json!({ "anyOf": [{ "required": ["a"] }] }),
        json!({ "required": ["a"] }),
        json!({ "properties": { "a>b": {} } }),
        json!({ "properties": { "a": { "enum": ["x", 1] } } }),
    ] {
        refused(&writer, &call(parameters, CallFormat::Tagged));
    }
}
