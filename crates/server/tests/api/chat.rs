//! Chats in OpenAI's shape: whole, streamed, with every field that is taken.

use crate::support::{Running, Setup, chat_text};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn ask(question: &str) -> Value {
    json!({"model": "pico", "messages": [{"role": "user", "content": question}], "max_tokens": 40})
}

fn with(mut body: Value, more: Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn a_question_is_answered() {
    let server = Running::shared();
    let answer = server.answer(CHAT, &ask("What is 27 + 45?"));
    assert_eq!(content(&answer), "27 + 45 = 72.");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "pico");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let usage = &answer["usage"];
    let total = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], total);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_reused_tokens"]);
    let timings = &answer["timings"];
    assert_eq!(timings["prompt_tokens"], usage["prompt_tokens"]);
    assert_eq!(timings["decode_tokens"], usage["completion_tokens"]);
    assert!(timings["memory"]["dense"].as_u64().unwrap() > 0 && timings["decisions"].is_array());
}

#[test]
fn a_stream_holds_the_same_text_as_a_whole_answer() {
    let server = Running::shared();
    for question in ["What is 27 + 45?", "Spell banana.", "What is the capital of Japan?"] {
        let whole = server.answer(CHAT, &ask(question));
        let chunks = server.chunks(CHAT, &ask(question));
        assert_eq!(chat_text(&chunks).1, content(&whole), "{question}");
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
        assert!(last["timings"]["decode_tokens"].as_u64().unwrap() > 0);
        assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk.get("usage").is_none()));
    }
}

#[test]
fn usage_comes_last_in_a_stream_that_asks_for_it() {
    let server = Running::shared();
    let body = with(ask("Spell sun."), json!({"stream_options": {"include_usage": true}}));
    let chunks = server.chunks(CHAT, &body);
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    assert!(before.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
}

#[test]
fn thoughts_are_apart_and_can_be_turned_on_in_two_ways() {
    let server = Running::shared();
    let on = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let answer = server.answer(CHAT, &with(ask("What is 27 + 45?"), on.clone()));
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "27 + 45 = 72.");
    assert_eq!(message["reasoning_content"], "27 + 40 = 67, and 67 + 5 = 72.");
    let thoughts = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(thoughts > 0 && thoughts < answer["usage"]["completion_tokens"].as_u64().unwrap());
    let (thought, text) = chat_text(&server.chunks(CHAT, &with(ask("What is 27 + 45?"), on)));
    assert_eq!((thought.as_str(), text.as_str()), ("27 + 40 = 67, and 67 + 5 = 72.", "27 + 45 = 72."));
    let effort = server.answer(CHAT, &with(ask("What is 27 + 45?"), json!({"reasoning_effort": "high"})));
    assert_eq!(effort["choices"][0]["message"], *message);
    let none = server.answer(CHAT, &with(ask("What is 27 + 45?"), json!({"reasoning_effort": "none"})));
    assert_eq!(none["choices"][0]["message"].get("reasoning_content"), None);
}

#[test]
fn reading_a_prompt_can_be_watched() {
    let server = Running::shared();
    let body = with(ask("Spell moon."), json!({"prompt_progress": true}));
    let chunks = server.chunks(CHAT, &body);
    let progress: Vec<_> =
        chunks.iter().map(|chunk| &chunk["prompt_progress"]).filter(|p| !p.is_null()).collect();
    let last = progress.last().unwrap();
    assert_eq!(last["read"], last["total"]);
    assert!(last["reused"].is_u64() && last.get("estimate_ms").is_some());
    let first_text = chunks
        .iter()
        .position(|chunk| chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|t| !t.is_empty()));
    let last_progress = chunks.iter().rposition(|chunk| !chunk["prompt_progress"].is_null());
    assert!(last_progress < first_text, "progress comes before the first token");
}

