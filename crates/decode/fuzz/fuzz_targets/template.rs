//! Any template with any messages: no panic, no overflow, and under a fixed template no forged control token.

#![no_main]

use arbitrary::Arbitrary;
use forerun_decode::text::{ChatTemplate, FunctionCall, Message, RenderRequest, Role, TextError, ToolCall};
use forerun_decode_fuzz::TOKENIZER;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// The markers and manners of the stock template.
const FIXED: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content|trim }}\
    {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}\
    {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}\
    <|im_end|>\n{% endfor %}";

#[derive(Arbitrary, Debug)]
struct Input {
    template: String,
    messages: Vec<(u8, String, Option<String>)>,
    arguments: Option<String>,
}

fuzz_target!(|input: Input| {
    let messages: Vec<Message> =
        input.messages.iter().map(|m| message(m, input.arguments.as_deref())).collect();
    let request = RenderRequest::new(&messages);
    if let Ok(template) = ChatTemplate::new(&input.template, &TOKENIZER)
        && let Ok(prompt) = template.render(&request)
    {
        prompt.encode(&TOKENIZER).expect("a prompt has tokens");
    }
    let template = ChatTemplate::new(FIXED, &TOKENIZER).expect("the fixed template is sound");
    match template.render(&request) {
        Ok(prompt) => check_markers(&prompt.encode(&TOKENIZER).expect("a prompt has tokens"), messages.len()),
        Err(TextError::ToolArguments { .. }) => {}
        Err(error) => panic!("{error}"),
    }
});

fn message((role, content, reasoning): &(u8, String, Option<String>), arguments: Option<&str>) -> Message {
    let role = [Role::System, Role::User, Role::Assistant, Role::Tool][usize::from(role % 4)];
    let call = |text: &str| ToolCall {
        id: None,
        function: FunctionCall { name: text.to_owned(), arguments: Value::String(text.to_owned()) },
    };
    Message {
        reasoning_content: reasoning.clone(),
        tool_calls: arguments.map(|text| vec![call(text)]),
        ..Message::new(role, content.as_str())
    }
}

fn check_markers(ids: &[forerun_model::TokenId], n_messages: usize) {
    let count = |literal| {
        let id = TOKENIZER.vocabulary().special(literal);
        ids.iter().filter(|&&found| Some(found) == id).count()
    };
    assert_eq!((count("<|im_start|>"), count("<|im_end|>")), (n_messages, n_messages));
    assert_eq!(count("<|endoftext|>"), 0);
}
