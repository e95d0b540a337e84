//! Calls that are found, texts that are none, and pieces that don't matter.

use proptest::prelude::*;
use serde_json::json;

use super::super::Thoughts;
use super::*;

fn tools() -> Vec<Value> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "days": { "type": "integer" },
            "exact": { "type": "boolean" },
            "note": { "type": ["string", "null"] },
            "limit": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
            "place": { "$ref": "#/$defs/place" },
            "list": { "type": "array", "items": { "type": "number" } },
            "unit": { "enum": ["C", "F"] },
            "loop": { "$ref": "#/properties/loop" },
        },
        "$defs": { "place": { "type": "object" } },
    });
    vec![
        json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } }),
        json!({ "name": "now" }),
    ]
}

/// Events with neighbouring contents joined.
fn read(pieces: &[&str]) -> Vec<ToolEvent> {
    let mut reader = ToolCalls::new(&tools());
    let mut all: Vec<ToolEvent> = Vec::new();
    let mut take = |events: Vec<ToolEvent>| {
        for event in events {
            match (all.last_mut(), event) {
                (Some(ToolEvent::Content(text)), ToolEvent::Content(more)) => text.push_str(&more),
                (_, event) => all.push(event),
            }
        }
    };
    for piece in pieces {
        let mut events = Vec::new();
        reader.push(piece, &mut events);
        take(events);
    }
    let mut events = Vec::new();
    reader.finish(&mut events);
    take(events);
    all
}

/// `text` in the events of `expect`: contents as they are, calls as `name{arguments}`.
#[track_caller]
fn check(text: &str, expect: &[&str]) {
    let mut found = Vec::new();
    for event in read(&[text]) {
        match event {
            ToolEvent::Content(content) => found.push(content),
            ToolEvent::CallStarted { index, name } => found.push(format!("{index}:{name}")),
            ToolEvent::Arguments { fragment, .. } => found.last_mut().unwrap().push_str(&fragment),
            ToolEvent::CallEnded { .. } => {}
        }
    }
    assert_eq!(found, expect, "{text:?}");
}

