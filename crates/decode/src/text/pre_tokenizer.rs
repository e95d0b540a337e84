//! Cuts text into the pieces inside which BPE merges; a hand-written scanner of the `qwen35` and `qwen2` patterns.
//!
//! The pattern of `qwen35`, whose alternatives are the functions below:
//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|`
//! `\s+(?!\S)|\s+`
//!
//! That of `qwen2` is the same without `\p{M}`: a mark is a character like any other that belongs to no class.
//!
//! Engines that backtrack overflow their stack on long runs of one class; this one looks at each character a
//! bounded number of times and needs no memory.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as HirClass, HirKind};

/// The scanner for one of the patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreTokenizer {
    /// Marks belong to words.
    Qwen35,
    /// Marks don't.
    Qwen2,
}

impl PreTokenizer {
    /// The names that [`Self::named`] knows.
    pub const NAMES: &str = "qwen35, qwen2";

    /// The scanner of that name in a file's metadata.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "qwen35" => Some(Self::Qwen35),
            "qwen2" => Some(Self::Qwen2),
            _ => None,
        }
    }

    /// The pieces of `text`, in order; joined they are `text` again.
    pub fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let first = rest.chars().next()?;
            let (piece, after) = rest.split_at(self.piece_len(rest, first));
            rest = after;
            Some(piece)
        })
    }
}

/// What the pattern asks of a character; no character is two of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter,
    Mark,
    Number,
    Space,
    Other,
}

impl Class {
    fn of(c: char) -> Self {
        match c {
            'a'..='z' | 'A'..='Z' => Self::Letter,
            '0'..='9' => Self::Number,
            '\t'..='\r' | ' ' => Self::Space,
            '\0'..='\x7f' => Self::Other,
            _ if c.is_whitespace() => Self::Space,
            _ => Self::from_table(c),
        }
    }

    fn from_table(c: char) -> Self {
        let table = &*TABLE;
        let after = table.partition_point(|range| range.first <= c);
        match after.checked_sub(1).map(|at| &table[at]) {
            Some(range) if c <= range.last => range.class,
            _ => Self::Other,
        }
    }

    fn in_word(self) -> bool {
        matches!(self, Self::Letter | Self::Mark)
    }
}

/// Neighbouring characters of one class.
struct Range {
    first: char,
    last: char,
    class: Class,
}

/// Letters, marks and numbers, sorted: about 13 KiB, from the tables that the `regex` crate is built on, so that
/// scanner and pattern mean the same Unicode version.
static TABLE: LazyLock<Box<[Range]>> = LazyLock::new(|| {
    let classes = [(r"\p{L}", Class::Letter), (r"\p{M}", Class::Mark), (r"\p{N}", Class::Number)];
    let mut table: Vec<Range> = classes.into_iter().flat_map(|(name, class)| ranges(name, class)).collect();
    table.sort_by_key(|range| range.first);
    table.into()
});

fn ranges(name: &str, class: Class) -> Vec<Range> {
    let hir = regex_syntax::parse(name).expect("a class name that `regex-syntax` knows");
    let HirKind::Class(HirClass::Unicode(set)) = hir.kind() else {
        unreachable!("{name} is a class of Unicode characters")
    };
    set.iter().map(|range| Range { first: range.start(), last: range.end(), class }).collect()
}

impl PreTokenizer {
    /// The class of a character, as the pattern sees it.
    fn class(self, c: char) -> Class {
        match Class::of(c) {
            Class::Mark if self == Self::Qwen2 => Class::Other,
            class => class,
        }
    }

    /// Bytes of the piece at the start of `rest`, at least those of `first`, its first character.
    fn piece_len(self, rest: &str, first: char) -> usize {
        match self.class(first) {
            Class::Letter => self.word(rest),
            Class::Number => first.len_utf8(),
            class => contraction(rest)
                .or_else(|| self.led_word(rest, first, class))
                .or_else(|| self.punctuation(rest))
                .unwrap_or_else(|| self.white_space(rest)),
        }
    }

    /// A word behind one character that is neither CR, LF, letter nor number; a lone mark is a word by itself.
    fn led_word(self, rest: &str, first: char, class: Class) -> Option<usize> {
        if is_line_end(first) {
            return None;
        }
        let lead = first.len_utf8();
        match self.word(&rest[lead..]) {
            0 => (class == Class::Mark).then_some(lead),
            len => Some(lead + len),
        }
    }

    /// An optional space, characters that belong to no class, and the line ends behind them.
    fn punctuation(self, rest: &str) -> Option<usize> {
        let lead = usize::from(rest.starts_with(' '));
        let len = run(&rest[lead..], |c| self.class(c) == Class::Other);
        let end = lead + len;
        (len > 0).then(|| end + run(&rest[end..], is_line_end))
    }

    /// A run of white space: up to its last line end; else without its last character, which belongs to what follows.
    fn white_space(self, rest: &str) -> usize {
        let len = run(rest, |c| self.class(c) == Class::Space);
        if let Some(at) = rest[..len].rfind(is_line_end) {
            return at + 1;
        }
        let last = rest[..len].char_indices().next_back().map_or(0, |(at, _)| at);
        if len == rest.len() || last == 0 { len } else { last }
    }

    /// Bytes of the letters and marks at the start of `text`.
    fn word(self, text: &str) -> usize {
        run(text, |c| self.class(c).in_word())
    }
}

/// `'s` and its like, in any case; the long s counts as an s, as in every Unicode case folding.
fn contraction(rest: &str) -> Option<usize> {
    let tail = rest.strip_prefix('\'')?;
    let mut chars = tail.chars();
    let (first, second) = (chars.next()?, chars.next());
    let len = match first.to_ascii_lowercase() {
        's' | 't' | 'm' | 'd' | 'ſ' => first.len_utf8(),
        'r' | 'v' if second.is_some_and(|c| c.eq_ignore_ascii_case(&'e')) => 2,
        'l' if second.is_some_and(|c| c.eq_ignore_ascii_case(&'l')) => 2,
        _ => return None,
    };
    Some(1 + len)
}

/// Bytes of the characters at the start of `text` that are `wanted`.
fn run(text: &str, wanted: impl Fn(char) -> bool) -> usize {
    text.find(|c| !wanted(c)).unwrap_or(text.len())
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

#[cfg(test)]
mod tests;
