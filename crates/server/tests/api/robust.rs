//! Whatever JSON comes: an answer, or a refusal that says why; never a fault of the server's.

use crate::support::Running;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Fields that the endpoints know, and one that they don't.
const FIELDS: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "n",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "response_format",
    "chat_template_kwargs",
    "reasoning_effort",
    "logit_bias",
    "echo",
    "suffix",
    "best_of",
    "prompt_progress",
    "content",
    "tokens",
    "with_pieces",
    "parse_special",
    "modalities",
    "unknown",
];
const PATHS: &[&str] = &["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"];

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..70).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z<>|_ é🦙\u{0}\u{10ffff}]{0,12}".prop_map(Value::from),
        prop_oneof![
            Just("user"),
            Just("assistant"),
            Just("tool"),
            Just("text"),
            Just("function"),
            Just("</think>"),
            Just("auto"),
            Just("none")
        ]
        .prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 24, 5, |inner| {
        let keys = prop_oneof![
            Just("role"),
            Just("content"),
            Just("type"),
            Just("text"),
            Just("function"),
            Just("name"),
            Just("arguments"),
            Just("tool_calls"),
            Just("enable_thinking"),
            Just("include_usage"),
            Just("parameters")
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..5).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>()
            )),
        ]
    })
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop_oneof![
        Just("system"),
        Just("user"),
        Just("assistant"),
        Just("tool"),
        Just("developer"),
        Just("other")
    ];
    (role, value(), prop::option::of(value()))
        .prop_map(|(role, content, calls)| json!({"role": role, "content": content, "tool_calls": calls}))
}

fn body() -> impl Strategy<Value = Value> {
    let fields = prop::collection::vec((prop::sample::select(FIELDS), value()), 0..8);
    let messages = prop::option::of(prop::collection::vec(message(), 0..4));
    let prompt = prop::option::of(value());
    (fields, messages, prompt).prop_map(|(fields, messages, prompt)| {
        let mut body: Map<String, Value> = fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        if let Some(messages) = messages {
            body.insert("messages".into(), messages.into());
        }
        if let Some(prompt) = prompt {
            body.insert("prompt".into(), prompt);
        }
        // Answers are short, or the test would be long; wrong lengths have tests of their own.
        body.insert("max_tokens".into(), 1.into());
        body.remove("max_completion_tokens");
        Value::Object(body)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_body_is_answered_or_refused(path in prop::sample::select(PATHS), body in body()) {
        let server = Running::shared();
        let reply = server.post(path, &body);
        prop_assert!(reply.status < 500, "{path} {body}: {} {}", reply.status, reply.text());
        if reply.status != 200 {
            let error = &reply.json()["error"];
            prop_assert!(error["message"].as_str().is_some_and(|words| !words.is_empty()), "{error}");
            prop_assert!(error["type"].is_string());
        } else if reply.header("content-type") == Some("text/event-stream") {
            prop_assert!(!reply.text().contains("\"error\""), "{path} {body}: {}", reply.text());
        }
    }
}

#[test]
fn the_server_works_after_all_that() {
    let server = Running::shared();
    let body = json!({"messages": [{"role": "user", "content": "What is 27 + 45?"}], "max_tokens": 20});
    assert_eq!(server.answer(PATHS[0], &body)["choices"][0]["message"]["content"], "27 + 45 = 72.");
    server.until_idle();
}
