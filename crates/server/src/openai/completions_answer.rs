//! Plain completions: in chunks as they are made, or whole.

use std::sync::Arc;

use forerun_decode::Logprobs;
use forerun_decode::text::Tokenizer;
use serde_json::{Value, json};

use super::chat_answer::{finish_reason, prompt_progress};
use super::logprobs::Plain;
use super::settings::StreamOptions;
use super::{Head, error, timings, usage};
use crate::answer::{Delta, Usage, Whole};
use crate::http::streaming::{Renderer, frame};
use crate::refusal::Refusal;

const OBJECT: &str = "text_completion";

/// Chunks of answers to some prompts.
pub(super) struct Chunks {
    head: Head,
    options: StreamOptions,
    tokenizer: Arc<Tokenizer>,
    /// Answers to each prompt.
    n: usize,
    logprobs: Vec<Plain>,
    /// Counts of those that are over.
    usages: Vec<Usage>,
}

impl Chunks {
    /// For so many answers in all, and so many of each prompt.
    pub(super) fn new(
        head: Head,
        options: StreamOptions,
        (n_choices, n): (usize, usize),
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        let logprobs = vec![Plain::default(); n_choices];
        Self { head, options, tokenizer, n, logprobs, usages: vec![Usage::default(); n_choices] }
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.head.object(OBJECT, choices);
        if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn logprobs(&mut self, choice: usize, of_token: Option<&Logprobs>) -> Value {
        let Some(of_token) = of_token else { return Value::Null };
        self.logprobs[choice].object(std::slice::from_ref(of_token), &self.tokenizer)
    }
}

impl Renderer for Chunks {
    fn begin(&mut self, _: &mut String) {}

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Progress(progress) if self.options.prompt_progress => {
                let mut chunk = self.chunk(Vec::new());
                chunk["prompt_progress"] = prompt_progress(choice, &progress);
                frame(&chunk, out);
            }
            // Without tools there are no calls.
            Delta::Progress(_) | Delta::Call(_) => {}
            Delta::Words(words) => {
                let logprobs = self.logprobs(choice, words.logprobs.as_ref());
                let value =
                    json!({"index": choice, "text": words.text, "logprobs": logprobs, "finish_reason": null});
                frame(&self.chunk(vec![value]), out);
            }
            Delta::Done(ending) => {
                self.usages[choice] = ending.usage;
                let finish = finish_reason(&ending);
                let value = json!({"index": choice, "text": "", "logprobs": null, "finish_reason": finish});
                let mut chunk = self.chunk(vec![value]);
                chunk["timings"] = timings(&ending.telemetry);
                frame(&chunk, out);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.options.include_usage {
            let mut chunk = self.chunk(Vec::new());
            chunk["usage"] = usage(&self.usages, self.n);
            frame(&chunk, out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        frame(&error::body(refusal), out);
    }
}

/// Whole answers, `n` to each prompt; with a tokenizer, the log-probabilities of their tokens.
pub(super) fn whole(head: &Head, answers: Vec<Whole>, n: usize, tokenizer: Option<&Arc<Tokenizer>>) -> Value {
    let usages: Vec<_> = answers.iter().map(|answer| answer.ending.usage).collect();
    let first = answers.first().map(|answer| timings(&answer.ending.telemetry));
    let has_several = answers.len() > 1;
    let choice = |(index, answer): (usize, Whole)| {
        let logprobs = tokenizer.map(|tokenizer| Plain::default().object(&answer.logprobs, tokenizer));
        let mut choice = json!({
            "index": index,
            "text": answer.text(),
            "logprobs": logprobs,
            "finish_reason": finish_reason(&answer.ending),
        });
        if has_several {
            choice["timings"] = timings(&answer.ending.telemetry);
        }
        choice
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let mut object = head.object(OBJECT, choices);
    object["usage"] = usage(&usages, n);
    object["timings"] = first.unwrap_or_default();
    object
}
