//! Broken and hostile vocabularies, and text that comes out token by token.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use forerun_decode::text::{
    ControlTokens, TextError, TextStream, TokenKind, Tokenizer, Vocabulary, VocabularyParts,
};
use forerun_model::{KeyValue, KeyValues, TokenId};

/// GPT-2's byte alphabet, then `more` tokens with their types.
fn parts(more: &[(&str, i128)], merges: &[&str]) -> VocabularyParts<'static> {
    let alphabet =
        ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{ff}').chain('\u{100}'..='\u{143}');
    let mut tokens: Vec<String> = alphabet.map(String::from).collect();
    let mut types = vec![1; tokens.len()];
    tokens.extend(more.iter().map(|(token, _)| (*token).to_owned()));
    types.extend(more.iter().map(|(_, kind)| *kind));
    let merges: Vec<String> = merges.iter().map(|&rule| rule.to_owned()).collect();
    VocabularyParts {
        model: "gpt2".into(),
        pre: "qwen35".into(),
        tokens: tokens.into(),
        types,
        merges: merges.into(),
        ..VocabularyParts::default()
    }
}

fn refused(parts: &VocabularyParts<'_>) -> String {
    Tokenizer::new(parts).unwrap_err().to_string()
}

#[test]
fn what_a_vocabulary_gets_wrong_is_named() {
    let with = |change: fn(&mut VocabularyParts<'_>)| {
        let mut parts = parts(&[], &[]);
        change(&mut parts);
        refused(&parts)
    };
    assert_eq!(
        with(|p| p.model = "llama".into()),
        "tokenizer model `llama` is not supported; supported: gpt2"
    );
    assert_eq!(
        with(|p| p.pre = "llama-bpe".into()),
        "pre-tokenizer `llama-bpe` is not supported; supported: qwen35, qwen2"
    );
    assert_eq!(with(|p| p.types.truncate(5)), "there are 5 token types for 256 tokens");
    assert_eq!(with(|p| p.types[7] = 9), "token 7 has type 9; types are 0 to 6");
    let eos = "metadata key `tokenizer.ggml.eos_token_id` is 256; the vocabulary has tokens 0 to 255";
    assert_eq!(with(|p| p.eos = Some(256)), eos);
    assert!(with(|p| p.bos = Some(-1)).contains("bos_token_id` is -1"));
    assert!(with(|p| p.tokens = vec![].into()).contains("0 tokens"));
    assert_eq!(
        with(|p| p.tokens.to_mut()[0] = "xx".into()),
        "no token stands for byte 0x21; text with it would be lost"
    );
}

#[test]
fn a_merge_about_unknown_tokens_is_refused() {
    assert_eq!(refused(&parts(&[], &["a b"])), "merge 0 names \"ab\", which is not a token");
    assert_eq!(refused(&parts(&[("ab", 1)], &["a b", "xy b"])), "merge 1 names \"xy\", which is not a token");
    for rule in ["ab", "a  b", " a", "a b c", ""] {
        assert!(refused(&parts(&[("ab", 1)], &[rule])).contains("must be two symbols"), "{rule:?}");
    }
}

/// Metadata with one key set to something else.
struct Altered(BTreeMap<&'static str, KeyValue<'static>>);

impl KeyValues for Altered {
    fn get(&self, key: &str) -> Option<KeyValue<'_>> {
        self.0.get(key).cloned()
    }
}

