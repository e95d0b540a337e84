//! Looks through a Lark grammar for what isn't offered here.
//!
//! Directives can bring schemas that nobody checked, and settings; special tokens would let a client make control
//! tokens; and attributes of a rule can ask for what our sampler doesn't do.

use super::GrammarError;

/// Attributes of a rule that only say how it matches.
const ATTRIBUTES: [&str; 2] = ["lazy", "suffix"];
const DIRECTIVES: [&str; 2] = ["ignore", "import"];

/// Fails on the first part that isn't offered.
pub(super) fn check(text: &str) -> Result<(), GrammarError> {
    let refused = |construct: &str, line: usize, hint| {
        Err(GrammarError::Construct { construct: construct.to_owned(), line, hint })
    };
    if text.trim().is_empty() {
        let reason = "it is empty; it must have at least a rule `start`".to_owned();
        return Err(GrammarError::Refused { kind: "Lark grammar", reason });
    }
    for (line, code) in bare(text).lines().enumerate() {
        let line = line + 1;
        if code.contains("::=") {
            return refused(
                "::=",
                line,
                "this looks like GBNF; rules of Lark are `name: ...`, and the first is `start`",
            );
        }
        for (at, _) in code.match_indices('%') {
            let word = word(&code[at + 1..]);
            if !DIRECTIVES.contains(&word) {
                return refused(
                    &format!("%{word}"),
                    line,
                    "there are `%ignore` and `%import`; a schema is a kind of grammar of its own",
                );
            }
        }
        if code.contains('<') {
            return refused("<", line, "special tokens can't be asked for; a text is written in quotes");
        }
        if code.contains('@') {
            return refused("@", line, "there is no other grammar to refer to");
        }
        if let Some(wrong) = attributes(code).iter().find(|name| !ATTRIBUTES.contains(&name.as_str())) {
            return refused(wrong, line, "rules can have `lazy` and `suffix` only");
        }
    }
    Ok(())
}

/// The text without comments and without what stands in quotes and slashes, in the same lines. Quotes end with their line,
/// slashes needn't.
fn bare(text: &str) -> String {
    let mut bare = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' | '/' if c == '#' || chars.peek() == Some(&'/') => {
                while chars.next_if(|&c| c != '\n').is_some() {}
            }
            '"' | '/' => {
                bare.push('"');
                while let Some(inner) = chars.next_if(|&inner| c == '/' || inner != '\n') {
                    match inner {
                        '\\' => drop(chars.next_if(|&c| c != '\n')),
                        '\n' => bare.push('\n'),
                        _ if inner == c => break,
                        _ => {}
                    }
                }
            }
            _ => bare.push(c),
        }
    }
    bare
}

/// Names in the brackets between a rule's name and its colon.
fn attributes(code: &str) -> Vec<String> {
    let code = code.replace("::", " ");
    let head = code.split_once(':').map_or("", |(head, _)| head);
    let is_rule = head.trim_start().starts_with(|c: char| c.is_ascii_alphabetic() || "_!?".contains(c));
    let inner = head.split_once('[').filter(|_| is_rule).map_or("", |(_, inner)| inner);
    let names = inner.split([']', ',']).map(|part| part.split('=').next().unwrap_or_default().trim());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The letters that `text` begins with.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric());
    &text[..end.unwrap_or(text.len())]
}
