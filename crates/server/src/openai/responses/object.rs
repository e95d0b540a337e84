//! The object that a response is.

use serde_json::{Map, Value, json};

use crate::answer::{Call, Ending, Finish, Part, Usage, Whole};
use crate::ask::Ask;
use crate::refusal::Refusal;

/// What a response is called, whose it is, and what it repeats of its request.
#[derive(Clone, Debug)]
pub(super) struct ResponseObject {
    fields: Map<String, Value>,
}

impl ResponseObject {
    pub(super) fn new(model: &str, ask: &Ask, mut echo: Map<String, Value>) -> Self {
        let more = json!({
            "id": format!("resp_{}", crate::chance::name()),
            "object": "response",
            "created_at": crate::chance::unix_seconds(),
            "model": model,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "previous_response_id": null,
            "store": false,
            "temperature": ask.sampler.temperature,
            "top_p": ask.sampler.top_p,
            "truncation": "disabled",
            "usage": null,
        });
        if let Value::Object(more) = more {
            echo.extend(more);
        }
        Self { fields: echo }
    }

    /// A response that isn't over.
    pub(super) fn open(&self) -> Value {
        self.with("in_progress", Vec::new())
    }

    /// A response that is over; `ids` are the items' names.
    pub(super) fn closed(&self, parts: &[(String, Part)], ending: &Ending) -> Value {
        let is_cut = ending.finish == Finish::Length;
        let last = parts.len().saturating_sub(1);
        let item = |(index, (id, part)): (usize, &(String, Part))| {
            item(id, part, if is_cut && index == last { "incomplete" } else { "completed" })
        };
        let output = parts.iter().enumerate().map(item).collect();
        let mut response = self.with(if is_cut { "incomplete" } else { "completed" }, output);
        if is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            response["completed_at"] = crate::chance::unix_seconds().into();
        }
        response["usage"] = usage(ending.usage);
        response["timings"] = serde_json::to_value(&ending.telemetry).unwrap_or_default();
        response
    }

    /// The same of an answer that was made at once.
    pub(super) fn whole(&self, whole: Whole) -> Value {
        let Whole { parts, ending, .. } = whole;
        let parts: Vec<_> = parts.into_iter().map(|part| (item_id(&part), part)).collect();
        self.closed(&parts, &ending)
    }

    /// A response that failed.
    pub(super) fn failed(&self, refusal: &Refusal) -> Value {
        let mut response = self.with("failed", Vec::new());
        let code = refusal.code.unwrap_or("server_error");
        response["error"] = json!({"code": code, "message": refusal.message});
        response
    }

    fn with(&self, status: &str, output: Vec<Value>) -> Value {
        let mut fields = self.fields.clone();
        fields.insert("status".into(), status.into());
        fields.insert("output".into(), output.into());
        Value::Object(fields)
    }
}

/// A name for an item.
pub(super) fn item_id(part: &Part) -> String {
    let prefix = match part {
        Part::Thought(_) => "rs",
        Part::Text(_) => "msg",
        Part::Call(_) => "fc",
    };
    format!("{prefix}_{}", crate::chance::name())
}

/// An item of the output.
pub(super) fn item(id: &str, part: &Part, status: &str) -> Value {
    match part {
        Part::Thought(_) => {
            json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": [content(part)]})
        }
        Part::Text(_) => {
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [content(part)]})
        }
        Part::Call(Call { id: call_id, name, arguments }) => json!({
            "id": id,
            "type": "function_call",
            "status": status,
            "call_id": format!("call_{call_id}"),
            "name": name,
            "arguments": arguments,
        }),
    }
}

/// What is inside an item of thoughts or text.
pub(super) fn content(part: &Part) -> Value {
    match part {
        Part::Thought(text) => json!({"type": "reasoning_text", "text": text}),
        Part::Text(text) => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        Part::Call(_) => Value::Null,
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.reused, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.thoughts},
        "total_tokens": usage.prompt + usage.completion,
    })
}
