//! OpenAI's shapes: chat completions, completions, models, and the tokenizer.

mod chat;
mod chat_answer;
mod completions;
mod completions_answer;
pub(crate) mod error;
mod forms;
mod logprobs;
mod messages;
mod models;
mod responses;
pub(crate) mod settings;
mod tokens;

use axum::routing::{get, post};
use forerun_decode::Telemetry;
use serde_json::{Value, json};

use crate::answer::Usage;
use crate::http::Routes;
pub(crate) use messages::tools;

/// The routes; each also without `/v1`, since some clients take the base address for the whole of it.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/completions", post(completions::completions))
        .route("/v1/responses", post(responses::responses))
        .route("/responses", post(responses::responses))
        .route("/v1/models", get(models::list))
        .route("/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
}

/// What an answer is called and whose it is: the same in every part of it.
#[derive(Clone, Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(prefix: &str, model: &str) -> Self {
        let id = format!("{prefix}-{}", crate::chance::name());
        Self { id, created: crate::chance::unix_seconds(), model: model.to_owned() }
    }

    /// An object of this answer with these choices.
    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// Tokens of several answers, `n` to each prompt: prompts count once.
fn usage(usages: &[Usage], n: usize) -> Value {
    let prompts = usages.iter().step_by(n.max(1));
    let prompt: usize = prompts.clone().map(|usage| usage.prompt).sum();
    let reused: usize = prompts.map(|usage| usage.reused).sum();
    let completion: usize = usages.iter().map(|usage| usage.completion).sum();
    let thoughts: usize = usages.iter().map(|usage| usage.thoughts).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_reused_tokens": reused,
        "prompt_tokens_details": {"cached_tokens": reused},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    })
}

/// Telemetry as JSON.
fn timings(telemetry: &Telemetry) -> Value {
    serde_json::to_value(telemetry).unwrap_or_default()
}
