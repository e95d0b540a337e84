//! Tools that must be called, and answers that must have a form, in OpenAI's chat.

use crate::support::{Running, Setup};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const PLAIN: &str = "/v1/completions";
const QUESTION: &str = "What is 27 + 45?";

fn ask(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200});
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

fn sum() -> Value {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 999});
    json!({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"], "additionalProperties": false})
}

fn add() -> Value {
    json!({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": sum()}})
}

fn formatted(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}})
}

/// The message that chunks make, and how it ended.
fn gathered(chunks: &[Value]) -> (Value, Value) {
    let (mut content, mut thought, mut finish) = (String::new(), String::new(), Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        thought += delta["reasoning_content"].as_str().unwrap_or_default();
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(piece["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                assert!(piece["id"].is_string() && piece["type"] == "function");
                calls.push(piece["function"].clone());
            } else {
                let all = calls[index]["arguments"].as_str().unwrap().to_owned();
                calls[index]["arguments"] = (all + piece["function"]["arguments"].as_str().unwrap()).into();
            }
        }
        finish = choice["finish_reason"].clone();
    }
    (json!({"content": content, "thought": thought, "calls": calls}), finish)
}

/// A message, and how it ended: the same whole and streamed.
#[track_caller]
fn check_alike(server: &Running, body: &Value) -> (Value, Value) {
    let whole = server.answer(CHAT, body);
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    let calls: Vec<_> =
        message["tool_calls"].as_array().into_iter().flatten().map(|call| call["function"].clone()).collect();
    let text = |field: &str| message[field].as_str().unwrap_or_default();
    let shown = json!({"content": text("content"), "thought": text("reasoning_content"), "calls": calls});
    let found = (shown, choice["finish_reason"].clone());
    assert_eq!(gathered(&server.chunks(CHAT, body)), found, "{body}");
    found
}

#[track_caller]
fn check_sum(text: &Value) {
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!(value["a"].is_i64() && value["b"].is_i64() && value.as_object().unwrap().len() == 2, "{value}");
}

#[test]
fn a_tool_that_must_be_called_is_called() {
    let server = Running::roomy();
    let other = json!({"type": "function", "function": {"name": "other", "parameters": sum()}});
    for (more, thinks) in [
        (json!({"tool_choice": "required", "parallel_tool_calls": false, "tools": [add()]}), false),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": [other, add()]}),
            false,
        ),
        (
            json!({"tool_choice": "required", "parallel_tool_calls": false, "tools": [add()], "reasoning_effort": "low"}),
            true,
        ),
    ] {
        let (message, finish) = check_alike(server, &ask(more.clone()));
        assert_eq!((&finish, &message["content"]), (&json!("tool_calls"), &json!("")), "{more}: {message}");
        assert_eq!(message["calls"].as_array().unwrap().len(), 1, "{more}: {message}");
        assert_eq!(message["calls"][0]["name"], "add");
        check_sum(&message["calls"][0]["arguments"]);
        assert_eq!(!message["thought"].as_str().unwrap().is_empty(), thinks, "{more}: {message}");
    }
}

#[test]
fn a_call_without_a_choice_to_call_is_refused() {
    let server = Running::roomy();
    for (param, more) in [
        ("tool_choice", json!({"tool_choice": "required"})),
        ("tool_choice", json!({"tool_choice": "always", "tools": [add()]})),
        ("tool_choice.type", json!({"tool_choice": {"type": "custom"}, "tools": [add()]})),
        (
            "tool_choice",
            json!({"tool_choice": {"type": "function", "function": {"name": "sub"}}, "tools": [add()]}),
        ),
        ("grammar", json!({"tools": [add()], "grammar": "start: \"a\""})),
    ] {
        let (status, error) = server.refusal(CHAT, &ask(more.clone()));
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{more}: {error}");
    }
}

