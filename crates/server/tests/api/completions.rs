//! Plain completions: prompts of every kind, log-probabilities, the tokenizer.

use crate::support::{Running, plain_text};
use serde_json::{Value, json};

const PLAIN: &str = "/v1/completions";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn a_prompt_goes_on_the_same_streamed_or_not_as_text_or_tokens() {
    let server = Running::shared();
    let body = json!({"prompt": "The sun is", "max_tokens": 12});
    let whole = server.answer(PLAIN, &body);
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(plain_text(&server.chunks(PLAIN, &body)), text(&whole));
    let tokens = server.answer("/tokenize", &json!({"content": "The sun is"}))["tokens"].clone();
    assert_eq!(whole["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());
    assert_eq!(text(&server.answer(PLAIN, &json!({"prompt": tokens, "max_tokens": 12}))), text(&whole));
}

#[test]
fn several_prompts_are_several_choices() {
    let server = Running::shared();
    let alone = |prompt: &str| {
        let answer = server.answer(PLAIN, &json!({"prompt": prompt, "max_tokens": 5}));
        (text(&answer).to_owned(), answer["usage"]["prompt_tokens"].as_u64().unwrap())
    };
    let (sun, sea) = (alone("The sun is"), alone("The sea"));
    let body = json!({"prompt": ["The sun is", "The sea"], "n": 2, "max_tokens": 5});
    let together = server.answer(PLAIN, &body);
    let choices = together["choices"].as_array().unwrap();
    let texts: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, [&sun.0, &sun.0, &sea.0, &sea.0]);
    assert_eq!(choices[3]["index"], 3);
    assert_eq!(together["usage"]["prompt_tokens"], sun.1 + sea.1);
    let chunks = server.chunks(PLAIN, &body);
    for (index, want) in texts.iter().enumerate() {
        let mine = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).cloned();
        assert_eq!(plain_text(&mine.collect::<Vec<_>>()), *want, "choice {index}");
    }
}

#[test]
fn an_empty_prompt_is_refused_and_white_space_is_none() {
    let server = Running::shared();
    for empty in [json!(""), json!([]), json!([""]), json!(["a", ""]), json!([[]])] {
        let (status, error) = server.refusal(PLAIN, &json!({"prompt": empty}));
        assert_eq!((status, error["code"].as_str()), (400, Some("empty_prompt")), "{empty}: {error}");
        assert_eq!(error["param"], "prompt");
    }
    for missing in [json!({}), json!({"prompt": null})] {
        let (status, error) = server.refusal(PLAIN, &missing);
        assert_eq!((status, error["param"].as_str()), (400, Some("prompt")), "{error}");
    }
    assert_eq!(
        server.answer(PLAIN, &json!({"prompt": " ", "max_tokens": 2}))["usage"]["completion_tokens"],
        2
    );
    let chat = "/v1/chat/completions";
    for messages in [json!([]), json!(null), json!({}), json!([{}]), json!([{"role": "user"}]), json!(["hi"])]
    {
        let (status, _) = server.refusal(chat, &json!({"messages": messages}));
        assert_eq!(status, 400, "{messages}");
    }
    server.answer(chat, &json!({"messages": [{"role": "user", "content": ""}], "max_tokens": 2}));
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let server = Running::shared();
    for wrong in
        [json!([8192]), json!([-1]), json!([1, 2.5]), json!([[1], [99999]]), json!([1, "a"]), json!([true])]
    {
        let (status, error) = server.refusal(PLAIN, &json!({"prompt": wrong}));
        assert_eq!(status, 400, "{wrong}");
        assert!(error["param"].as_str().unwrap().starts_with("prompt["), "{error}");
    }
}

#[test]
fn special_tokens_in_a_prompt_are_text_unless_it_is_said() {
    let server = Running::shared();
    let count = |body: Value| server.answer("/tokenize", &body)["count"].as_u64().unwrap();
    assert_eq!(count(json!({"content": "<|im_end|>", "parse_special": true})), 1);
    assert!(count(json!({"content": "<|im_end|>"})) > 1);
    let usage = |body: Value| server.answer(PLAIN, &body)["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage(json!({"prompt": "<|im_end|>", "parse_special": true, "max_tokens": 1})), 1);
    assert!(usage(json!({"prompt": "<|im_end|>", "max_tokens": 1})) > 1);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let server = Running::shared();
    for (param, value) in [
        ("echo", json!(true)),
        ("suffix", json!("end")),
        ("best_of", json!(2)),
        ("logit_bias", json!({"1": 1})),
        ("response_format", json!({"type": "json_object"})),
    ] {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body[param] = value;
        let (status, error) = server.refusal(PLAIN, &body);
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{error}");
    }
    server.answer(PLAIN, &json!({"prompt": "a", "max_tokens": 1, "echo": false, "suffix": "", "best_of": 1}));
}

#[test]
fn text_goes_to_tokens_and_back() {
    let server = Running::shared();
    for words in ["Hello, world!", "é 漢 🦙 👩‍👩‍👧‍👦", " ", ""] {
        let tokens = server.answer("/tokenize", &json!({"content": words}))["tokens"].clone();
        assert_eq!(server.answer("/detokenize", &json!({"tokens": tokens}))["content"], words);
    }
    let pieces = server.answer("/tokenize", &json!({"prompt": "🦙", "with_pieces": true}));
    assert!(pieces["tokens"].as_array().unwrap().iter().all(|t| t["id"].is_u64() && !t["piece"].is_null()));
    let chat = server.answer("/tokenize", &json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert!(chat["count"].as_u64().unwrap() > 5);
    for (path, wrong) in [
        ("/tokenize", json!({})),
        ("/detokenize", json!({"tokens": [99999]})),
        ("/detokenize", json!({"tokens": "a"})),
    ] {
        assert_eq!(server.refusal(path, &wrong).0, 400, "{path} {wrong}");
    }
}

#[test]
fn the_model_is_listed() {
    let server = Running::shared();
    let list = server.get("/v1/models").json();
    assert_eq!(
        (list["data"][0]["id"].as_str(), list["data"][0]["max_model_len"].as_u64()),
        (Some("pico"), Some(512))
    );
    assert_eq!(server.get("/v1/models/pico").json(), list["data"][0]);
    assert_eq!(server.get("/v1/models/pico-q4_k_m.gguf").json()["id"], "pico");
    let other = server.get("/v1/models/org/other");
    assert_eq!((other.status, other.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
}
