//! Chat templates: what a longer conversation keeps, what a broken or hostile template leads to.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod text_common;

use forerun_decode::text::{
    ChatTemplate, FunctionCall, Message, PromptEnd, RenderRequest, Role, TextError, Thinking, ToolCall,
};
use serde_json::{Value, json};
use text_common::{pico, tiny};

fn tools() -> Vec<Value> {
    vec![
        json!({ "type": "function", "function": { "name": "now", "description": "The time.", "parameters": {} } }),
    ]
}

fn call(name: &str) -> Message {
    let function = FunctionCall { name: name.into(), arguments: json!({ "zone": "UTC" }) };
    Message { tool_calls: Some(vec![ToolCall { id: None, function }]), ..Message::assistant("") }
}

/// A conversation with two questions; the first is answered with the help of tools.
fn conversation() -> Vec<Message> {
    vec![
        Message::system("Be brief."),
        Message::user("What time is it?"),
        Message { reasoning_content: Some("A tool knows.".into()), ..call("now") },
        Message::new(Role::Tool, "12:00"),
        call("now"),
        Message::new(Role::Tool, "12:01"),
        Message { reasoning_content: Some("Easy.".into()), ..Message::assistant("Noon.") },
        Message::user("Thanks."),
        Message::assistant("Welcome."),
    ]
}

/// The histories of 2, 3, … messages.
fn histories(model: &text_common::Model, messages: &[Message], tools: &[Value]) -> Vec<String> {
    let template = ChatTemplate::new(&model.template, &model.tokenizer).unwrap();
    let render = |n| {
        let request = RenderRequest { tools, end: PromptEnd::History, ..RenderRequest::new(&messages[..n]) };
        template.render(&request).unwrap().text().into_owned()
    };
    (2..=messages.len()).map(render).collect()
}

#[test]
fn a_longer_conversation_extends_the_prompt() {
    for tools in [vec![], tools()] {
        for model in [pico(), tiny()] {
            let n_first_question = 7;
            let first = histories(&model, &conversation()[..n_first_question], &tools);
            for pair in first.windows(2) {
                assert!(pair[1].starts_with(&pair[0]), "{:?}\n{:?}", pair[0], pair[1]);
            }
        }
    }
}

#[test]
fn a_new_question_drops_thoughts_and_keeps_what_is_before_them() {
    let (model, messages) = (pico(), conversation());
    let all = histories(&model, &messages, &tools());
    let (answered, asked) = (&all[5], &all[6]);
    let common = answered.find("<think>").unwrap();
    assert!(asked.starts_with(&answered[..common]));
    assert!(!asked.contains("<think>"));
    assert!(all[7].starts_with(asked.as_str()));
}

#[test]
fn an_answer_extends_the_prompt_that_asked_for_it() {
    let model = pico();
    let template = ChatTemplate::new(&model.template, &model.tokenizer).unwrap();
    let question = [Message::user("Hi")];
    let asked =
        template.render(&RenderRequest { thinking: Thinking::On, ..RenderRequest::new(&question) }).unwrap();
    let answer = Message { reasoning_content: Some("Hm.".into()), ..Message::assistant("Hello.") };
    let both = [question[0].clone(), answer];
    let request = RenderRequest { end: PromptEnd::History, ..RenderRequest::new(&both) };
    let answered = template.render(&request).unwrap();
    assert!(answered.text().starts_with(&*asked.text()));
    let (short, long) = (asked.encode(&model.tokenizer).unwrap(), answered.encode(&model.tokenizer).unwrap());
    assert!(long.starts_with(&short));
}

/// Renders `source` for one message.
fn render(source: &str) -> Result<String, TextError> {
    let model = tiny();
    let template = ChatTemplate::new(source, &model.tokenizer)?;
    let prompt = template.render(&RenderRequest::new(&[Message::user("hi <b>\"x\"</b>")]))?;
    Ok(prompt.text().into_owned())
}

#[track_caller]
fn check(source: &str, expect: &str) {
    assert_eq!(render(source).unwrap(), expect);
}