fn tagged(parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function=weather>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn both_ways_of_writing_a_call_are_read() {
    check(&tagged(&[("city", "Köln"), ("days", "3")]), &[r#"0:weather{"city": "Köln", "days": 3}"#]);
    check(
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\\nb\", \"days\": 3}}\n</tool_call>",
        &[r#"0:weather{"city": "a\nb", "days": 3}"#],
    );
    check("<tool_call>\n<function=now>\n</function>\n</tool_call>", &["0:now{}"]);
    check(r#"<tool_call>{"name":"now"}</tool_call>"#, &["0:now{}"]);
    check(r#"<tool_call>{"name":"now","arguments":"{\"a\": 1}"}</tool_call>"#, &[r#"0:now{"a": 1}"#]);
    check(r#"<tool_call>{"name":"now","parameters":{"a":1}}</tool_call>"#, &[r#"0:now{"a":1}"#]);
}

#[test]
fn text_stands_before_between_and_behind_calls() {
    let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    check(&format!("Let me see.\n\n{call}"), &["Let me see.", "0:now{}"]);
    check(&format!("{call}\n{call}\n"), &["0:now{}", "1:now{}", "\n"]);
    check(&format!("a {call} b {call} c"), &["a", "0:now{}", " b", "1:now{}", " c"]);
    check("no call \n", &["no call \n"]);
    check("", &[]);
}

#[test]
fn a_values_text_is_what_its_schema_says() {
    let value = |key: &str, text: &str, expect: &str| {
        check(&tagged(&[(key, text)]), &[&format!(r#"0:weather{{"{key}": {expect}}}"#)]);
    };
    value("city", "3", r#""3""#);
    value("city", " two\n  lines ", r#"" two\n  lines ""#);
    value("city", "", r#""""#);
    value("days", " 3 ", "3");
    value("days", "123456789012345678901234567890", "123456789012345678901234567890");
    value("days", "three", r#""three""#);
    value("days", "[3]", r#""[3]""#);
    value("exact", "True", "true");
    value("exact", "false", "false");
    value("exact", "maybe", r#""maybe""#);
    value("note", "None", "null");
    value("note", "none", r#""none""#);
    value("limit", "null", "null");
    value("limit", "7", "7");
    value("place", r#"{"a": [1, {}]}"#, r#"{"a": [1, {}]}"#);
    value("place", r#"{"a": "#, r#""{\"a\": ""#);
    value("list", "[1, 2.5]", "[1, 2.5]");
    value("unit", "C", r#""C""#);
    value("loop", "1", r#""1""#);
    value("unheard", "1", r#""1""#);
}

#[test]
fn markers_inside_values_are_text() {
    check(
        &tagged(&[("city", "<tool_call>x</tool_call>\n</parameter>\n<b>")]),
        &[r#"0:weather{"city": "<tool_call>x</tool_call>\n</parameter>\n<b>"}"#],
    );
    check(
        r#"<tool_call>{"name":"now","arguments":{"a":"</tool_call>"}}</tool_call>"#,
        &[r#"0:now{"a":"</tool_call>"}"#],
    );
    check(
        r#"<tool_call>{"name":"now","arguments":{"a":"}</tool_call>"}}</tool_call>"#,
        &[r#"0:now{"a":"}</tool_call>"}"#],
    );
}

#[test]
fn what_is_no_call_is_content_as_it_was_written() {
    for text in [
        "<tool_call>",
        "a\n\n<tool_call>\n<function=now",
        "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n",
        "<tool_call>\n<function=now>\n<parameter=a>\n1\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\nfree text\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>nothing</tool_call> b",
        "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": \"[]\"}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{'name': 'now'}</tool_call>",
        "</tool_call> \n",
        "a <tool_cal",
        "   ",
    ] {
        check(text, &[text]);
    }
}

#[test]
fn a_broken_call_does_not_swallow_the_next() {
    let good = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    check(&format!("<tool_call>?</tool_call>{good}"), &["<tool_call>?</tool_call>", "0:now{}"]);
    let broken = "<tool_call>\n<function=now>\n<parameter=a>\n1\n</tool_call>\n";
    check(&format!("{broken}{good} end"), &[broken.trim_end(), "0:now{}", " end"]);
}

#[test]
fn without_tools_all_is_content() {
    let mut reader = ToolCalls::new(&[]);
    let mut events = Vec::new();
    reader.push("<tool_call>\n<function=now>\n</function>\n</tool_call>", &mut events);
    reader.finish(&mut events);
    let text = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    assert_eq!(events, [ToolEvent::Content(text.to_owned())]);
}

/// Looking again and again at what is held has a bound; thousands of markers take no time.
#[test]
fn many_broken_calls_end_as_content() {
    for unit in
        ["<tool_call>", "</tool_call>", "<tool_call>{\"a}</tool_call>", "<tool_call><function=f></function>"]
    {
        let text = unit.repeat(5_000);
        check(&text, &[&text]);
    }
}

/// Reason, call, reason, answer: what other engines lost count in (llama.cpp #12379).
#[test]
fn a_history_of_thoughts_calls_and_an_answer_is_read_step_by_step() {
    let read = |text: &str| {
        let mut thoughts = Thoughts::after("<think>\n");
        let mut reader = ToolCalls::new(&tools());
        let (mut thought, mut events) = (String::new(), Vec::new());
        for at in 0..text.len() {
            let parted = thoughts.push(&text[at..=at]);
            thought += &parted.thought;
            reader.push(&parted.answer, &mut events);
        }
        let parted = thoughts.finish();
        reader.push(&parted.answer, &mut events);
        reader.finish(&mut events);
        (thought + &parted.thought, events)
    };
    let (thought, events) =
        read("A tool knows.\n</think>\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>");
    assert_eq!(thought, "A tool knows.");
    assert_eq!(events.len(), 3, "{events:?}");
    let (thought, events) = read("<tool_call> is not needed.\n</think>\n\nNoon.");
    assert_eq!(thought, "<tool_call> is not needed.");
    let text: String = events
        .iter()
        .map(|event| if let ToolEvent::Content(text) = event { text.as_str() } else { "!" })
        .collect();
    assert_eq!(text, "Noon.");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_do_not_matter(
        text in "(<tool_call>|</tool_call>|<function=now>|</function>|<parameter=a>|</parameter>|\\{\"name\":\"now\"|,\"arguments\":\\{|\\}|\"|[ \nxé<>]){0,24}",
        cuts in prop::collection::vec(0_usize..300, 0..12),
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut.min(text.len()))).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut start = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            pieces.push(&text[start..cut]);
            start = cut;
        }
        prop_assert_eq!(read(&pieces), read(&[&text]));
    }

    /// Every call's arguments are an object, and what isn't a call's or white space before one is content.
    #[test]
    fn nothing_is_lost(
        text in "(<tool_call>\n?|</tool_call>|<function=now>\n?|</function>\n?|<parameter=a>\n|\n</parameter>\n?|[ \nxé<>]){0,24}",
    ) {
        let events = read(&[&text]);
        let mut rest = text.as_str();
        for event in &events {
            match event {
                ToolEvent::Content(content) => {
                    let at = rest.find(content.as_str());
                    prop_assert!(at.is_some_and(|at| rest[..at].trim().is_empty()), "{events:?}");
                    rest = &rest[at.unwrap() + content.len()..];
                }
                ToolEvent::CallStarted { .. } => {
                    rest = rest.trim_start();
                    prop_assert!(rest.starts_with(OPEN), "{events:?}");
                }
                ToolEvent::Arguments { fragment, .. } => {
                    let arguments = serde_json::from_str::<serde_json::Map<String, Value>>(fragment);
                    prop_assert!(arguments.is_ok(), "{events:?}");
                    // A value may itself speak of ends.
                    for value in arguments.unwrap().values().filter_map(Value::as_str) {
                        let tag = rest.find("<parameter=a>").unwrap();
                        let at = tag + rest[tag..].find(value).unwrap();
                        rest = &rest[at + value.len()..];
                    }
                }
                ToolEvent::CallEnded { .. } => {
                    let end = rest.find("</function>").unwrap();
                    let close = end + rest[end..].find(CLOSE).unwrap();
                    rest = &rest[close + CLOSE.len()..];
                }
            }
        }
        prop_assert_eq!(rest, "");
    }
}
