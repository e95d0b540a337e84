//! Messages in Anthropic's shape: whole, streamed, counted, refused.

use crate::support::wire::Request;
use crate::support::{Running, Setup};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";
const QUESTION: &str = "What is 27 + 45?";

fn ask(more: Value) -> Value {
    let mut body =
        json!({"model": "pico", "max_tokens": 200, "messages": [{"role": "user", "content": QUESTION}]});
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

fn add() -> Value {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 999});
    let schema = json!({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"], "additionalProperties": false});
    json!({"name": "add", "description": "Adds.", "input_schema": schema})
}

/// The message that a stream's events make.
fn gathered(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut json = String::new();
    for (name, data) in events {
        assert_eq!(data["type"], name.as_str());
        let index = usize::try_from(data["index"].as_u64().unwrap_or(0)).unwrap();
        match name.as_str() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(data["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let delta = &data["delta"];
                let block = &mut message["content"][index];
                let (field, piece) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "input_json_delta" => {
                        json += delta["partial_json"].as_str().unwrap();
                        continue;
                    }
                    other => panic!("{other}"),
                };
                block[field] =
                    format!("{}{}", block[field].as_str().unwrap(), piece.as_str().unwrap()).into();
            }
            "content_block_stop" if message["content"][index]["type"] == "tool_use" => {
                message["content"][index]["input"] = serde_json::from_str(&json).unwrap();
            }
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = data["delta"][field].clone();
                }
                message["usage"] = data["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

/// Whole and streamed answers are the same, but for names, times, and what the one before left to be reused.
#[track_caller]
fn check_alike(server: &Running, body: &Value) -> Value {
    let mut whole = server.answer(PATH, body);
    let mut streamed = gathered(&server.named_events(PATH, body));
    let message = whole.clone();
    for one in [&mut whole, &mut streamed] {
        let one = one.as_object_mut().unwrap();
        one.remove("id");
        one.remove("timings");
        let usage = &one["usage"];
        let read =
            usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
        one["usage"] = json!([read, usage["output_tokens"]]);
        for block in one["content"].as_array_mut().unwrap() {
            block.as_object_mut().unwrap().remove("id");
        }
    }
    assert_eq!(whole, streamed);
    message
}

#[test]
fn a_question_is_answered() {
    let message = check_alike(Running::shared(), &ask(json!({})));
    assert_eq!(message["content"], json!([{"type": "text", "text": "27 + 45 = 72."}]));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("end_turn"), &Value::Null));
}

#[test]
fn events_come_in_their_order() {
    let events = Running::shared()
        .named_events(PATH, &ask(json!({"thinking": {"type": "enabled", "budget_tokens": 99}})));
    let mut names: Vec<_> = events
        .iter()
        .map(|(name, data)| match data["delta"]["type"].as_str() {
            Some(kind) => kind,
            None => name,
        })
        .collect();
    names.dedup();
    let expect = [
        "message_start",
        "content_block_start",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "content_block_start",
        "text_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expect);
}

#[test]
fn thoughts_are_a_block_that_can_come_back() {
    let server = Running::shared();
    let message = check_alike(server, &ask(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})));
    assert_eq!(message["content"][0]["thinking"], "27 + 40 = 67, and 67 + 5 = 72.");
    assert_eq!(message["content"][1]["text"], "27 + 45 = 72.");
    let history = json!([
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": "Spell sun."},
    ]);
    check_alike(server, &ask(json!({"messages": history})));
}

#[test]
fn a_stop_sequence_is_named() {
    let message = check_alike(Running::shared(), &ask(json!({"stop_sequences": ["never", " = "]})));
    assert_eq!(message["content"][0]["text"], "27 + 45");
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!(" = "))
    );
    let message = check_alike(Running::shared(), &ask(json!({"max_tokens": 2})));
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
}

#[test]
fn tools_are_called_where_they_must_be() {
    let server = Running::roomy();
    for choice in
        [json!({"type": "tool", "name": "add"}), json!({"type": "any", "disable_parallel_tool_use": true})]
    {
        let message = check_alike(server, &ask(json!({"tools": [add()], "tool_choice": choice})));
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        let call = &message["content"][0];
        assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("add")));
        assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
        assert!(call["input"]["a"].is_i64() && call["input"]["b"].is_i64(), "{call}");
    }
}

