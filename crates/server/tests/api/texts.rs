//! Stop texts, broken characters and log-probabilities, as clients see them.

use crate::support::{Running, chat_text, plain_text};
use proptest::prelude::*;
use serde_json::{Value, json};

const PLAIN: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

/// A prompt that pico goes on from with words, and how.
fn story(server: &Running) -> (Value, String) {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 16});
    let whole = text(&server.answer(PLAIN, &body)).to_owned();
    assert!(whole.chars().count() > 20, "{whole:?}");
    (body, whole)
}

/// Both kinds of answer with `stop`.
fn stopped(server: &Running, body: &Value, stop: Value) -> (String, String, Value) {
    let mut body = body.clone();
    body["stop"] = stop;
    let whole = server.answer(PLAIN, &body);
    let chunks = server.chunks(PLAIN, &body);
    let reason = whole["choices"][0]["finish_reason"].clone();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], reason);
    (text(&whole).to_owned(), plain_text(&chunks), reason)
}

#[test]
fn stop_texts_at_every_offset_end_both_kinds_of_answer_alike() {
    let server = Running::shared();
    let (body, whole) = story(server);
    let chars: Vec<char> = whole.chars().collect();
    for length in [1, 4, 9] {
        for start in (0..chars.len() - length).step_by(5) {
            let stop: String = chars[start..start + length].iter().collect();
            let want = &whole[..whole.find(&stop).unwrap()];
            let (plain, streamed, reason) = stopped(server, &body, json!(stop));
            assert_eq!((plain.as_str(), reason.as_str()), (want, Some("stop")), "stop {stop:?}");
            assert_eq!(streamed, want, "stop {stop:?}");
        }
    }
}

#[test]
fn a_stop_text_that_nearly_comes_is_given_back() {
    let server = Running::shared();
    let (body, whole) = story(server);
    let chars: Vec<char> = whole.chars().collect();
    for start in [0, 3, chars.len() - 5] {
        let mut stop: String = chars[start..start + 4].iter().collect();
        stop.push('\u{1}');
        let (plain, streamed, reason) = stopped(server, &body, json!([stop, "never"]));
        assert_eq!((plain.as_str(), streamed.as_str(), reason.as_str()), (&*whole, &*whole, Some("length")));
    }
}

#[test]
fn the_stop_text_that_ends_first_counts() {
    let server = Running::shared();
    let (body, whole) = story(server);
    let at = |n: usize| whole.char_indices().nth(n).unwrap().0;
    let (early, late) = (&whole[at(6)..at(9)], &whole[at(12)..at(16)]);
    let (plain, streamed, _) = stopped(server, &body, json!([late, early]));
    assert_eq!((plain.as_str(), streamed.as_str()), (&whole[..whole.find(early).unwrap()], plain.as_str()));
}

