//! Answers in Anthropic's shape: as events while they are made, or whole.

use serde_json::{Value, json};

use super::error;
use crate::answer::{Block, Blocks, Call, Delta, Ending, Finish, Part, Usage, Whole};
use crate::http::streaming::{Renderer, named_frame};
use crate::refusal::Refusal;

/// Thoughts come back as they went; nothing proves that they did.
const SIGNATURE: &str = "unsigned";

/// What an answer is called and whose it is.
pub(super) struct Head {
    id: String,
    model: String,
}

impl Head {
    pub(super) fn new(model: &str) -> Self {
        Self { id: format!("msg_{}", crate::chance::name()), model: model.to_owned() }
    }

    /// A message that isn't over.
    fn message(&self, content: Vec<Value>, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    /// A message that is over.
    pub(super) fn whole(&self, whole: Whole) -> Value {
        let Whole { parts, ending, .. } = whole;
        let mut message = self.message(parts.iter().map(block).collect(), usage(ending.usage));
        let (reason, sequence) = stop(&ending);
        message["stop_reason"] = reason;
        message["stop_sequence"] = sequence;
        message["timings"] = serde_json::to_value(&ending.telemetry).unwrap_or_default();
        message
    }
}

/// Tokens that were held from before don't count as read.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.reused),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.reused,
        "output_tokens": usage.completion,
    })
}

/// Why an answer ended, and the text that ended it.
fn stop(ending: &Ending) -> (Value, Value) {
    match &ending.finish {
        Finish::Stop => ("end_turn".into(), Value::Null),
        Finish::StopText(text) => ("stop_sequence".into(), text.as_str().into()),
        Finish::Calls => ("tool_use".into(), Value::Null),
        Finish::Length => ("max_tokens".into(), Value::Null),
    }
}

/// A block that is complete.
fn block(part: &Part) -> Value {
    match part {
        Part::Thought(text) => json!({"type": "thinking", "thinking": text, "signature": SIGNATURE}),
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Call(Call { id, name, arguments }) => {
            let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            json!({"type": "tool_use", "id": format!("toolu_{id}"), "name": name, "input": input})
        }
    }
}

/// An answer as events.
pub(super) struct Events {
    head: Head,
    prompt_tokens: usize,
    blocks: Blocks,
    index: usize,
    /// What the open block's pieces are called.
    delta: (&'static str, &'static str),
    ending: Option<Box<Ending>>,
}

impl Events {
    pub(super) fn new(head: Head, prompt_tokens: usize) -> Self {
        Self { head, prompt_tokens, blocks: Blocks::default(), index: 0, delta: ("", ""), ending: None }
    }

    fn show(&mut self, blocks: Vec<Block>, out: &mut String) {
        for block in blocks {
            match block {
                Block::Begins(part) => {
                    self.delta = match &part {
                        Part::Thought(_) => ("thinking_delta", "thinking"),
                        Part::Text(_) => ("text_delta", "text"),
                        Part::Call(_) => ("input_json_delta", "partial_json"),
                    };
                    let begun = begun(&part);
                    event("content_block_start", json!({"index": self.index, "content_block": begun}), out);
                }
                Block::Grows(more) => {
                    let (kind, field) = self.delta;
                    self.piece(json!({"type": kind, field: more}), out);
                }
                Block::Ends(part) => {
                    if matches!(part, Part::Thought(_)) {
                        self.piece(json!({"type": "signature_delta", "signature": SIGNATURE}), out);
                    }
                    event("content_block_stop", json!({"index": self.index}), out);
                    self.index += 1;
                }
            }
        }
    }

    fn piece(&self, delta: Value, out: &mut String) {
        event("content_block_delta", json!({"index": self.index, "delta": delta}), out);
    }
}

/// A block that has just begun.
fn begun(part: &Part) -> Value {
    let mut begun = block(part);
    if matches!(part, Part::Thought(_)) {
        begun["signature"] = "".into();
    }
    begun
}

fn event(kind: &str, mut data: Value, out: &mut String) {
    data["type"] = kind.into();
    named_frame(kind, &data, out);
}

impl Renderer for Events {
    const KEEP_ALIVE: &'static str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

    fn begin(&mut self, out: &mut String) {
        let counts = Usage { prompt: self.prompt_tokens, ..Usage::default() };
        event("message_start", json!({"message": self.head.message(Vec::new(), usage(counts))}), out);
    }

    fn delta(&mut self, _: usize, delta: Delta, out: &mut String) {
        let mut blocks = Vec::new();
        match delta {
            Delta::Progress(_) => {}
            Delta::Words(words) => self.blocks.words(words.thought, words.text, &mut blocks),
            Delta::Call(call) => self.blocks.call(call, &mut blocks),
            Delta::Done(ending) => {
                self.blocks.finish(&mut blocks);
                self.ending = Some(ending);
            }
        }
        self.show(blocks, out);
    }

    fn end(&mut self, out: &mut String) {
        if let Some(ending) = self.ending.take() {
            let (reason, sequence) = stop(&ending);
            let timings = serde_json::to_value(&ending.telemetry).unwrap_or_default();
            let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
            let data = json!({"delta": delta, "usage": usage(ending.usage), "timings": timings});
            event("message_delta", data, out);
        }
        event("message_stop", json!({}), out);
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        named_frame("error", &error::body(refusal), out);
    }
}
