//! A text that is read piece by piece has the tokens of the whole.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{self, Read};
use std::sync::LazyLock;

use forerun_decode::DecodeError;
use forerun_decode::text::{TokenReader, Tokenizer, VocabularyParts};
use forerun_model::TokenId;
use forerun_storage::Gguf;
use proptest::prelude::*;
use support::fixture;

static PICO: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer(None, false));

fn tokenizer(bos: Option<i128>, add_bos: bool) -> Tokenizer {
    let gguf = Gguf::open(&fixture("pico-q4_k_m.gguf")).unwrap();
    let mut parts = VocabularyParts::from_metadata(&gguf.metadata).unwrap();
    (parts.bos, parts.add_bos) = (bos, add_bos);
    Tokenizer::new(&parts).unwrap()
}

/// Gives a few bytes at a time.
struct Dribble<'a> {
    rest: &'a [u8],
    most: usize,
}

impl Read for Dribble<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.most.min(buffer.len());
        self.rest.read(&mut buffer[..n])
    }
}

/// All tokens, and how many pieces they came in.
fn read(tokenizer: &Tokenizer, text: &[u8], most: usize) -> Result<(Vec<TokenId>, usize), DecodeError> {
    let mut reader = TokenReader::new(Dribble { rest: text, most });
    let (mut ids, mut n_pieces) = (Vec::new(), 0);
    while reader.next(tokenizer, &mut ids)? {
        n_pieces += 1;
    }
    Ok((ids, n_pieces))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn pieces_change_no_token(
        text in r"([ \n\r\t'a-cé1!\u{301}\u{3000}天<|>]|'s| the|\n\n|<\|im_end\|>){0,40}",
        most in 1_usize..9,
    ) {
        // One line end at the end is the file's.
        let whole = PICO.encode_plain(text.strip_suffix('\n').unwrap_or(&text)).unwrap();
        prop_assert_eq!(read(&PICO, text.as_bytes(), most).unwrap().0, whole, "{:?}", text);
    }
}

#[test]
fn prose_comes_in_many_pieces() {
    let text = std::fs::read_to_string(fixture("heldout.txt")).unwrap();
    let (ids, n_pieces) = read(&PICO, text.as_bytes(), 64).unwrap();
    assert_eq!(ids, PICO.encode_plain(text.trim_end()).unwrap());
    assert!(n_pieces > 100, "{n_pieces}");
}

#[test]
fn bytes_that_are_no_text_are_told_where_they_are() {
    for (bytes, offset) in [(&b"one two \xff three"[..], 8), (b"one two \xe5\xa4", 8), (b"\x80", 0)] {
        for most in [1, 3, 64] {
            let error = read(&PICO, bytes, most).unwrap_err();
            let DecodeError::NotUtf8 { offset_bytes } = error else { panic!("{error}") };
            assert_eq!(offset_bytes, offset, "{bytes:?} {most}");
        }
    }
}

#[test]
fn a_stretch_without_a_place_to_cut_is_bounded() {
    let short = "x".repeat(30 << 10);
    assert!(!read(&PICO, short.as_bytes(), 1 << 14).unwrap().0.is_empty());
    let long = format!("one two {}", "x".repeat(50 << 10));
    let error = read(&PICO, long.as_bytes(), 1 << 14).unwrap_err();
    assert!(matches!(error, DecodeError::NoCut { offset_bytes: 7, .. }), "{error}");
}

#[test]
fn the_token_in_front_of_every_text_is_there_only_where_the_file_asks_for_it() {
    let asked = |bos, add_bos| read(&tokenizer(bos, add_bos), b"one", 64).unwrap().0;
    let plain = PICO.encode_plain("one").unwrap();
    assert_eq!(asked(Some(8166), true), [&[TokenId(8166)], &plain[..]].concat());
    for (bos, add_bos) in [(Some(8166), false), (None, true), (None, false)] {
        assert_eq!(asked(bos, add_bos), plain);
    }
}
