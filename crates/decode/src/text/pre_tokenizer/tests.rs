//! The scanner against the pattern it replaces.

use super::*;
use fancy_regex::Regex;
use proptest::prelude::*;

const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

static REGEX: LazyLock<Regex> = LazyLock::new(|| Regex::new(PATTERN).unwrap());

fn by_pattern(text: &str) -> Vec<&str> {
    REGEX.find_iter(text).map(|found| found.unwrap().as_str()).collect()
}

#[track_caller]
fn check(text: &str, expect: &[&str]) {
    assert_eq!(PreTokenizer.pieces(text).collect::<Vec<_>>(), expect);
    assert_eq!(by_pattern(text), expect);
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
    check("\u{301}", &["\u{301}"]);
    check("\u{301}\u{301}a", &["\u{301}\u{301}a"]);
    check(" \u{301}!\u{301}", &[" \u{301}", "!\u{301}"]);
}

#[test]
fn every_character_has_the_class_of_the_pattern() {
    for c in '\0'..=char::MAX {
        for text in [format!("{c}a"), format!("'{c}!\n{c}1")] {
            let pieces: Vec<_> = PreTokenizer.pieces(&text).collect();
            assert_eq!(pieces, by_pattern(&text), "{c:?} in {text:?}");
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
        let pieces: Vec<_> = PreTokenizer.pieces(&text).collect();
        prop_assert_eq!(pieces, by_pattern(&text));
    }
}