#[test]
fn pythons_habits_are_kept() {
    check("{{ ' a,b '.strip().split(',')[-1] ~ true ~ none ~ 1.0 }}", "bTrueNone1.0");
    check("{{ messages[0].content | tojson }}", r#""hi <b>\"x\"</b>""#);
    check("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\n", "user\n");
    check(
        "{{ bos_token ~ eos_token ~ (tools is none) ~ (enable_thinking is defined) }}",
        "<|im_end|>TrueFalse",
    );
    check("{{ (' x '|trim).lstrip('x') ~ ['a','b']|reject('in', ['a'])|list|length }}", "1");
    check("{% for a in [1,2,3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "13");
}

#[test]
fn what_a_template_refuses_or_gets_wrong_is_told_apart() {
    assert!(matches!(render("{% if %}"), Err(TextError::TemplateSyntax { .. })));
    assert!(matches!(render(&" ".repeat(1 << 20)), Err(TextError::TemplateSyntax { .. })));
    assert!(matches!(render("{{ nothing.at.all }}"), Err(TextError::TemplateFailed { .. })));
    assert!(matches!(render("{{ missing() }}"), Err(TextError::TemplateFailed { .. })));
    let refused =
        render("{% macro m() %}{{ raise_exception('no ' ~ messages[0].content) }}{% endmacro %}{{ m() }}");
    assert!(matches!(refused, Err(TextError::TemplateRefused { reason }) if reason == "no hi <b>\"x\"</b>"));
    let model = pico();
    let stock = ChatTemplate::new(&model.template, &model.tokenizer).unwrap();
    assert!(matches!(stock.render(&RenderRequest::new(&[])), Err(TextError::TemplateRefused { .. })));
}

#[test]
fn a_runaway_template_is_stopped() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let prints = "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxx{% endfor %}{% endfor %}";
    let doubles =
        "{% set n = namespace(x='ab') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
    let adds = doubles.replace("n.x ~ n.x", "n.x + n.x");
    let json = doubles.replace("'ab'", "[1]").replace("n.x ~ n.x", "[n.x, n.x]") + "{{ n.x | tojson }}";
    let replaces = doubles.replace("n.x ~ n.x", "n.x.replace('a', n.x)");
    let repeats = "{{ 'x' * 99999999 }}";
    for source in [loops, prints, doubles, &adds, &json, &replaces, repeats] {
        let result = render(source);
        assert!(
            matches!(result, Err(TextError::TemplateRunaway { .. } | TextError::TemplateFailed { .. })),
            "{source}"
        );
    }
}

#[test]
fn deep_recursion_is_stopped() {
    let macros = "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}";
    let deep_list =
        "{% set n = namespace(x=[]) %}{% for a in range(90000) %}{% set n.x = [n.x] %}{% endfor %}";
    let parens = format!("{{{{ {}1{} }}}}", "(".repeat(9999), ")".repeat(9999));
    let blocks = "{% if true %}".repeat(2000) + &"{% endif %}".repeat(2000);
    let json = deep_list.to_owned() + "{{ n.x | tojson }}";
    for source in [macros, &parens, &blocks, &json] {
        assert!(render(source).is_err(), "{}", &source[..60]);
    }
    // The fuel grows with the request, and so does what can be nested.
    let model = tiny();
    let deeper = format!("{{% for b in range(90000) %}}{deep_list}{{% endfor %}}")
        .replace("{% set n = namespace(x=[]) %}", "");
    let deeper = format!("{{% set n = namespace(x=[]) %}}{deeper}");
    let template = ChatTemplate::new(&deeper, &model.tokenizer).unwrap();
    let long = [Message::user("x".repeat(8 << 20))];
    assert!(matches!(template.render(&RenderRequest::new(&long)), Err(TextError::TemplateRunaway { .. })));
    // Chains as long as a tag may be: no error, or not for certain, but soon and without an overflow.
    for (begin, unit, end) in [
        ("", "not ", "1"),
        ("", "-", "1"),
        ("1", "~1", ""),
        ("1", "+1", ""),
        ("1", ".a", ""),
        ("1", "|e", ""),
        ("", "[", ""),
    ] {
        let _ = render(&format!("{{{{ {begin}{}{end} }}}}", unit.repeat(2000 / unit.len())));
    }
    let _ = (render(deep_list), render(&(deep_list.to_owned() + "{{ n.x }}")));
}