#[test]
fn the_same_seed_gives_the_same_answer_and_choices_differ() {
    let server = Running::shared();
    let body = with(
        ask("Tell me a story."),
        json!({"temperature": 1.5, "top_k": 0, "top_p": 1, "seed": 7, "n": 3, "max_tokens": 12}),
    );
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let once = server.answer(CHAT, &body);
    let first = texts(&once);
    assert_eq!(first.len(), 3);
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
    assert_eq!(texts(&server.answer(CHAT, &body)), first);
    // The first of several is the answer that comes alone.
    assert_eq!(texts(&server.answer(CHAT, &with(body.clone(), json!({"n": 1}))))[0], first[0]);
    assert_ne!(texts(&server.answer(CHAT, &with(body, json!({"seed": -8}))))[0], first[0]);
    let prompt = once["timings"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(once["usage"]["prompt_tokens"], prompt, "a prompt counts once");
    assert!(once["choices"][2]["timings"]["decode_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn most_tokens_of_an_answer() {
    let server = Running::shared();
    for field in ["max_tokens", "max_completion_tokens"] {
        let mut body = json!({"messages": [{"role": "user", "content": "Spell banana."}]});
        body[field] = 3.into();
        let answer = server.answer(CHAT, &body);
        assert_eq!(answer["usage"]["completion_tokens"], 3);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    let none = server.answer(CHAT, &with(ask("Spell sun."), json!({"max_tokens": 0})));
    assert_eq!((content(&none), none["usage"]["completion_tokens"].as_u64()), ("", Some(0)));
    assert_eq!(none["choices"][0]["finish_reason"], "length");
    for enough in [json!(-1), json!(u64::MAX), json!(1_000_000_000), json!(40.0)] {
        let answer = server.answer(CHAT, &with(ask("What is 27 + 45?"), json!({"max_tokens": enough})));
        assert_eq!(content(&answer), "27 + 45 = 72.", "{enough}");
    }
    for wrong in [json!(-2), json!(1.5), json!(1e30), json!("3"), json!([3])] {
        let (status, error) = server.refusal(CHAT, &with(ask("Hi"), json!({"max_tokens": wrong})));
        assert_eq!((status, error["param"].as_str()), (400, Some("max_tokens")), "{error}");
    }
}

#[test]
fn roles_parts_and_tools_reach_the_template() {
    let server = Running::roomy();
    let body = json!({
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "27 + 45?"}]},
        ],
        "max_completion_tokens": 30,
    });
    let plain = server.answer(CHAT, &body);
    let tool = json!({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}});
    let with_tools =
        server.answer(CHAT, &with(body.clone(), json!({"tools": [tool], "tool_choice": "auto"})));
    let prompt = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt(&with_tools) > prompt(&plain) + 20);
    let without = server.answer(CHAT, &with(body, json!({"tools": [tool], "tool_choice": "none"})));
    assert_eq!(prompt(&without), prompt(&plain));
}

#[test]
fn arguments_of_earlier_calls_may_be_strings_or_objects() {
    let server = Running::shared();
    let history = |arguments: Value| {
        json!({
            "messages": [
                {"role": "user", "content": "Add."},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
            "max_tokens": 4,
        })
    };
    let text = server.answer(CHAT, &history(json!("{\"a\": 1, \"b\": 2}")));
    let object = server.answer(CHAT, &history(json!({"a": 1, "b": 2})));
    assert_eq!(text["usage"]["prompt_tokens"], object["usage"]["prompt_tokens"]);
    assert_eq!(content(&text), content(&object));
    let (status, error) = server.refusal(CHAT, &history(json!("[1, 2")));
    assert_eq!(status, 400);
    assert!(error["message"].as_str().unwrap().contains("must be a JSON object"), "{error}");
}

#[test]
fn what_would_change_the_answer_and_cannot_be_is_refused_by_name() {
    let server = Running::shared();
    for (param, value) in [
        ("logit_bias", json!({"50": 10})),
        ("functions", json!([{"name": "add"}])),
        ("guided_choice", json!(["a", "b"])),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "alloy"})),
        ("min_tokens", json!(5)),
        ("stop_token_ids", json!([1])),
        ("n_predict", json!(5)),
        ("typical_p", json!(0.9)),
        ("lora", json!([{"id": 0, "scale": 1.0}])),
        ("chat_template_kwargs", json!({"enable_thinking": false, "preserve_thinking": true})),
    ] {
        let mut body = ask("Hi");
        body[param] = value.clone();
        let (status, error) = server.refusal(CHAT, &body);
        assert_eq!(status, 400, "{param}: {value}");
        assert!(error["param"].as_str().unwrap().starts_with(param), "{error}");
        assert_eq!(error["code"], "unsupported_parameter", "{error}");
    }
    let harmless = json!({"user": "me", "store": false, "metadata": {}, "logit_bias": {}, "service_tier": "auto", "response_format": {"type": "text"}, "tools": null,
        "typical_p": 1.0, "top_n_sigma": -1, "chat_template_kwargs": {"enable_thinking": false, "other": null}});
    server.answer(CHAT, &with(ask("Hi"), harmless));
}

