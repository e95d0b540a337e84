//! A small vocabulary that needs no file.

use std::sync::LazyLock;

use forerun_decode::text::{Tokenizer, VocabularyParts};

/// Literals of the special tokens, which follow the bytes and the merged tokens.
const SPECIALS: [(&str, i128); 5] =
    [("<|im_start|>", 3), ("<|im_end|>", 3), ("<|endoftext|>", 3), ("<think>", 4), ("</think>", 4)];

/// Merges; the last three try to build a control token out of text.
const MERGES: [&str; 8] = ["h e", "Ġ t", "l l", "he ll", "< |", "t h", "| >", "<| |>"];

/// The tokenizer of all targets.
pub static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let mut tokens: Vec<String> = alphabet().map(String::from).collect();
    tokens.extend(MERGES.map(|rule| rule.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    // The result of the last merge is a control token.
    *types.last_mut().expect("there are merges") = 3;
    tokens.extend(SPECIALS.map(|(literal, _)| literal.to_owned()));
    types.extend(SPECIALS.map(|(_, kind)| kind));
    let eos = i128::try_from(tokens.len() - SPECIALS.len() + 1).ok();
    let parts = VocabularyParts {
        model: "gpt2".into(),
        pre: "qwen35".into(),
        tokens: tokens.into(),
        types,
        merges: MERGES.map(String::from).to_vec().into(),
        eos,
        ..VocabularyParts::default()
    };
    Tokenizer::new(&parts).expect("the vocabulary is sound")
});

/// GPT-2's byte alphabet, in no special order.
fn alphabet() -> impl Iterator<Item = char> {
    let printable = ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{ff}');
    printable.chain('\u{100}'..='\u{143}')
}
