//! Any text: no panic, no special token from plain text, and the text comes back.

#![no_main]

use forerun_decode::text::TextStream;
use forerun_decode_fuzz::TOKENIZER;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let vocabulary = TOKENIZER.vocabulary();
    let plain = TOKENIZER.encode_plain(text).expect("plain text has tokens");
    assert!(plain.iter().all(|&id| vocabulary.kind(id).is_some_and(|kind| !kind.is_special())));
    let special = TOKENIZER.encode_special(text).expect("text has tokens");
    // Text in composed form comes back as it was; other text has other characters.
    let normal = TOKENIZER.decode(&plain);
    assert_eq!(TOKENIZER.decode(&TOKENIZER.encode_plain(&normal).expect("plain text has tokens")), normal);
    if text.is_ascii() {
        assert_eq!(normal, text);
        assert_eq!(TOKENIZER.decode(&special), text);
    }
    let mut stream = TextStream::new(vocabulary);
    let mut shown = String::new();
    for &id in &plain {
        stream.push(id, &mut shown);
    }
    stream.finish(&mut shown);
    assert_eq!(shown, normal);
});
