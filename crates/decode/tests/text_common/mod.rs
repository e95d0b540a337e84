//! The shipped models' tokenizers and templates, for tests.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use forerun_decode::text::{Message, Tokenizer, VocabularyParts};
use forerun_model::{KeyValue, KeyValues, TokenId};
use forerun_storage::Gguf;
use serde_json::Value;

pub struct Model {
    pub tokenizer: Tokenizer,
    pub template: String,
}

pub fn pico() -> Model {
    model("pico-q4_k_m.gguf")
}

pub fn tiny() -> Model {
    model("tiny-a-f32.gguf")
}

fn model(name: &str) -> Model {
    let gguf = Gguf::open(&fixture(name)).unwrap();
    let parts = VocabularyParts::from_metadata(&gguf.metadata).unwrap();
    let Some(KeyValue::Text(template)) = gguf.metadata.get("tokenizer.chat_template") else {
        panic!("{name} has no template")
    };
    Model { tokenizer: Tokenizer::new(&parts).unwrap(), template: template.to_owned() }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

pub fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

/// pico's template by jinja2, Hugging Face's renderer.
pub fn chat_golden() -> Value {
    serde_json::from_str(include_str!("chat_golden.json")).unwrap()
}

pub fn ids(list: &Value) -> Vec<TokenId> {
    serde_json::from_value::<Vec<u32>>(list.clone()).unwrap().into_iter().map(TokenId).collect()
}

pub fn messages(list: &Value) -> Vec<Message> {
    serde_json::from_value(list.clone()).unwrap()
}
