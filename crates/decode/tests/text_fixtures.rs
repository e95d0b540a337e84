//! Tokenizer and templates of the shipped models against what Hugging Face's say.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod text_common;

use forerun_decode::text::{ChatTemplate, PromptEnd, RenderRequest, Thinking};
use serde_json::Value;
use text_common::{chat_golden, ids, json, messages, pico, tiny};

#[test]
fn picos_tokens_are_hugging_faces() {
    let tokenizer = pico().tokenizer;
    let golden = json("tokenizer_golden.json");
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 271);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expect = ids(&case["ids"]);
        assert_eq!(tokenizer.encode_special(text).unwrap(), expect, "{text:?}");
        assert_eq!(tokenizer.decode(&expect), case["decoded"], "{text:?}");
        let plain = case.get("ids_without_special_parsing").map_or(expect, ids);
        assert_eq!(tokenizer.encode_plain(text).unwrap(), plain, "{text:?}");
    }
}

#[test]
fn tinys_tokens_are_hugging_faces() {
    let tokenizer = tiny().tokenizer;
    for case in json("tiny-random/tokenizer.expected.json")["encode"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_special(text).unwrap(), ids(&case["ids"]), "{text:?}");
    }
}

#[track_caller]
fn check_chat(model: &text_common::Model, case: &Value, thinking: Option<bool>, text: &str, expect: &str) {
    let template = ChatTemplate::new(&model.template, &model.tokenizer).unwrap();
    let messages = messages(&case["messages"]);
    let thinking = match thinking {
        None => Thinking::Default,
        Some(true) => Thinking::On,
        Some(false) => Thinking::Off,
    };
    let prompt = template.render(&RenderRequest { thinking, ..RenderRequest::new(&messages) }).unwrap();
    assert_eq!(prompt.text(), case[text].as_str().unwrap());
    assert_eq!(prompt.encode(&model.tokenizer).unwrap(), ids(&case[expect]), "{case}");
}

#[test]
fn picos_prompts_are_hugging_faces() {
    let golden = json("pico-golden.json");
    let chats = golden["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "chat");
    let mut n_chats = 0;
    for case in chats {
        check_chat(&pico(), case, case["enable_thinking"].as_bool(), "text", "prompt_ids");
        n_chats += 1;
    }
    assert_eq!(n_chats, 4);
}

#[test]
fn picos_raw_prompts_are_hugging_faces() {
    let (golden, tokenizer) = (json("pico-golden.json"), pico().tokenizer);
    for case in golden["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "raw") {
        let expect = ids(&case["prompt_ids"]);
        assert_eq!(tokenizer.encode_special(case["text"].as_str().unwrap()).unwrap(), expect);
    }
}

#[test]
fn tinys_prompts_are_hugging_faces() {
    for case in json("tiny-random/tokenizer.expected.json")["chat"].as_array().unwrap() {
        check_chat(&tiny(), case, case["kwargs"]["enable_thinking"].as_bool(), "rendered", "ids");
    }
}

#[test]
fn the_stock_template_renders_tools_thoughts_and_calls_like_hugging_face() {
    let model = pico();
    let template = ChatTemplate::new(&model.template, &model.tokenizer).unwrap();
    for case in chat_golden()["cases"].as_array().unwrap() {
        let messages = messages(&case["messages"]);
        let tools = case["tools"].as_array().cloned().unwrap_or_default();
        let end = if case["answer"] == true { PromptEnd::Answer } else { PromptEnd::History };
        let request = RenderRequest { tools: &tools, end, ..RenderRequest::new(&messages) };
        assert_eq!(template.render(&request).unwrap().text(), case["text"].as_str().unwrap());
    }
}

#[test]
fn every_special_token_is_known_for_what_it_is() {
    let tokenizer = pico().tokenizer;
    let vocabulary = tokenizer.vocabulary();
    assert_eq!(vocabulary.len(), 8192);
    assert_eq!(vocabulary.specials().len(), 26);
    assert!(vocabulary.is_control(vocabulary.special("<|im_end|>").unwrap()));
    assert!(!vocabulary.is_control(vocabulary.special("<think>").unwrap()));
    assert_eq!(vocabulary.eos(), vocabulary.special("<|im_end|>"));
    assert_eq!(vocabulary.end_ids().len(), 5);
    assert_eq!(vocabulary.banned().count(), 0);
    assert!(tokenizer.estimated_bytes() < 4 << 20, "{}", tokenizer.estimated_bytes());
}