#[test]
fn what_other_servers_offer_elsewhere_is_named() {
    let server = Running::shared();
    for (path, why) in [
        ("/v1/embeddings", "embeddings aren't offered"),
        ("/api/embed", "embeddings aren't offered"),
        ("/v1/rerank", "rankings aren't offered"),
        ("/lora-adapters", "merge them into the model"),
        ("/v1/audio/speech", "reads and makes text only"),
        ("/v1/other", "/openapi.json lists what is"),
    ] {
        let (status, error) = server.refusal(path, &json!({"input": "Hi"}));
        assert_eq!(status, 404, "{path}");
        assert!(error.to_string().contains(why), "{path}: {error}");
    }
}

#[test]
fn images_and_sounds_are_refused_by_name() {
    let server = Running::shared();
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let body =
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}]});
    let (status, error) = server.refusal(CHAT, &body);
    assert_eq!((status, error["param"].as_str()), (400, Some("messages[0].content[1].type")), "{error}");
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let server = Running::shared();
    for (param, value) in [
        ("temperature", json!(-1)),
        ("temperature", json!("warm")),
        ("temperature", json!(1e300)),
        ("top_p", json!(1.1)),
        ("min_p", json!(-0.1)),
        ("top_k", json!(-2)),
        ("presence_penalty", json!(1000)),
        ("repetition_penalty", json!(0)),
        ("n", json!(0)),
        ("n", json!(1000)),
        ("top_logprobs", json!(5)),
        ("seed", json!("x")),
        ("stop", json!({"a": 1})),
        ("stop", json!([""])),
        ("stream", json!("yes")),
        ("stream_options", json!([])),
        ("reasoning_effort", json!("extreme")),
        ("tools", json!({"a": 1})),
        ("model", json!(5)),
    ] {
        let mut body = ask("Hi");
        body[param] = value.clone();
        let (status, error) = server.refusal(CHAT, &body);
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{value}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[test]
fn any_model_name_is_taken_unless_the_server_is_strict() {
    let server = Running::shared();
    for name in [json!("gpt-4o"), json!(""), json!(null), json!("pico")] {
        let answer = server.answer(CHAT, &with(ask("Hi"), json!({"model": name, "max_tokens": 1})));
        assert_eq!(answer["model"], "pico");
    }
    let mut setup = Setup::of("tiny-b-q3_k_m.gguf");
    setup.server.is_strict = true;
    let strict = setup.start();
    let tiny = with(ask("Hi"), json!({"max_tokens": 1}));
    for name in [json!("pico"), json!("tiny-b-q3_k_m.gguf"), json!(""), json!(null)] {
        strict.answer(CHAT, &with(tiny.clone(), json!({"model": name})));
    }
    let (status, error) = strict.refusal(CHAT, &with(tiny, json!({"model": "gpt-4o"})));
    assert_eq!((status, error["code"].as_str()), (404, Some("model_not_found")));
}

/// Frameworks send a developer's message behind the system's; templates take one.
#[test]
fn several_system_messages_are_one() {
    let server = Running::shared();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Answer with a number."},
        {"role": "user", "content": "What is 27 + 45?"},
    ]);
    let answer = server.answer(CHAT, &with(ask(""), json!({"messages": messages})));
    assert!(!content(&answer).is_empty());
}
