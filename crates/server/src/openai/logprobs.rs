//! Log-probabilities in OpenAI's two shapes.
//!
//! They are the model's own, before penalties, filters and temperature, so they sum to at most 1 and mean the same at every
//! temperature. Every token of an answer has an entry, those of thoughts and of a stop text too.

use forerun_decode::Logprobs;
use forerun_decode::sampler::TokenLogprob;
use forerun_decode::text::Tokenizer;
use forerun_model::TokenId;
use serde_json::{Map, Value, json};

/// `{content: [{token, logprob, bytes, top_logprobs}]}`.
pub(super) fn chat(tokens: &[Logprobs], tokenizer: &Tokenizer) -> Value {
    let entry = |scored: &TokenLogprob| {
        let bytes = bytes(scored.token, tokenizer);
        json!({"token": name(bytes), "logprob": scored.logprob, "bytes": bytes})
    };
    let content = tokens.iter().map(|of_token| {
        let mut value = entry(&of_token.chosen);
        value["top_logprobs"] = of_token.top.iter().map(entry).collect();
        value
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// `{tokens, token_logprobs, top_logprobs, text_offset}`, and `token_ids` and `bytes`.
#[derive(Clone, Debug, Default)]
pub(super) struct Plain {
    /// Characters of the tokens before.
    offset: usize,
}

impl Plain {
    /// The object for some tokens; offsets go on from one call to the next.
    pub(super) fn object(&mut self, tokens: &[Logprobs], tokenizer: &Tokenizer) -> Value {
        let name_of = |scored: &TokenLogprob| name(bytes(scored.token, tokenizer));
        let mut offsets = Vec::with_capacity(tokens.len());
        for of_token in tokens {
            offsets.push(self.offset);
            self.offset += String::from_utf8_lossy(bytes(of_token.chosen.token, tokenizer)).chars().count();
        }
        let top = tokens.iter().map(|of_token| {
            let entries = of_token.top.iter().map(|scored| (name_of(scored), scored.logprob.into()));
            Value::Object(entries.collect::<Map<_, _>>())
        });
        json!({
            "tokens": tokens.iter().map(|t| name_of(&t.chosen)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|t| t.chosen.logprob).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
            "text_offset": offsets,
            "token_ids": tokens.iter().map(|t| t.chosen.token.0).collect::<Vec<_>>(),
            "bytes": tokens.iter().map(|t| bytes(t.chosen.token, tokenizer)).collect::<Vec<_>>(),
        })
    }
}

fn bytes(token: TokenId, tokenizer: &Tokenizer) -> &[u8] {
    tokenizer.vocabulary().token_bytes(token).unwrap_or_default()
}

/// A token's text; one that is no text by itself as `bytes:\xf0\x9f`.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_no_text_is_named_by_its_bytes() {
        assert_eq!(name("é".as_bytes()), "é");
        assert_eq!(name(&[0xf0, 0x9f]), "bytes:\\xf0\\x9f");
        assert_eq!(name(b""), "");
    }
}
