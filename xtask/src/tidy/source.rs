//! Just enough of Rust's grammar to find words and functions: strings and comments are told from code.

/// A function and how long it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// From the line of `fn` to that of the closing brace.
    pub(super) n_lines: usize,
}

/// `text` with every comment, string and character replaced by spaces; lines stay where they are.
pub(super) fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let len = blank_len(rest, before);
        let (piece, after) = rest.split_at(len.max(first.len_utf8()));
        match len {
            0 => code.push_str(piece),
            _ => code.extend(piece.chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
        }
        before = if len == 0 { first } else { ' ' };
        rest = after;
    }
    code
}

/// Whether `word` stands in `text` with nothing of a name at its sides.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_name) && !text[at + word.len()..].starts_with(is_name))
}

/// Every function with a body in `code`, which has neither comments nor strings.
pub(super) fn functions(code: &str) -> impl Iterator<Item = Function<'_>> {
    code.match_indices("fn").filter_map(move |(at, word)| {
        let after = &code[at + word.len()..];
        let named = after.trim_start();
        if code[..at].ends_with(is_name) || named.len() == after.len() {
            return None;
        }
        let end = named.find(|c| !is_name(c)).unwrap_or(named.len());
        let name = &named[..end];
        let body = body_len(named)?;
        (!name.is_empty())
            .then(|| Function { name, n_lines: 1 + lines_in(&after[..after.len() - named.len() + body]) })
    })
}

fn lines_in(text: &str) -> usize {
    text.matches('\n').count()
}

/// Bytes up to the brace that closes a function's body; `None` without a body.
fn body_len(signature: &str) -> Option<usize> {
    let (mut brackets, mut braces) = (0_usize, 0_usize);
    for (at, c) in signature.char_indices() {
        match c {
            '(' | '[' if braces == 0 => brackets += 1,
            ')' | ']' if braces == 0 => brackets = brackets.saturating_sub(1),
            ';' if braces == 0 && brackets == 0 => return None,
            '{' if brackets == 0 => braces += 1,
            '}' if braces == 1 => return Some(at + 1),
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Bytes of the comment, string or character at the beginning of `text`; 0 when it begins with code.
fn blank_len(text: &str, before: char) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment_len(text);
    }
    match text.chars().next() {
        Some('"') => string_len(text),
        Some('r') if !is_name(before) || before == 'b' || before == 'c' => raw_string_len(text),
        Some('\'') => char_len(text),
        _ => 0,
    }
}

/// Block comments nest.
fn block_comment_len(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(next) = text[at..].find(['/', '*']) {
        at += next;
        let step = match text.get(at..at + 2) {
            Some("/*") => {
                depth += 1;
                2
            }
            Some("*/") => {
                depth = depth.saturating_sub(1);
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// 0 for a raw name such as `r#type`, and for a name that begins with r.
fn raw_string_len(text: &str) -> usize {
    let n_hashes = text[1..].bytes().take_while(|&b| b == b'#').count();
    let start = 1 + n_hashes;
    if !text[start..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(n_hashes));
    text[start + 1..].find(&close).map_or(text.len(), |at| start + 1 + at + close.len())
}

/// 0 for a lifetime.
fn char_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((escaped, c))) => {
            let close = text[escaped + c.len_utf8()..].find('\'');
            close.map_or(0, |at| escaped + c.len_utf8() + at + 1)
        }
        (Some(_), Some((close, '\''))) => close + 1,
        _ => 0,
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_code(text: &str, expect: &str) {
        let code = code_only(text);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), expect);
        assert_eq!(lines_in(&code), lines_in(text), "lines stay where they are");
    }

    #[track_caller]
    fn check_functions(text: &str, expect: &[(&str, usize)]) {
        let code = code_only(text);
        let found: Vec<_> = functions(&code).map(|f| (f.name, f.n_lines)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn comments_are_not_code() {
        check_code("a // b\nc", "a c");
        check_code("a /* b /* c */\n d */ e", "a e");
        check_code("a /** / */ b", "a b");
    }

    #[test]
    fn strings_are_not_code() {
        check_code(r#"a "b \" // c" d"#, "a d");
        check_code("a r\"\\\" b", "a b");
        check_code("a r#\"b \" c\n\"# d", "a d");
        check_code("a br#\"b\"# c", "a b c");
    }

    #[test]
    fn a_name_that_begins_with_r_is_code() {
        check_code("r#type for_r", "r#type for_r");
        check_code("bar\"b\"", "bar");
    }

    #[test]
    fn characters_are_not_lifetimes() {
        check_code(r"a '{' b '\'' c '\u{7d}' d 'ü' e", "a b c d e");
        check_code("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
    }

    #[test]
    fn functions_are_measured_from_fn_to_brace() {
        check_functions("/// Docs.\nfn a() {\n    b\n}\n", &[("a", 3)]);
        check_functions("fn a(\n    x: [u8; 2],\n) -> u8 { x[0] }", &[("a", 3)]);
        check_functions("fn a() {\n    fn b() {}\n}", &[("a", 3), ("b", 1)]);
    }

    #[test]
    fn braces_in_text_do_not_count() {
        check_functions("fn a() {\n    \"}\"; '}'; // }\n}\nfn b() {}", &[("a", 3), ("b", 1)]);
    }

    #[test]
    fn what_has_no_body_is_no_function() {
        check_functions("trait T { fn a(&self) -> [u8; 3]; }", &[]);
        check_functions("type F = fn(u8) -> u8; struct S { run: fn() }", &[]);
    }

    #[test]
    fn a_word_is_not_a_part_of_a_name() {
        assert!(has_word("unsafe { }", "unsafe"));
        assert!(!has_word("unsafe_code unsafely", "unsafe"));
    }
}
