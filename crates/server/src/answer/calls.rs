//! Calls of tools, found in what is meant for the reader.

use forerun_decode::Logprobs;
use forerun_decode::text::{Parted, ToolCalls, ToolEvent};
use serde_json::Value;

use super::{Delta, Words};

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallDelta {
    /// A call begins; its arguments follow.
    Started {
        /// Which call of the answer, from 0.
        index: usize,
        /// The call's own name, without a prefix: APIs have their own.
        id: String,
        /// The tool.
        name: String,
    },
    /// A part of the arguments, which together are a JSON object.
    Arguments {
        /// Which call.
        index: usize,
        /// JSON.
        fragment: String,
    },
    /// The call is complete.
    Ended,
}

/// A call that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The call's own name, without a prefix.
    pub(crate) id: String,
    /// The tool.
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: String,
}

/// Finds calls, and what is around them.
#[derive(Debug)]
pub(super) struct Calls {
    parser: ToolCalls,
    events: Vec<ToolEvent>,
    is_single: bool,
    n_ended: usize,
}

impl Calls {
    /// For tools in OpenAI's shape; if `is_single`, what comes behind the first call is left out.
    pub(super) fn new(tools: &[Value], is_single: bool) -> Self {
        Self { parser: ToolCalls::new(tools), events: Vec::new(), is_single, n_ended: 0 }
    }

    /// Calls so far.
    pub(super) fn n_calls(&self) -> usize {
        self.n_ended
    }

    /// What a token brought.
    pub(super) fn read(
        &mut self,
        parted: Parted,
        logprobs: Option<Logprobs>,
    ) -> impl Iterator<Item = Delta> + use<> {
        self.parser.push(&parted.answer, &mut self.events);
        self.deltas(Words { thought: parted.thought, text: String::new(), logprobs })
    }

    /// What the end brought: text that was held back.
    pub(super) fn finish(&mut self, parted: Parted) -> impl Iterator<Item = Delta> + use<> {
        self.parser.push(&parted.answer, &mut self.events);
        self.parser.finish(&mut self.events);
        self.deltas(Words { thought: parted.thought, ..Words::default() })
    }

    fn deltas(&mut self, mut words: Words) -> impl Iterator<Item = Delta> + use<> {
        let mut deltas = Vec::new();
        for event in std::mem::take(&mut self.events) {
            if self.is_single && self.n_ended > 0 {
                continue;
            }
            let call = match event {
                ToolEvent::Content(text) => {
                    words.text += &text;
                    continue;
                }
                ToolEvent::CallStarted { index, name } => {
                    CallDelta::Started { index, id: format!("{:016x}", crate::chance::random()), name }
                }
                ToolEvent::Arguments { index, fragment } => CallDelta::Arguments { index, fragment },
                ToolEvent::CallEnded { .. } => {
                    self.n_ended += 1;
                    CallDelta::Ended
                }
            };
            flush(&mut words, &mut deltas);
            deltas.push(Delta::Call(call));
        }
        flush(&mut words, &mut deltas);
        deltas.into_iter()
    }
}

fn flush(words: &mut Words, deltas: &mut Vec<Delta>) {
    if !words.is_empty() {
        deltas.push(Delta::Words(std::mem::take(words)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(text: &str) -> Parted {
        Parted { thought: String::new(), answer: text.to_owned() }
    }

    fn shown(deltas: impl Iterator<Item = Delta>) -> String {
        let one = |delta| match delta {
            Delta::Words(words) => format!("[{}]", words.text),
            Delta::Call(CallDelta::Started { index, name, .. }) => format!("{index}:{name}("),
            Delta::Call(CallDelta::Arguments { fragment, .. }) => fragment,
            Delta::Call(CallDelta::Ended) => ")".to_owned(),
            other => format!("{other:?}"),
        };
        deltas.map(one).collect()
    }

    const TWO: &str = "Look. <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                       <tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call> Done.";

    #[test]
    fn text_and_calls_come_in_their_order() {
        let tools = [json!({"type": "function", "function": {"name": "add"}})];
        let mut calls = Calls::new(&tools, false);
        let mut found = shown(calls.read(answer(TWO), None));
        found += &shown(calls.finish(Parted::default()));
        assert_eq!(found.replace("\"a\": 1", "\"a\":1"), "[Look.]0:add({\"a\":1})1:add({})[ Done.]");
        assert_eq!(calls.n_calls(), 2);
    }

    #[test]
    fn where_one_call_is_allowed_nothing_follows_it() {
        let tools = [json!({"type": "function", "function": {"name": "add"}})];
        let mut calls = Calls::new(&tools, true);
        let found = shown(calls.read(answer(TWO), None)) + &shown(calls.finish(Parted::default()));
        assert_eq!(found.replace("\"a\": 1", "\"a\":1"), "[Look.]0:add({\"a\":1})");
        assert_eq!(calls.n_calls(), 1);
    }

    #[test]
    fn without_tools_nothing_is_a_call() {
        let mut calls = Calls::new(&[], false);
        assert_eq!(shown(calls.read(answer(TWO), None)), format!("[{TWO}]"));
    }
}