/// The model says something in the form, or calls; never anything else.
#[test]
fn beside_tools_an_answer_has_its_form_or_calls() {
    let server = Running::roomy();
    for (form, is_kept) in [
        (json!({"response_format": formatted(&sum())}), (|text| check_sum(&text.into())) as fn(&str)),
        (json!({"response_format": {"type": "json_object"}}), |text| {
            assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
        }),
        (json!({"regex": "[ab]{3}c"}), |text| assert_eq!((text.len(), &text[3..]), (4, "c"))),
    ] {
        let mut body = form;
        body["tools"] = json!([add()]);
        let (message, finish) = check_alike(server, &ask(body.clone()));
        let calls = message["calls"].as_array().unwrap();
        calls.iter().for_each(|call| check_sum(&call["arguments"]));
        match finish.as_str().unwrap() {
            "stop" => is_kept(message["content"].as_str().unwrap()),
            "tool_calls" => assert!(!calls.is_empty() && message["content"] == "", "{message}"),
            // What was cut off began well.
            cut => {
                assert!(cut == "length" && message["content"].as_str().unwrap().starts_with('{'), "{message}")
            }
        }
    }
}

/// More of them wait than are compiled at once, the same ones and others, and each answer keeps to its own.
#[test]
fn answers_that_wait_keep_to_their_own_forms() {
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.engine.sequences.n = std::num::NonZeroUsize::new(2).unwrap();
    setup.desk.queue_max = 64;
    let server = setup.start();
    std::thread::scope(|scope| {
        for i in 0..12 {
            let server = &server;
            scope.spawn(move || {
                let schema = json!({"type": "object", "properties": {format!("key{}", i % 5): {"const": i}},
                    "required": [format!("key{}", i % 5)], "additionalProperties": false});
                let answer = server.answer(CHAT, &ask(json!({"json_schema": schema, "n": 1 + i % 2})));
                let choices = answer["choices"].as_array().unwrap();
                assert_eq!(choices.len(), 1 + i % 2);
                for choice in choices {
                    let content: Value =
                        serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
                    assert_eq!(content, json!({format!("key{}", i % 5): i}));
                }
            });
        }
    });
}

/// Two schemas that are equal to a program, but not in the order of what they list.
#[test]
fn the_order_of_a_schema_is_its_own() {
    let server = Running::shared();
    for (first, then) in [("a", "b"), ("b", "a")] {
        let schema = json!({"type": "object", "properties": {first: {"const": 1}, then: {"const": 2}},
            "required": [first, then], "additionalProperties": false});
        let body = ask(json!({"json_schema": schema}));
        let content = check_alike(server, &body).0["content"].as_str().unwrap().to_owned();
        assert!(content.find(first) < content.find(then), "{content}");
    }
}

/// Four steps, as an agent sends them back: the model thought, called, thought again, and answered.
#[test]
fn reason_tool_reason_answer() {
    let server = Running::roomy();
    let called = json!({"role": "assistant", "content": null, "reasoning_content": "I add.", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 27, \"b\": 45}"}}]});
    let mut messages = vec![
        json!({"role": "user", "content": QUESTION}),
        called.clone(),
        json!({"role": "tool", "tool_call_id": "c1", "content": "72"}),
    ];
    let mut told = Vec::new();
    for effort in ["high", "none"] {
        let body =
            json!({"messages": messages, "tools": [add()], "reasoning_effort": effort, "max_tokens": 40});
        let (message, finish) = check_alike(server, &body);
        assert!(!finish.is_null());
        told.push(message);
    }
    messages
        .push(json!({"role": "assistant", "content": told[1]["content"], "reasoning_content": "72 it is."}));
    messages.push(json!({"role": "user", "content": "Spell sun."}));
    messages.push(called);
    messages.push(json!({"role": "tool", "tool_call_id": "c1", "content": "s-u-n"}));
    let body = json!({"messages": messages, "tools": [add()], "reasoning_effort": "high", "max_tokens": 40});
    check_alike(server, &body);
}