#[test]
fn keys_of_a_wrong_type_or_missing_are_named() {
    static TOKENS: [String; 0] = [];
    let sound = BTreeMap::from([
        ("tokenizer.ggml.model", KeyValue::Text("gpt2")),
        ("tokenizer.ggml.pre", KeyValue::Text("qwen35")),
        ("tokenizer.ggml.tokens", KeyValue::Texts(&TOKENS)),
        ("tokenizer.ggml.merges", KeyValue::Texts(&TOKENS)),
        ("tokenizer.ggml.token_type", KeyValue::Integers(vec![])),
        ("tokenizer.ggml.eos_token_id", KeyValue::Integer(0)),
    ]);
    assert!(VocabularyParts::from_metadata(&Altered(sound.clone())).is_ok());
    for key in sound.keys().copied() {
        let mut altered = sound.clone();
        altered.insert(key, KeyValue::Floats(vec![1.0]));
        let error = VocabularyParts::from_metadata(&Altered(altered.clone())).unwrap_err();
        assert!(matches!(error, TextError::KeyType { key: named, .. } if named == key));
        altered.remove(key);
        match VocabularyParts::from_metadata(&Altered(altered)) {
            Ok(_) => assert!(["tokenizer.ggml.token_type", "tokenizer.ggml.eos_token_id"].contains(&key)),
            Err(error) => assert!(matches!(error, TextError::MissingKey { key: named } if named == key)),
        }
    }
}

#[test]
fn merges_never_build_a_special_token() {
    let more = [("ab", 3), ("cd", 4), ("bc", 1), ("abc", 1), ("xy", 5)];
    let tokenizer = Tokenizer::new(&parts(&more, &["a b", "c d", "b c", "ab c", "x y"][..4])).unwrap();
    let ids = tokenizer.encode_plain("ab cd abc").unwrap();
    assert!(ids.iter().all(|&id| tokenizer.vocabulary().kind(id) == Some(TokenKind::Normal)));
    assert_eq!(tokenizer.decode(&ids), "ab cd abc");
    let special = tokenizer.encode_special("abcd").unwrap();
    assert_eq!(special, [TokenId(256), TokenId(257)]);
}

#[test]
fn special_tokens_are_what_they_are_by_name() {
    let more = [("<|fim_pad|>", 4), ("<|im_end|>", 1), ("[PAD1]", 5), ("<think>", 4), ("<|endoftext|>", 3)];
    let mut parts = parts(&more, &[]);
    parts.eos = Some(3);
    let vocabulary = Vocabulary::new(&parts).unwrap();
    let control = |name| vocabulary.is_control(vocabulary.special(name).unwrap());
    assert!(control("<|fim_pad|>") && control("<|im_end|>") && !control("<think>"));
    assert_eq!(vocabulary.end_ids(), [3, 256, 257, 260].map(TokenId));
    assert!(vocabulary.is_unused(TokenId(258)));
    assert_eq!(vocabulary.banned().collect::<Vec<_>>(), [TokenId(258)]);
    assert_eq!(vocabulary.special("[PAD1]"), None);
    assert_eq!((vocabulary.token_bytes(TokenId(261)), vocabulary.kind(TokenId(261))), (None, None));
    assert_eq!(vocabulary.token_bytes_max(), "<|endoftext|>".len());
}

#[test]
fn a_stream_shows_whole_characters() {
    let tokenizer = Tokenizer::new(&parts(&[("<|im_end|>", 3)], &[])).unwrap();
    let llama = tokenizer.encode_plain("é🦙").unwrap();
    assert_eq!(llama.len(), 6);
    let mut stream = tokenizer.stream();
    let mut shown = Vec::new();
    for &id in llama.iter().chain([TokenId(256), TokenId(999), llama[2], llama[0], llama[0]].iter()) {
        let mut out = String::new();
        stream.push(id, &mut out);
        shown.push(out);
    }
    assert_eq!(shown, ["", "é", "", "", "", "🦙", "", "", "", "\u{fffd}", "\u{fffd}"]);
    let mut end = String::new();
    assert!(stream.is_pending());
    stream.finish(&mut end);
    assert_eq!((end.as_str(), stream.is_pending()), ("\u{fffd}", false));
    let mut raw = TextStream::new(tokenizer.vocabulary()).with_control(ControlTokens::Shown);
    raw.push(TokenId(256), &mut end);
    assert_eq!(end, "\u{fffd}<|im_end|>");
}
