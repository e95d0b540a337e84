//! Checks a template's source before it is read: its size, and how long one tag is.
//!
//! The reader takes time that grows with the square of an expression's length, and stack that grows with it.

use super::TextError;

/// Longest template; the longest known have about 30 KiB.
const SOURCE_BYTES_MAX: usize = 64 << 10;

/// Most bytes of one tag outside of its string literals; the stock template's longest has under 200.
const TAG_BYTES_MAX: usize = 2 << 10;

/// Refuses a source that is too large, or has a tag that is.
pub(super) fn check(source: &str) -> Result<(), TextError> {
    if source.len() > SOURCE_BYTES_MAX {
        let reason = format!("it has {} bytes; at most {SOURCE_BYTES_MAX} are supported", source.len());
        return Err(TextError::TemplateSyntax { reason });
    }
    let mut rest = source;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let tag = &rest[at + 2..];
        let (n_code, n_bytes) = measure(tag.as_bytes());
        if n_code > TAG_BYTES_MAX {
            let line = source[..source.len() - tag.len()].lines().count();
            let reason = format!("the tag in line {line} has more than {TAG_BYTES_MAX} bytes of code");
            return Err(TextError::TemplateSyntax { reason });
        }
        rest = &tag[n_bytes..];
    }
    Ok(())
}

/// Bytes of a tag outside of string literals, and bytes in all, up to its end; `tag` begins behind the opening.
fn measure(tag: &[u8]) -> (usize, usize) {
    let (mut at, mut n_code, mut n_open) = (0, 0, 0usize);
    while let Some(&byte) = tag.get(at) {
        match byte {
            b'\'' | b'"' => {
                at += literal(&tag[at..]);
                continue;
            }
            b'}' if n_open == 0 => break,
            b'%' if tag.get(at + 1) == Some(&b'}') => break,
            b'{' => n_open += 1,
            b'}' => n_open -= 1,
            _ => {}
        }
        n_code += 1;
        at += 1;
    }
    (n_code, at)
}

/// Bytes of the string literal at the start of `tag`, its quotes included.
fn literal(tag: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = tag.get(at) {
        at += 1;
        match byte {
            b'\\' => at = (at + 1).min(tag.len()),
            _ if byte == tag[0] => return at,
            _ => {}
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_tag_is_refused_and_a_long_literal_is_not() {
        let long = "1~".repeat(2000);
        for source in [format!("a\n{{{{ {long}1 }}}}"), format!("{{{{ {{'}}}}': {{}}}}, {long}1")] {
            assert!(matches!(check(&source), Err(TextError::TemplateSyntax { .. })), "{source}");
        }
        let error = check(&format!("a\n{{% if {long}1 %}}")).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        for source in
            [format!("{{{{ '{long}\\'' }}}}"), format!("{{{{ 1 }}}} {long}"), format!("{{% if \"{long}")]
        {
            assert!(check(&source).is_ok());
        }
        // A source that ends in the middle of something.
        for source in ["{{", "{%", "{{ '", "{{ '\\", "{{ {", "{{ }", "é{{é}"] {
            assert!(check(source).is_ok());
        }
    }
}
