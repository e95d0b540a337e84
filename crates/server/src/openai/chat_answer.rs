//! Answers of a chat: in chunks as they are made, or whole.

use std::sync::Arc;

use forerun_decode::text::Tokenizer;
use serde_json::{Value, json};

use super::settings::StreamOptions;
use super::{Head, error, logprobs, timings, usage};
use crate::answer::{Call, CallDelta, Delta, Ending, Finish, Progress, Usage, Whole, Words};
use crate::http::streaming::{Renderer, frame};
use crate::refusal::Refusal;

/// Chunks of answers to one prompt.
pub(super) struct Chunks {
    head: Head,
    options: StreamOptions,
    tokenizer: Arc<Tokenizer>,
    /// Counts of those that are over.
    usages: Vec<Usage>,
}

impl Chunks {
    pub(super) fn new(
        head: Head,
        options: StreamOptions,
        n_choices: usize,
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        Self { head, options, tokenizer, usages: vec![Usage::default(); n_choices] }
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk", choices);
        if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn words(&self, choice: usize, words: &Words) -> Value {
        let mut delta = json!({});
        if !words.thought.is_empty() {
            delta["reasoning_content"] = words.thought.as_str().into();
        }
        if !words.text.is_empty() {
            delta["content"] = words.text.as_str().into();
        }
        let mut value = json!({"index": choice, "delta": delta, "finish_reason": null});
        if let Some(of_token) = &words.logprobs {
            value["logprobs"] = logprobs::chat(std::slice::from_ref(of_token), &self.tokenizer);
        }
        self.chunk(vec![value])
    }
}

impl Renderer for Chunks {
    fn begin(&mut self, out: &mut String) {
        for choice in 0..self.usages.len() {
            let delta = json!({"role": "assistant", "content": ""});
            frame(&self.chunk(vec![json!({"index": choice, "delta": delta, "finish_reason": null})]), out);
        }
    }

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Progress(progress) if self.options.prompt_progress => {
                let mut chunk = self.chunk(Vec::new());
                chunk["prompt_progress"] = prompt_progress(choice, &progress);
                frame(&chunk, out);
            }
            Delta::Progress(_) => {}
            Delta::Words(words) => frame(&self.words(choice, &words), out),
            Delta::Call(call) => {
                if let Some(delta) = call_delta(call) {
                    let delta = json!({"tool_calls": [delta]});
                    let value = json!({"index": choice, "delta": delta, "finish_reason": null});
                    frame(&self.chunk(vec![value]), out);
                }
            }
            Delta::Done(ending) => {
                self.usages[choice] = ending.usage;
                let finish = finish_reason(&ending);
                let mut chunk =
                    self.chunk(vec![json!({"index": choice, "delta": {}, "finish_reason": finish})]);
                chunk["timings"] = timings(&ending.telemetry);
                frame(&chunk, out);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.options.include_usage {
            let mut chunk = self.chunk(Vec::new());
            chunk["usage"] = usage(&self.usages, self.usages.len());
            frame(&chunk, out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        frame(&error::body(refusal), out);
    }
}

/// How far the reading of a prompt is.
pub(super) fn prompt_progress(choice: usize, progress: &Progress) -> Value {
    json!({
        "index": choice,
        "read": progress.read,
        "total": progress.total,
        "reused": progress.reused,
        "estimate_ms": progress.estimate_ms,
        "queued_ms": progress.queued_ms,
    })
}

/// What a chunk says of a call.
fn call_delta(call: CallDelta) -> Option<Value> {
    match call {
        CallDelta::Started { index, id, name } => {
            let call = Call { id, name, arguments: String::new() };
            let mut delta = whole_call(&call);
            delta["index"] = index.into();
            Some(delta)
        }
        CallDelta::Arguments { index, fragment } => {
            Some(json!({"index": index, "function": {"arguments": fragment}}))
        }
        CallDelta::Ended => None,
    }
}

fn whole_call(call: &Call) -> Value {
    let Call { id, name, arguments } = call;
    json!({"id": format!("call_{id}"), "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The name of an end.
pub(super) fn finish_reason(ending: &Ending) -> &'static str {
    match ending.finish {
        Finish::Stop | Finish::StopText(_) => "stop",
        Finish::Calls => "tool_calls",
        Finish::Length => "length",
    }
}

/// Whole answers to one prompt.
pub(super) fn whole(head: &Head, answers: Vec<Whole>, has_logprobs: bool, tokenizer: &Tokenizer) -> Value {
    let usages: Vec<_> = answers.iter().map(|answer| answer.ending.usage).collect();
    let first = answers.first().map(|answer| timings(&answer.ending.telemetry));
    let has_several = answers.len() > 1;
    let choice = |(index, answer): (usize, Whole)| {
        let (thought, text) = (answer.thought(), answer.text());
        let calls: Vec<_> = answer.calls().map(whole_call).collect();
        let mut message = json!({"role": "assistant", "content": text, "refusal": null});
        if !thought.is_empty() {
            message["reasoning_content"] = thought.into();
        }
        if !calls.is_empty() {
            if text.is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = calls.into();
        }
        let tokens = if has_logprobs { logprobs::chat(&answer.logprobs, tokenizer) } else { Value::Null };
        let mut choice = json!({
            "index": index,
            "message": message,
            "logprobs": tokens,
            "finish_reason": finish_reason(&answer.ending),
        });
        if has_several {
            choice["timings"] = timings(&answer.ending.telemetry);
        }
        choice
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let mut object = head.object("chat.completion", choices);
    object["usage"] = usage(&usages, usages.len());
    object["timings"] = first.unwrap_or_default();
    object
}