#[test]
fn a_stop_text_that_is_a_control_token_changes_nothing() {
    let server = Running::shared();
    let body = json!({"messages": [{"role": "user", "content": "What is 27 + 45?"}], "stop": "<|im_end|>", "max_tokens": 40});
    let answer = server.answer(CHAT, &body);
    assert_eq!(answer["choices"][0]["message"]["content"], "27 + 45 = 72.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(chat_text(&server.chunks(CHAT, &body)).1, "27 + 45 = 72.");
}

/// Random tokens make characters of several tokens, halves of characters, and broken ones.
fn wild(seed: u64) -> Value {
    json!({"prompt": "é 漢 🦙 👩‍👩‍👧", "max_tokens": 24, "temperature": 100, "top_k": 0, "top_p": 1, "seed": seed, "logprobs": 0})
}

#[test]
fn streamed_characters_are_whole_and_nothing_is_lost() {
    let server = Running::shared();
    for seed in 0..12 {
        let body = wild(seed);
        let whole = server.answer(PLAIN, &body);
        let bytes = whole["choices"][0]["logprobs"]["bytes"].as_array().unwrap().iter();
        let bytes: Vec<u8> = bytes
            .flat_map(|t| t.as_array().unwrap())
            .map(|b| u8::try_from(b.as_u64().unwrap()).unwrap())
            .collect();
        // Control tokens are in the bytes and not in the text, but such draws are rare: seeds without them are told apart.
        if !String::from_utf8_lossy(&bytes).contains("<|") {
            assert_eq!(text(&whole), String::from_utf8_lossy(&bytes), "seed {seed}");
        }
        assert_eq!(plain_text(&server.chunks(PLAIN, &body)), text(&whole), "seed {seed}");
    }
}

/// Sums of probabilities beside each token, and the log-probabilities of the tokens.
fn probabilities(answer: &Value) -> (Vec<f64>, Vec<f64>) {
    let logprobs = &answer["choices"][0]["logprobs"];
    let top = logprobs["top_logprobs"].as_array().unwrap().iter();
    let sum = |top: &Value| top.as_object().unwrap().values().map(|p| p.as_f64().unwrap().exp()).sum();
    let own = logprobs["token_logprobs"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap());
    (top.map(sum).collect(), own.collect())
}

#[test]
fn log_probabilities_are_the_models_own_whatever_the_filters_and_the_temperature() {
    let server = Running::shared();
    let answer = |more: Value| {
        let mut body = json!({"prompt": "The sun is", "max_tokens": 1, "logprobs": 10, "seed": 3});
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        server.answer(PLAIN, &body)
    };
    let greedy = answer(json!({"temperature": 0}));
    for more in [
        json!({"top_k": 1}),
        json!({"top_p": 0.1}),
        json!({"temperature": 0.5}),
        json!({"temperature": 2}),
        json!({"top_p": 0}),
    ] {
        let other = answer(more.clone());
        let (mine, theirs) = (&greedy["choices"][0]["logprobs"], &other["choices"][0]["logprobs"]);
        assert_eq!(mine["top_logprobs"], theirs["top_logprobs"], "{more}");
        assert_eq!(theirs["top_logprobs"][0].as_object().unwrap().len(), 10, "as many as were asked for");
        let (sums, own) = probabilities(&other);
        assert!(sums[0] > 0.0 && sums[0] <= 1.0 + 1e-9, "{more}: {sums:?}");
        assert!(own[0] <= 0.0);
    }
    assert_eq!(server.refusal(PLAIN, &json!({"prompt": "a", "logprobs": 21})).0, 400);
}

#[test]
fn a_completions_log_probabilities_have_all_their_fields() {
    let server = Running::shared();
    let body = json!({"prompt": "The sun is", "max_tokens": 6, "logprobs": 1});
    let answer = server.answer(PLAIN, &body);
    let logprobs = &answer["choices"][0]["logprobs"];
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset", "token_ids", "bytes"] {
        assert_eq!(logprobs[field].as_array().unwrap().len(), 6, "{field}");
    }
    assert_eq!(
        logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect::<String>(),
        text(&answer)
    );
    let streamed: Vec<Value> = server
        .chunks(PLAIN, &body)
        .iter()
        .filter(|chunk| !chunk["choices"][0]["logprobs"].is_null())
        .flat_map(|chunk| {
            let logprobs = &chunk["choices"][0]["logprobs"];
            let tokens = logprobs["token_ids"].as_array().unwrap().iter();
            tokens
                .zip(logprobs["text_offset"].as_array().unwrap())
                .map(|(id, at)| json!([id, at]))
                .collect::<Vec<_>>()
        })
        .collect();
    let whole =
        logprobs["token_ids"].as_array().unwrap().iter().zip(logprobs["text_offset"].as_array().unwrap());
    assert_eq!(streamed, whole.map(|(id, at)| json!([id, at])).collect::<Vec<_>>());
}

#[test]
fn a_chats_log_probabilities_have_bytes_also_of_broken_characters() {
    let server = Running::shared();
    let body = json!({
        "messages": [{"role": "user", "content": "🦙"}],
        "logprobs": true, "top_logprobs": 3, "max_tokens": 20,
        "temperature": 100, "top_k": 0, "top_p": 1, "seed": 5,
    });
    let whole = server.answer(CHAT, &body);
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, whole["usage"]["completion_tokens"].as_u64().unwrap());
    for token in tokens {
        assert!(token["bytes"].is_array() && token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
    }
    let chunks = server.chunks(CHAT, &body);
    let streamed: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, tokens.iter().collect::<Vec<_>>());
    let bare = server.answer(
        CHAT,
        &json!({"messages": [{"role": "user", "content": "Hi"}], "logprobs": true, "max_tokens": 1}),
    );
    assert_eq!(bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streams_and_whole_answers_agree_for_any_seed_and_stop(seed: u32, stop in "[a-e .\n]{1,2}") {
        let server = Running::shared();
        let mut body = wild(seed.into());
        body["stop"] = json!(stop);
        body["temperature"] = json!(1.2);
        let whole = server.answer(PLAIN, &body);
        prop_assert_eq!(plain_text(&server.chunks(PLAIN, &body)), text(&whole));
        prop_assert!(!text(&whole).contains(&stop));
    }
}
