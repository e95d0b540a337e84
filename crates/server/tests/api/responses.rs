//! Responses in OpenAI's shape, without memory: whole, streamed, refused.

use crate::support::Running;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";
const QUESTION: &str = "What is 27 + 45?";

fn ask(more: Value) -> Value {
    let mut body = json!({"model": "pico", "input": QUESTION, "max_output_tokens": 200});
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

fn add() -> Value {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 999});
    let schema = json!({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"], "additionalProperties": false});
    json!({"type": "function", "name": "add", "description": "Adds.", "parameters": schema})
}

/// Checks that a stream says the same as its last event, and that as a whole answer; returns the latter.
#[track_caller]
fn check_alike(server: &Running, body: &Value) -> Value {
    let whole = server.answer(PATH, body);
    let events = server.named_events(PATH, body);
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
    }
    let (last, final_response) = events.last().map(|(name, data)| (name, &data["response"])).unwrap();
    assert_eq!(*last, format!("response.{}", whole["status"].as_str().unwrap()));
    let shape = |response: &Value| -> Vec<Value> {
        let items = response["output"].as_array().unwrap().iter();
        items
            .map(|item| {
                json!([item["type"], item["status"], item["content"], item["name"], item["arguments"]])
            })
            .collect()
    };
    assert_eq!(shape(&whole), shape(final_response));
    assert_eq!(whole["usage"]["total_tokens"], final_response["usage"]["total_tokens"]);
    for (index, item) in final_response["output"].as_array().unwrap().iter().enumerate() {
        let of = |suffix: &str| {
            let about =
                |(name, data): &&(String, Value)| name.ends_with(suffix) && data["output_index"] == index;
            events.iter().filter(about).map(|(_, data)| data).collect::<Vec<_>>()
        };
        let deltas: String = of(".delta").iter().map(|data| data["delta"].as_str().unwrap()).collect();
        let want = item["arguments"].as_str().or(item["content"][0]["text"].as_str()).unwrap();
        assert_eq!(deltas, want);
        assert_eq!(of("output_item.added")[0]["item"]["id"], item["id"]);
        assert_eq!(&of("output_item.done")[0]["item"], item);
    }
    whole
}

#[test]
fn a_question_is_answered() {
    let response = check_alike(Running::shared(), &ask(json!({})));
    assert_eq!(response["output"][0]["content"][0]["text"], "27 + 45 = 72.");
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
    let usage = &response["usage"];
    assert_eq!(
        usage["total_tokens"],
        usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap()
    );
    assert!(usage["input_tokens_details"]["cached_tokens"].is_u64());
}

#[test]
fn thoughts_are_an_item_of_their_own() {
    let server = Running::shared();
    let response = check_alike(server, &ask(json!({"reasoning": {"effort": "high"}})));
    assert_eq!(response["output"][0]["type"], "reasoning");
    assert_eq!(response["output"][0]["content"][0]["text"], "27 + 40 = 67, and 67 + 5 = 72.");
    assert_eq!(response["output"][1]["content"][0]["text"], "27 + 45 = 72.");
    let events = server.named_events(PATH, &ask(json!({"reasoning": {"effort": "high"}})));
    let mut names: Vec<_> = events.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).collect();
    names.dedup();
    let expect = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, expect);
}

#[test]
fn an_answer_that_is_cut_is_incomplete() {
    let response = check_alike(Running::shared(), &ask(json!({"max_output_tokens": 2})));
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
}

#[test]
fn tools_are_called_and_their_results_read() {
    let server = Running::roomy();
    let forced = json!({"tools": [add()], "tool_choice": {"type": "function", "name": "add"}});
    let response = check_alike(server, &ask(forced));
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("add")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["a"].is_i64() && arguments["b"].is_i64());
    let history = json!([
        {"role": "user", "content": QUESTION},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "72"},
    ]);
    check_alike(server, &ask(json!({"input": history, "tools": [add()], "max_output_tokens": 12})));
}

#[test]
fn a_schema_is_kept() {
    let format = json!({"type": "json_schema", "name": "sum", "schema": add()["parameters"], "strict": true});
    let response = check_alike(Running::shared(), &ask(json!({"text": {"format": format}})));
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!(value["a"].is_i64() && value["b"].is_i64(), "{value}");
}

#[test]
fn instructions_come_before_the_input() {
    let server = Running::shared();
    let tokens = |more: Value| server.answer(PATH, &ask(more))["usage"]["input_tokens"].as_u64().unwrap();
    let plain = tokens(json!({"max_output_tokens": 1}));
    let instructed = tokens(json!({"max_output_tokens": 1, "instructions": "Be short."}));
    let items = json!([{"role": "developer", "content": "Be short."}, {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]);
    assert!(instructed > plain);
    assert_eq!(tokens(json!({"max_output_tokens": 1, "input": items})), instructed);
}

#[test]
fn what_needs_memory_or_is_not_there_is_refused_by_name() {
    let server = Running::shared();
    for (param, more) in [
        ("previous_response_id", json!({"previous_response_id": "resp_1"})),
        ("conversation", json!({"conversation": "conv_1"})),
        ("background", json!({"background": true})),
        ("store", json!({"store": true})),
        ("prompt", json!({"prompt": {"id": "p"}})),
        ("truncation", json!({"truncation": "auto"})),
        ("include[0]", json!({"include": ["message.output_text.logprobs"]})),
        ("input[0].type", json!({"input": [{"type": "item_reference", "id": "x"}]})),
        (
            "input[0].content[0].type",
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ),
        ("input", json!({"input": []})),
        ("input", json!({"input": null})),
        ("tools[0].type", json!({"tools": [{"type": "web_search"}]})),
        (
            "text.format.schema",
            json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}),
        ),
        ("max_output_tokens", json!({"max_output_tokens": 0})),
        ("reasoning.effort", json!({"reasoning": {"effort": "extreme"}})),
        ("min_tokens", json!({"min_tokens": 3})),
        ("max_completion_tokens", json!({"max_completion_tokens": 3})),
    ] {
        let (status, error) = server.refusal(PATH, &ask(more.clone()));
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{more}: {error}");
    }
    server.answer(
        PATH,
        &ask(json!({"store": false, "include": ["reasoning.encrypted_content"], "max_output_tokens": 1})),
    );
}
