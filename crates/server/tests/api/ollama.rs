//! Chats and prompts in Ollama's shape, and what front ends ask about models.

use crate::support::{Running, Setup};
use serde_json::{Value, json};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const QUESTION: &str = "What is 27 + 45?";

fn chat(more: Value) -> Value {
    with(json!({"model": "pico:latest", "messages": [{"role": "user", "content": QUESTION}]}), more)
}

fn with(mut body: Value, more: Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

/// A streamed answer, whose lines must say what the whole one does: text, thoughts, and the last line.
#[track_caller]
fn check_alike(server: &Running, path: &str, body: &Value) -> (String, String, Value) {
    let whole = server.answer(path, &with(body.clone(), json!({"stream": false})));
    let reply = server.post(path, body);
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    let lines = reply.lines();
    let place = |line: &Value| if path == CHAT { line["message"].clone() } else { line.clone() };
    let field = if path == CHAT { "content" } else { "response" };
    let all = |name: &str| {
        lines.iter().filter_map(|l| place(l)[name].as_str().map(str::to_owned)).collect::<String>()
    };
    let (last, before) = lines.split_last().unwrap();
    assert!(before.iter().all(|line| line["done"] == false) && last["done"] == true);
    assert_eq!(all(field), place(&whole)[field].as_str().unwrap());
    assert_eq!(all("thinking"), place(&whole)["thinking"].as_str().unwrap_or_default());
    for name in ["done_reason", "eval_count", "prompt_eval_count"] {
        assert_eq!(last[name], whole[name], "{name}");
    }
    for name in ["total_duration", "eval_duration", "prompt_eval_duration", "load_duration"] {
        assert!(last[name].is_u64(), "{name}");
    }
    (all(field), all("thinking"), last.clone())
}

#[test]
fn chats_stream_unless_told_otherwise() {
    let (text, thought, last) = check_alike(Running::shared(), CHAT, &chat(json!({})));
    assert_eq!((text.as_str(), thought.as_str()), ("27 + 45 = 72.", ""));
    assert_eq!((&last["done_reason"], &last["model"]), (&json!("stop"), &json!("pico:latest")));
    assert!(last["created_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn thoughts_are_apart() {
    let (text, thought, _) = check_alike(Running::shared(), CHAT, &chat(json!({"think": true})));
    assert_eq!((text.as_str(), thought.as_str()), ("27 + 45 = 72.", "27 + 40 = 67, and 67 + 5 = 72."));
}

#[test]
fn prompts_are_chats_unless_they_are_raw() {
    let server = Running::shared();
    let body = json!({"model": "pico", "prompt": QUESTION});
    assert_eq!(check_alike(server, GENERATE, &body).0, "27 + 45 = 72.");
    let raw = with(body, json!({"raw": true, "prompt": "Once upon a time", "options": {"num_predict": 8}}));
    let (text, _, last) = check_alike(server, GENERATE, &raw);
    let plain = server.answer("/v1/completions", &json!({"prompt": "Once upon a time", "max_tokens": 8}));
    assert_eq!(text, plain["choices"][0]["text"].as_str().unwrap());
    assert_eq!(last["done_reason"], "length");
}

#[test]
fn options_count() {
    let server = Running::shared();
    let (text, ..) =
        check_alike(server, CHAT, &chat(json!({"options": {"stop": [" = "], "num_predict": -1}})));
    assert_eq!(text, "27 + 45");
    let wild = |seed: u32| {
        chat(json!({"options": {"temperature": 5, "top_k": 0, "top_p": 1, "seed": seed, "num_predict": 9}}))
    };
    let (first, ..) = check_alike(server, CHAT, &wild(1));
    assert_ne!(first, check_alike(server, CHAT, &wild(2)).0);
}

#[test]
fn a_format_is_kept() {
    let server = Running::shared();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}}, "required": ["a"], "additionalProperties": false});
    let (text, ..) = check_alike(server, CHAT, &chat(json!({"format": schema})));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert!(value["a"].is_i64(), "{value}");
    let reply = server.post(CHAT, &chat(json!({"format": {"type": "object", "not": {}}})));
    assert_eq!(reply.status, 400);
    assert!(reply.json()["error"].as_str().unwrap().contains("not"));
}

#[test]
fn tools_and_their_results_reach_the_model() {
    let server = Running::roomy();
    let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}});
    let history = json!([
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "72", "tool_name": "add"},
    ]);
    let count = |more: Value| {
        let more = with(more, json!({"stream": false, "options": {"num_predict": 1}}));
        server.answer(CHAT, &chat(more))["prompt_eval_count"].as_u64().unwrap()
    };
    let plain = count(json!({}));
    let with_tools = count(json!({"tools": [tool.clone()]}));
    assert!(plain < with_tools && with_tools < count(json!({"tools": [tool], "messages": history})));
}

#[test]
fn without_a_prompt_the_model_is_there() {
    let server = Running::shared();
    for (path, body) in [
        (CHAT, json!({"model": "pico"})),
        (GENERATE, json!({"model": "pico", "prompt": "", "keep_alive": 0})),
    ] {
        let answer = server.answer(path, &body);
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")));
    }
}

#[test]
fn front_ends_learn_of_the_model() {
    let server = Running::shared();
    let tags = server.get("/api/tags").json();
    let name = tags["models"][0]["name"].as_str().unwrap();
    assert_eq!(name, "pico:latest");
    assert_eq!(server.get("/api/ps").json()["models"][0]["name"], name);
    assert!(server.get("/api/version").json()["version"].as_str().unwrap().split('.').count() == 3);
    let shown = server.answer("/api/show", &json!({"model": name}));
    let family = shown["model_info"]["general.architecture"].as_str().unwrap();
    assert_eq!(shown["model_info"][format!("{family}.context_length")], crate::support::CONTEXT);
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
}

#[test]
fn errors_are_a_text() {
    let server = Running::shared();
    for (path, body, words) in [
        (CHAT, chat(json!({"messages": [{"role": "user", "content": "a", "images": ["AA=="]}]})), "images"),
        (CHAT, chat(json!({"options": {"mirostat": 1}})), "mirostat"),
        (CHAT, chat(json!({"options": {"tfs_z": 0.5}})), "tfs_z"),
        (CHAT, chat(json!({"options": {"temperature": -1}})), "temperature"),
        (CHAT, chat(json!({"think": "maybe"})), "think"),
        (GENERATE, json!({"model": "pico", "prompt": "a", "suffix": "b"}), "suffix"),
        (GENERATE, json!({"model": "pico", "prompt": "a", "context": [1]}), "context"),
        (GENERATE, json!({"prompt": "a"}), "model"),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert!(reply.json()["error"].as_str().unwrap().contains(words), "{}", reply.text());
    }
    assert!(server.post("/api/embed", &json!({"model": "pico"})).json()["error"].is_string());
    let mut setup = Setup::of("tiny-b-q3_k_m.gguf");
    setup.server.is_strict = true;
    let strict = setup.start();
    assert_eq!(strict.post(CHAT, &chat(json!({"model": "llama3"}))).status, 404);
    strict.answer(CHAT, &chat(json!({"stream": false, "options": {"num_predict": 1}})));
}
