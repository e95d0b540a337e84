//! Parts an answer into what is meant for the reader and calls of tools.
//!
//! Two ways of writing a call are known, and told apart by what comes behind the marker: Qwen3.5's
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! and the JSON object `{"name": NAME, "arguments": {…}}` between the same markers, which Qwen3 and Hermes write.
//!
//! A call is told when it is whole: until `</tool_call>` nobody knows whether it is one, and what was told can't be taken
//! back. What turns out to be none, at the end of the text too, is content exactly as it was written.

mod arguments;
mod parse;

use serde_json::Value;

use arguments::Tools;
use parse::{Call, Fault};

/// The marker before a call.
pub(crate) const OPEN: &str = "<tool_call>";
/// The marker behind it.
pub(crate) const CLOSE: &str = "</tool_call>";

/// Calls of one answer that may turn out to be none, before all the rest is content: each costs a look at the text held.
const FAILURES_MAX: usize = 256;

/// How a model writes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// A tag for the function and one for each parameter, as Qwen3.5 does.
    Tagged,
    /// A JSON object, as Qwen3 and Hermes do.
    Json,
}

impl CallFormat {
    /// What a chat template shows the model; `None` when it shows neither.
    pub fn of_template(source: &str) -> Option<Self> {
        if !source.contains(OPEN) {
            return None;
        }
        Some(if source.contains("<function=") { Self::Tagged } else { Self::Json })
    }
}

/// Whether a parameter's text in [`CallFormat::Tagged`] is read as a string, whatever it is, or as JSON.
pub(crate) fn is_read_as_text(parameters: &Value, key: &str) -> bool {
    arguments::is_read_as_text(parameters, key)
}

/// What a piece of an answer brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text for the reader.
    Content(String),
    /// A call begins; its arguments follow.
    CallStarted {
        /// Which call of the answer, from 0.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// A part of the arguments; all parts of a call together are one JSON object.
    Arguments {
        /// Which call.
        index: usize,
        /// JSON.
        fragment: String,
    },
    /// A call is complete.
    CallEnded {
        /// Which call.
        index: usize,
    },
}

/// Finds calls in text that arrives in pieces; behind [`Thoughts`](super::Thoughts), it gets the answer only. White space
/// between content and a call behind it is left out.
#[derive(Clone, Debug)]
pub struct ToolCalls {
    tools: Tools,
    state: State,
    /// Text that may become a call, or white space before one.
    held: String,
    n_calls: usize,
    n_failures: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Outside a call.
    Content,
    /// `held` has the marker at `open`, and no end of a call before `searched`.
    Call { open: usize, searched: usize },
    /// No calls, or no more.
    Off,
}

impl ToolCalls {
    /// For the answer to a request with `tools`, as the client described them: their schemas say what a parameter's text is.
    /// Without tools all text is content.
    pub fn new(tools: &[Value]) -> Self {
        let state = if tools.is_empty() { State::Off } else { State::Content };
        Self { tools: Tools::new(tools), state, held: String::new(), n_calls: 0, n_failures: 0 }
    }

    /// Calls so far.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Takes the next piece, and adds what it brought to `events`.
    pub fn push(&mut self, piece: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(piece);
        while self.advance(events) {}
    }

    /// Ends the text; what was held back comes out.
    pub fn finish(&mut self, events: &mut Vec<ToolEvent>) {
        loop {
            while self.advance(events) {}
            match self.state {
                State::Call { open, .. } => self.give_up(open, events),
                State::Content | State::Off => break,
            }
        }
        let rest = self.held.len();
        self.emit(rest, events);
    }

    /// Moves what is decided out of `held`; whether there may be more.
    fn advance(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match self.state {
            State::Off => {
                let all = self.held.len();
                self.emit(all, events);
                false
            }
            State::Content => {
                let found = self.held.find(OPEN);
                let end = found.unwrap_or_else(|| self.held.len() - marker_begin(&self.held));
                let text = self.held[..end].trim_end().len();
                self.emit(text, events);
                let Some(open) = found.map(|at| at - text) else { return false };
                self.state = State::Call { open, searched: open + OPEN.len() };
                true
            }
            State::Call { open, searched } => {
                let Some(close) = self.held[searched..].find(CLOSE).map(|at| searched + at) else {
                    let tail = self.held.floor_char_boundary(self.held.len().saturating_sub(CLOSE.len() - 1));
                    self.state = State::Call { open, searched: tail.max(searched) };
                    return false;
                };
                let behind = close + CLOSE.len();
                match parse::call(&self.held[open + OPEN.len()..close], &self.tools) {
                    Ok(call) => {
                        self.held.drain(..behind);
                        self.state = State::Content;
                        self.tell(call, events);
                    }
                    Err(Fault::Open) => self.state = State::Call { open, searched: behind },
                    Err(Fault::Incomplete) if self.n_failures < FAILURES_MAX => {
                        self.n_failures += 1;
                        self.state = State::Call { open, searched: behind };
                    }
                    Err(Fault::Incomplete | Fault::Malformed) => self.give_up(open, events),
                }
                true
            }
        }
    }

    /// The marker at `open` begins no call.
    fn give_up(&mut self, open: usize, events: &mut Vec<ToolEvent>) {
        self.emit(open + OPEN.len(), events);
        self.n_failures += 1;
        self.state = if self.n_failures > FAILURES_MAX { State::Off } else { State::Content };
    }

    /// The first `n_bytes` are content.
    fn emit(&mut self, n_bytes: usize, events: &mut Vec<ToolEvent>) {
        if n_bytes == 0 {
            return;
        }
        let text = &self.held[..n_bytes];
        if let Some(ToolEvent::Content(content)) = events.last_mut() {
            content.push_str(text);
        } else {
            events.push(ToolEvent::Content(text.to_owned()));
        }
        self.held.drain(..n_bytes);
    }

    fn tell(&mut self, call: Call, events: &mut Vec<ToolEvent>) {
        let index = self.n_calls;
        self.n_calls += 1;
        events.extend([
            ToolEvent::CallStarted { index, name: call.name },
            ToolEvent::Arguments { index, fragment: call.arguments },
            ToolEvent::CallEnded { index },
        ]);
    }
}

/// Bytes at the end of `text` that may begin a marker.
fn marker_begin(text: &str) -> usize {
    (1..OPEN.len()).rev().find(|&n| text.ends_with(&OPEN[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
