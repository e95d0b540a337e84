//! The scanners against the patterns they replace.

use super::*;
use fancy_regex::Regex;
use proptest::prelude::*;

use PreTokenizer::{Qwen2, Qwen35};

const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The patterns of `Qwen35` and `Qwen2`.
static REGEXES: LazyLock<[Regex; 2]> =
    LazyLock::new(|| [PATTERN, &PATTERN.replace(r"\p{M}", "")].map(|pattern| Regex::new(pattern).unwrap()));

fn by_pattern(scanner: PreTokenizer, text: &str) -> Vec<&str> {
    REGEXES[scanner as usize].find_iter(text).map(|found| found.unwrap().as_str()).collect()
}

#[track_caller]
fn check_one(scanner: PreTokenizer, text: &str, expect: &[&str]) {
    assert_eq!(scanner.pieces(text).collect::<Vec<_>>(), expect);
    assert_eq!(by_pattern(scanner, text), expect);
}

#[track_caller]
fn check(text: &str, expect: &[&str]) {
    check_one(Qwen35, text, expect);
    check_one(Qwen2, text, expect);
}

#[test]
fn contractions_ignore_case() {
    check("it's WE'LL i'ſ 'v", &["it", "'s", " WE", "'LL", " i", "'ſ", " '", "v"]);
}

#[test]
fn digits_are_never_grouped() {
    check("x=12½", &["x", "=", "1", "2", "½"]);
}

#[test]
fn white_space_keeps_its_last_character_for_the_word() {
    check("a   b", &["a", "  ", " b"]);
    check("a   1", &["a", "  ", " ", "1"]);
    check("a   ", &["a", "   "]);
    check("\u{3000}\u{3000}\u{3000}1", &["\u{3000}\u{3000}", "\u{3000}", "1"]);
}

#[test]
fn white_space_ends_at_its_last_line_end() {
    check(" \n \n  x", &[" \n \n", " ", " x"]);
    check("!\r\n\r\n\n x", &["!\r\n\r\n\n", " x"]);
}

#[test]
fn marks_belong_to_words() {
    check_one(Qwen35, "\u{301}", &["\u{301}"]);
    check_one(Qwen35, "\u{301}\u{301}a", &["\u{301}\u{301}a"]);
    check_one(Qwen35, " \u{301}!\u{301}", &[" \u{301}", "!\u{301}"]);
}

#[test]
fn marks_belong_to_no_word_of_qwen2() {
    check_one(Qwen2, "a\u{301}b", &["a", "\u{301}b"]);
    check_one(Qwen2, "\u{301}\u{301}a", &["\u{301}\u{301}", "a"]);
    check_one(Qwen2, " \u{301}!\u{301}", &[" \u{301}!\u{301}"]);
}

#[test]
fn every_character_has_the_class_of_the_pattern() {
    for c in '\0'..=char::MAX {
        for text in [format!("{c}a"), format!("'{c}!\n{c}1")] {
            for scanner in [Qwen35, Qwen2] {
                let pieces: Vec<_> = scanner.pieces(&text).collect();
                assert_eq!(pieces, by_pattern(scanner, &text), "{c:?} in {text:?}");
            }
        }
    }
}

/// Characters between which the pattern decides, often; any other, sometimes.
fn character() -> impl Strategy<Value = char> {
    prop_oneof![
        4 => prop::sample::select(" \t\n\r\u{b}\u{85}\u{a0}\u{2028}\u{3000}".chars().collect::<Vec<_>>()),
        4 => prop::sample::select("''sStTrReEvVmMlLdDſKk".chars().collect::<Vec<_>>()),
        3 => prop::sample::select("09½٣.!?_-<|>\0\u{200b}\u{200d}\u{feff}€🦙".chars().collect::<Vec<_>>()),
        3 => prop::sample::select("aäß中あ한ไม\u{301}\u{308}\u{e31}\u{e48}\u{94d}".chars().collect::<Vec<_>>()),
        1 => any::<char>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_scanner_cuts_like_the_pattern(text in prop::collection::vec(character(), 0..24)) {
        let text: String = text.into_iter().collect();
        for scanner in [Qwen35, Qwen2] {
            let pieces: Vec<_> = scanner.pieces(&text).collect();
            prop_assert_eq!(pieces, by_pattern(scanner, &text));
        }
    }
}