#[test]
fn results_of_tools_reach_the_model() {
    let server = Running::roomy();
    let history = |result: Value| {
        json!([
            {"role": "user", "content": "Add."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 2}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": result}]},
        ])
    };
    let count = |result: Value| {
        let body = json!({"messages": history(result), "tools": [add()]});
        server.answer("/v1/messages/count_tokens", &body)["input_tokens"].as_u64().unwrap()
    };
    let text = count(json!("72 it is"));
    assert_eq!(text, count(json!([{"type": "text", "text": "72 it is"}])));
    assert!(text > count(json!("")));
    check_alike(server, &ask(json!({"messages": history(json!("72")), "tools": [add()], "max_tokens": 12})));
}

#[test]
fn counted_tokens_are_those_that_are_read() {
    let server = Running::shared();
    let body = ask(json!({"system": [{"type": "text", "text": "Be short."}], "max_tokens": 1}));
    let counted = server.answer("/v1/messages/count_tokens", &body);
    let usage = server.answer(PATH, &body)["usage"].clone();
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, json!({"input_tokens": read}));
}

#[test]
fn a_schema_is_kept() {
    let schema = add()["input_schema"].clone();
    let body = ask(json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}));
    let message = check_alike(Running::shared(), &body);
    let value: Value = serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(value["a"].is_i64() && value["b"].is_i64(), "{value}");
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let server = Running::roomy();
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    let prefill = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let stray = json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9"}]}]);
    for (param, more) in [
        ("messages[0].content[0].type", json!({"messages": image})),
        ("messages", json!({"messages": prefill})),
        ("messages[0].content", json!({"messages": stray})),
        ("messages", json!({"messages": []})),
        ("messages[0].role", json!({"messages": [{"role": "tool", "content": "a"}]})),
        ("tools[0].type", json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})),
        ("tools[0].input_schema", json!({"tools": [{"name": "add"}]})),
        ("tool_choice", json!({"tools": [add()], "tool_choice": {"type": "tool", "name": "sub"}})),
        ("tool_choice.type", json!({"tool_choice": {"type": "must"}})),
        ("thinking.type", json!({"thinking": {"type": "maybe"}})),
        ("thinking.budget_tokens", json!({"thinking": {"type": "enabled"}})),
        ("mcp_servers", json!({"mcp_servers": [{"name": "x"}]})),
        ("container", json!({"container": "c"})),
        ("max_tokens", json!({"max_tokens": null})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("temperature", json!({"temperature": -1})),
        ("stop_sequences", json!({"stop_sequences": 5})),
        ("logit_bias", json!({"logit_bias": {"1": 1}})),
        ("mirostat", json!({"mirostat": 2})),
        ("response_format", json!({"response_format": {"type": "json_object"}})),
    ] {
        let reply = server.post(PATH, &ask(more.clone()));
        assert_eq!(reply.status, 400, "{more}: {}", reply.text());
        let body = reply.json();
        assert_eq!(
            (&body["type"], &body["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert_eq!(body["error"]["param"], param, "{body}");
        assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    }
}

#[test]
fn errors_have_anthropics_names() {
    let mut setup = Setup::of("tiny-b-q3_k_m.gguf");
    setup.server.keys = forerun_server::Keys::new(["right"]).unwrap();
    setup.server.limits.per_minute = std::num::NonZeroU32::new(2);
    let server = setup.start();
    let send = |key: &str| {
        let request = Request::post(PATH, &ask(json!({"max_tokens": 1})));
        request.with("x-api-key", key).with("anthropic-version", "2023-06-01").send(server.address)
    };
    let kind = |reply: crate::support::wire::Reply| {
        (reply.status, reply.json()["error"]["type"].as_str().unwrap().to_owned())
    };
    assert_eq!(kind(send("wrong")), (401, "authentication_error".into()));
    assert_eq!((send("right").status, send("right").status), (200, 200));
    let limited = send("right");
    assert!(limited.header("retry-after").is_some());
    assert_eq!(kind(limited), (429, "rate_limit_error".into()));
    let missing = Running::shared().get("/v1/messages/batches");
    assert_eq!(kind(missing), (404, "not_found_error".into()));
}
