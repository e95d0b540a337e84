//! JSON as Python writes it: chat templates were written for `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting that is written; a template can nest deeper than a stack allows.
const DEPTH_MAX: usize = 128;

/// Widest indentation.
const INDENT_MAX: usize = 64;

/// The filter `tojson` of Hugging Face's templates: `json.dumps` that keeps all characters as they are.
pub(super) fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let (items, keys) = match options.get::<Option<Vec<String>>>("separators")? {
        Some(pair) if pair.len() == 2 => (pair[0].clone(), pair[1].clone()),
        Some(_) => return Err(refused("separators must be two strings")),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    if indent.is_some_and(|width| width > INDENT_MAX) {
        return Err(refused("the indentation is too wide"));
    }
    let mut writer = Writer { state, out: String::new(), paid: 0, indent, items, keys, ascii, sort_keys };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer<'s, 'a, 'b> {
    state: &'s State<'a, 'b>,
    out: String,
    /// Bytes of `out` that fuel was paid for.
    paid: usize,
    indent: Option<usize>,
    items: String,
    keys: String,
    ascii: bool,
    sort_keys: bool,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(refused("the value is nested too deeply"));
        }
        self.pay()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(refused(&format!("a value of type {kind} is not JSON"))),
        }
        Ok(())
    }

    /// A shared value can be written again and again: what it costs must be paid while it grows.
    fn pay(&mut self) -> Result<(), Error> {
        let new = (self.out.len() - self.paid) as u64 / 64;
        self.paid = self.out.len() - (self.out.len() - self.paid) % 64;
        self.state.consume_fuel(1 + new)
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(empty, depth + 1);
            self.value(&item, depth + 1)?;
            empty = false;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut names: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            names.sort();
        }
        self.out.push('{');
        for (position, name) in names.iter().enumerate() {
            self.separate(position == 0, depth + 1);
            match name.as_str() {
                Some(name) => self.string(name),
                None => self.string(&name.to_string()),
            }
            self.out.push_str(&self.keys);
            self.value(&value.get_item(name)?, depth + 1)?;
        }
        self.close('}', names.is_empty(), depth);
        Ok(())
    }

    fn separate(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.items);
        }
        self.new_line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(width) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn number(&mut self, value: &Value) {
        match (value.is_integer(), f64::try_from(value.clone())) {
            (false, Ok(float)) => push_float(float, &mut self.out),
            _ => push_display(value, &mut self.out),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\x1f' => self.escape(c),
                '\x20'..='\x7e' => self.out.push(c),
                _ if self.ascii => self.escape(c),
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            push_display(format_args!("\\u{unit:04x}"), &mut self.out);
        }
    }
}

/// Python's `repr` of a float: the shortest digits that read back the same, an exponent of at least two digits
/// below 1e-4 and from 1e16 on.
fn push_float(value: f64, out: &mut String) {
    let size = value.abs();
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    } else if size == 0.0 || (1e-4..1e16).contains(&size) {
        push_display(format_args!("{value:?}"), out);
    } else {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        push_display(format_args!("{digits}e{sign}{exponent:0>2}"), out);
    }
}

fn push_display(value: impl std::fmt::Display, out: &mut String) {
    write!(out, "{value}").expect("a string takes all text");
}

fn refused(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"))
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use crate::text::guard::{Guard, Guarded};

    /// Renders `template` with the JSON `value` as `x`.
    #[track_caller]
    fn check(template: &str, value: &str, expect: &str) {
        let mut environment = Environment::new();
        environment.add_filter("tojson", super::tojson);
        let nothing = Guarded::new(std::iter::empty());
        let x = Guard::new(&nothing).schema(&serde_json::from_str(value).unwrap()).unwrap();
        assert_eq!(environment.render_str(template, context! { x }).unwrap(), expect);
    }

    #[test]
    fn it_looks_like_json_dumps() {
        let value = r#"{"b":[1,2.0,true,null],"a":{"é<\u0001\n\"":[]},"c":{}}"#;
        check("{{ x|tojson }}", value, r#"{"b": [1, 2.0, true, null], "a": {"é<\u0001\n\"": []}, "c": {}}"#);
        check("{{ x|tojson(indent=1) }}", r#"{"b":[1],"c":[]}"#, "{\n \"b\": [\n  1\n ],\n \"c\": []\n}");
        check(
            "{{ x|tojson(sort_keys=true, separators=(',', ':')) }}",
            r#"{"b":1,"a":2}"#,
            r#"{"a":2,"b":1}"#,
        );
        check("{{ x|tojson(ensure_ascii=true) }}", r#""é🦙""#, r#""\u00e9\ud83e\udd99""#);
    }

    #[test]
    fn floats_are_pythons() {
        let value = "[1e16,1.5e-7,123456789.125,1e-4,-0.0,1e15,2e300,18446744073709551615,-5]";
        let expect = "[1e+16, 1.5e-07, 123456789.125, 0.0001, -0.0, 1000000000000000.0, 2e+300, \
                      18446744073709551615, -5]";
        check("{{ x|tojson }}", value, expect);
    }
}
