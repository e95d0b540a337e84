//! Answers in Ollama's shape: a line of JSON for each piece, or whole.

use serde_json::{Value, json};

use crate::answer::{Block, Blocks, Call, Delta, Ending, Finish, Part, Whole};
use crate::http::streaming::Renderer;
use crate::refusal::Refusal;

/// Which of the two kinds of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `message` with a role.
    Chat,
    /// `response`.
    Generate,
}

/// Whose an answer is: the model as the client called it.
pub(super) struct Head {
    model: String,
    shape: Shape,
}

impl Head {
    pub(super) fn new(model: String, shape: Shape) -> Self {
        Self { model, shape }
    }

    /// A line.
    fn line(&self, text: &str, thought: &str, calls: Vec<Value>, is_done: bool) -> Value {
        let created = crate::date::rfc3339(crate::chance::unix_seconds());
        let mut line = json!({"model": self.model, "created_at": created, "done": is_done});
        let place = match self.shape {
            Shape::Chat => {
                line["message"] = json!({"role": "assistant", "content": text});
                &mut line["message"]
            }
            Shape::Generate => {
                line["response"] = text.into();
                &mut line
            }
        };
        if !thought.is_empty() {
            place["thinking"] = thought.into();
        }
        if !calls.is_empty() {
            place["tool_calls"] = calls.into();
        }
        line
    }

    /// What is said when there is nothing to answer.
    pub(super) fn loaded(&self) -> Value {
        let mut line = self.line("", "", Vec::new(), true);
        line["done_reason"] = "load".into();
        line
    }

    /// An answer that is over.
    pub(super) fn whole(&self, whole: &Whole) -> Value {
        let calls = whole.calls().map(call).collect();
        let mut line = self.line(&whole.text(), &whole.thought(), calls, true);
        end(&mut line, &whole.ending, 0.0);
        line
    }
}

fn call(Call { id, name, arguments }: &Call) -> Value {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
    json!({"id": format!("call_{id}"), "function": {"name": name, "arguments": arguments}})
}

/// Counts, times in nanoseconds, and the reason of the end.
fn end(line: &mut Value, ending: &Ending, queued_ms: f64) {
    let telemetry = &ending.telemetry;
    let total_ms = queued_ms + telemetry.prompt_ms + telemetry.decode_ms;
    line["done_reason"] = match ending.finish {
        Finish::Stop | Finish::StopText(_) | Finish::Calls => "stop".into(),
        Finish::Length => "length".into(),
    };
    line["total_duration"] = nanos(total_ms).into();
    // The model is always there.
    line["load_duration"] = 0.into();
    line["prompt_eval_count"] = ending.usage.prompt.into();
    line["prompt_eval_duration"] = nanos(telemetry.prompt_ms).into();
    line["eval_count"] = ending.usage.completion.into();
    line["eval_duration"] = nanos(telemetry.decode_ms).into();
    line["timings"] = serde_json::to_value(telemetry).unwrap_or_default();
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time isn't negative, and saturates"
)]
fn nanos(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

/// An answer in lines.
pub(super) struct Lines {
    head: Head,
    /// For calls, which are told when they are whole.
    blocks: Blocks,
    queued_ms: f64,
}

impl Lines {
    pub(super) fn new(head: Head) -> Self {
        Self { head, blocks: Blocks::default(), queued_ms: 0.0 }
    }
}

impl Renderer for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";
    const KEEP_ALIVE: &'static str = "";

    fn begin(&mut self, _: &mut String) {}

    fn delta(&mut self, _: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Progress(progress) => self.queued_ms = progress.queued_ms,
            Delta::Words(words) if words.text.is_empty() && words.thought.is_empty() => {}
            Delta::Words(words) => {
                line(&self.head.line(&words.text, &words.thought, Vec::new(), false), out);
            }
            Delta::Call(delta) => {
                let mut blocks = Vec::new();
                self.blocks.call(delta, &mut blocks);
                for block in blocks {
                    if let Block::Ends(Part::Call(ended)) = block {
                        line(&self.head.line("", "", vec![call(&ended)], false), out);
                    }
                }
            }
            Delta::Done(ending) => {
                let mut last = self.head.line("", "", Vec::new(), true);
                end(&mut last, &ending, self.queued_ms);
                line(&last, out);
            }
        }
    }

    fn end(&mut self, _: &mut String) {}

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        line(&super::error(refusal), out);
    }
}

fn line(value: &Value, out: &mut String) {
    out.push_str(&value.to_string());
    out.push('\n');
}
