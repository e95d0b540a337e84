//! `POST /tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forerun_model::TokenId;
use serde_json::{Value, json};

use super::chat::conversation;
use crate::ask::encode_chat;
use crate::desk::Facts;
use crate::fields::{Fields, token};
use crate::http::body::Object;
use crate::http::{App, error};
use crate::refusal::{Kind, Refusal};

pub(super) async fn tokenize(State(app): State<Arc<App>>, Object(fields): Object) -> Response {
    let answer = app.prepared(move |desk| tokens(fields, desk.facts())).await;
    answer
        .map_or_else(|refusal| error::response(&refusal, "/tokenize"), |tokens| Json(tokens).into_response())
}

pub(super) async fn detokenize(State(app): State<Arc<App>>, Object(fields): Object) -> Response {
    let answer = app.prepared(move |desk| text(fields, desk.facts())).await;
    answer.map_or_else(|refusal| error::response(&refusal, "/detokenize"), |text| Json(text).into_response())
}

/// The tokens of a text (`content`, or `prompt`), or of a chat's whole prompt (`messages`).
fn tokens(mut fields: Fields, facts: &Facts) -> Result<Value, Refusal> {
    let has_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let parses = fields.flag("parse_special")?.unwrap_or(false);
    let text = fields.text("content")?;
    let text = text.or(fields.text("prompt")?);
    let tokens = match text {
        Some(text) if text.len() > facts.prompt_bytes_max => {
            let words = format!(
                "the text has {} bytes; at most {} are tokenised",
                text.len(),
                facts.prompt_bytes_max
            );
            return Err(Refusal::new(Kind::TooLarge, words));
        }
        Some(text) if parses => facts.tokenizer.encode_special(&text)?,
        Some(text) => facts.tokenizer.encode_plain(&text)?,
        None => match fields.need("messages") {
            Ok(messages) => {
                fields.put("messages", messages);
                encode_chat(&conversation(&mut fields, facts)?, facts)?
            }
            Err(_) => {
                let words = "`content` is missing; write it, or `messages`";
                return Err(Refusal::invalid("content", words));
            }
        },
    };
    let ids: Vec<Value> = tokens.iter().map(|&token| entry(token, has_pieces, facts)).collect();
    Ok(json!({"tokens": ids, "count": tokens.len(), "max_model_len": facts.context}))
}

fn entry(token: TokenId, has_piece: bool, facts: &Facts) -> Value {
    if !has_piece {
        return token.0.into();
    }
    let bytes = facts.tokenizer.vocabulary().token_bytes(token).unwrap_or_default();
    let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
    json!({"id": token.0, "piece": piece})
}

/// The text of `tokens`; bytes that are no UTF-8 become U+FFFD.
fn text(mut fields: Fields, facts: &Facts) -> Result<Value, Refusal> {
    let list = fields.need("tokens")?;
    let Value::Array(list) = list else {
        return Err(fields.wrong("tokens", "a list of tokens", &list));
    };
    if list.len() > facts.context {
        let words = format!("`tokens` has {} tokens; at most {} are taken", list.len(), facts.context);
        return Err(Refusal::new(Kind::TooLarge, words));
    }
    let token = |(index, value)| token(value, facts.n_vocab, &format!("tokens[{index}]"));
    let tokens: Vec<_> = list.iter().enumerate().map(token).collect::<Result<_, _>>()?;
    let text = facts.tokenizer.decode(&tokens);
    Ok(json!({"content": text, "prompt": text}))
}
