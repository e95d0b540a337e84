//! A response as events, while it is made.

use serde_json::{Value, json};

use super::object::{ResponseObject, content, item, item_id};
use crate::answer::{Block, Blocks, Delta, Ending, Finish, Part};
use crate::http::streaming::{Renderer, named_frame};
use crate::refusal::Refusal;

/// A response in the making.
pub(super) struct Events {
    object: ResponseObject,
    number: u64,
    blocks: Blocks,
    /// Items that are complete, with their names.
    done: Vec<(String, Part)>,
    /// The open item's name, and what its pieces are called.
    open: (String, Kind),
    ending: Option<Box<Ending>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
    Call,
}

impl Kind {
    fn of(part: &Part) -> Self {
        match part {
            Part::Thought(_) => Self::Thought,
            Part::Text(_) => Self::Text,
            Part::Call(_) => Self::Call,
        }
    }

    /// What comes before `.delta` and `.done`.
    fn event(self) -> &'static str {
        match self {
            Self::Thought => "response.reasoning_text",
            Self::Text => "response.output_text",
            Self::Call => "response.function_call_arguments",
        }
    }
}

impl Events {
    pub(super) fn new(object: ResponseObject) -> Self {
        let open = (String::new(), Kind::Text);
        Self { object, number: 0, blocks: Blocks::default(), done: Vec::new(), open, ending: None }
    }

    fn event(&mut self, kind: &str, mut data: Value, out: &mut String) {
        data["type"] = kind.into();
        data["sequence_number"] = self.number.into();
        self.number += 1;
        named_frame(kind, &data, out);
    }

    /// What an event about the open item says besides.
    fn about(&self, mut data: Value) -> Value {
        let (id, kind) = &self.open;
        data["item_id"] = id.as_str().into();
        data["output_index"] = self.done.len().into();
        if *kind != Kind::Call {
            data["content_index"] = 0.into();
        }
        data
    }

    fn show(&mut self, block: Block, status: &str, out: &mut String) {
        match block {
            Block::Begins(part) => {
                self.open = (item_id(&part), Kind::of(&part));
                let mut begun = item(&self.open.0, &part, "in_progress");
                if self.open.1 != Kind::Call {
                    begun["content"] = json!([]);
                }
                let data = json!({"output_index": self.done.len(), "item": begun});
                self.event("response.output_item.added", data, out);
                if self.open.1 != Kind::Call {
                    let data = self.about(json!({"part": content(&part)}));
                    self.event("response.content_part.added", data, out);
                }
            }
            Block::Grows(more) => {
                let mut data = self.about(json!({"delta": more}));
                if self.open.1 == Kind::Text {
                    data["logprobs"] = json!([]);
                }
                self.event(&format!("{}.delta", self.open.1.event()), data, out);
            }
            Block::Ends(part) => self.ended(part, status, out),
        }
    }

    fn ended(&mut self, part: Part, status: &str, out: &mut String) {
        let data = self.about(match &part {
            Part::Thought(text) => json!({"text": text}),
            Part::Text(text) => json!({"text": text, "logprobs": []}),
            Part::Call(call) => json!({"name": call.name, "arguments": call.arguments}),
        });
        self.event(&format!("{}.done", self.open.1.event()), data, out);
        if self.open.1 != Kind::Call {
            let data = self.about(json!({"part": content(&part)}));
            self.event("response.content_part.done", data, out);
        }
        let id = std::mem::take(&mut self.open.0);
        let data = json!({"output_index": self.done.len(), "item": item(&id, &part, status)});
        self.event("response.output_item.done", data, out);
        self.done.push((id, part));
    }
}

impl Renderer for Events {
    fn begin(&mut self, out: &mut String) {
        for kind in ["response.created", "response.in_progress"] {
            let data = json!({"response": self.object.open()});
            self.event(kind, data, out);
        }
    }

    fn delta(&mut self, _: usize, delta: Delta, out: &mut String) {
        let mut blocks = Vec::new();
        let mut status = "completed";
        match delta {
            Delta::Progress(_) => {}
            Delta::Words(words) => self.blocks.words(words.thought, words.text, &mut blocks),
            Delta::Call(call) => self.blocks.call(call, &mut blocks),
            Delta::Done(ending) => {
                if ending.finish == Finish::Length {
                    status = "incomplete";
                }
                self.blocks.finish(&mut blocks);
                self.ending = Some(ending);
            }
        }
        for block in blocks {
            self.show(block, status, out);
        }
    }

    fn end(&mut self, out: &mut String) {
        let Some(ending) = self.ending.take() else { return };
        let is_cut = ending.finish == Finish::Length;
        let data = json!({"response": self.object.closed(&self.done, &ending)});
        self.event(if is_cut { "response.incomplete" } else { "response.completed" }, data, out);
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        let data = json!({"response": self.object.failed(refusal)});
        self.event("response.failed", data, out);
    }
}