#[test]
fn schemas_hold_with_thoughts_and_without() {
    let server = Running::shared();
    for effort in ["none", "high"] {
        let body = ask(json!({"response_format": formatted(&sum()), "reasoning_effort": effort}));
        let (message, finish) = check_alike(server, &body);
        assert_eq!(finish, "stop", "{message}");
        check_sum(&message["content"]);
        assert_eq!(message["thought"].as_str().unwrap().is_empty(), effort == "none");
    }
}

#[test]
fn every_kind_of_form_is_enforced() {
    let server = Running::shared();
    let content = |more: Value| check_alike(server, &ask(more)).0["content"].as_str().unwrap().to_owned();
    assert_eq!(content(json!({"regex": "[ab]{3}c"})).len(), 4);
    assert_eq!(
        content(json!({"grammar": "start: \"yes\" | \"no\""})).trim_matches(['y', 'e', 's', 'n', 'o']),
        ""
    );
    check_sum(&content(json!({"json_schema": sum()})).into());
    check_sum(&content(json!({"guided_json": sum().to_string()})).into());
    check_sum(&content(json!({"response_format": {"type": "json_object", "schema": sum()}})).into());
    let plain = server.answer(PLAIN, &json!({"prompt": "Once", "regex": "[0-9]{5}", "max_tokens": 20}));
    assert_eq!(plain["choices"][0]["text"].as_str().unwrap().trim_matches(char::is_numeric), "");
    let two = json!({"regex": "a", "grammar": "start: \"a\""});
    assert_eq!(server.refusal(CHAT, &ask(two)).0, 400);
}

/// What can't be enforced is never passed over.
#[test]
fn a_form_that_cannot_be_enforced_is_refused_before_anything_is_queued() {
    // One of its own, for what it counts.
    let server = Setup::of("pico-q4_k_m.gguf").start();
    let before = server.desk.status().totals;
    let left_recursion = "start: start \"a\"";
    let large = format!("start: \"{}\"", "a".repeat(1 << 20));
    for (param, more) in [
        ("grammar", json!({"grammar": "root ::="})),
        ("grammar", json!({"grammar": "root ::= \"unclosed"})),
        ("grammar", json!({"grammar": "start: \"unclosed"})),
        ("grammar", json!({"grammar": left_recursion})),
        ("grammar", json!({"grammar": large})),
        ("grammar", json!({"grammar": 5})),
        ("regex", json!({"regex": "(a"})),
        ("regex", json!({"regex": "a(?=b)"})),
        ("json_schema", json!({"json_schema": {"type": "unicorn"}})),
        (
            "response_format.json_schema.schema",
            json!({"response_format": formatted(&json!({"uniqueItems": true, "type": "array"}))}),
        ),
        (
            "response_format.json_schema.schema",
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
        ),
        ("response_format.type", json!({"response_format": {"type": "xml"}})),
    ] {
        for is_streamed in [false, true] {
            let mut body = ask(more.clone());
            body["stream"] = is_streamed.into();
            let shown: String = more.to_string().chars().take(80).collect();
            let reply = server.post(CHAT, &body);
            assert_eq!(reply.status, 400, "{shown}: {}", reply.text());
            assert_eq!(reply.json()["error"]["param"], param, "{shown}: {}", reply.text());
        }
    }
    let after = server.desk.status().totals;
    assert_eq!((before.prompt_tokens, before.failed), (after.prompt_tokens, after.failed));
}

/// A pattern with an escape that JSON's own grammar of patterns doesn't know.
#[test]
fn a_pattern_is_kept_or_refused() {
    let server = Running::shared();
    let schema = json!({"type": "string", "pattern": "^hello there indeed\\!$"});
    let reply = server.post(CHAT, &ask(json!({"response_format": formatted(&schema)})));
    if reply.status == 200 {
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "\"hello there indeed!\"");
    } else {
        assert_eq!(reply.status, 400);
    }
}
