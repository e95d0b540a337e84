//! What any API is told while answers are made: pieces of the desk, parted into thoughts, text and calls, with counts.

mod blocks;
mod calls;

use std::collections::VecDeque;
use std::task::{Context, Poll};

use forerun_decode::text::Thoughts;
use forerun_decode::{FinishReason, Logprobs, Report, Telemetry};

use crate::ask::Prepared;
use crate::desk::{Answering, Desk, Failure, Piece};
use crate::refusal::Refusal;
pub(crate) use blocks::{Block, Blocks, Part};
use calls::Calls;
pub(crate) use calls::{Call, CallDelta};

/// What happened to one of the answers.
#[derive(Clone, Debug)]
pub(crate) enum Delta {
    /// The prompt is being read.
    Progress(Progress),
    /// A token brought this.
    Words(Words),
    /// A tool is called.
    Call(CallDelta),
    /// The answer is over.
    Done(Box<Ending>),
}

/// How far the reading of a prompt is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Tokens that are held now.
    pub(crate) read: usize,
    /// Tokens of the prompt.
    pub(crate) total: usize,
    /// Tokens that needn't be read.
    pub(crate) reused: usize,
    /// Milliseconds that reading takes, as estimated when it began.
    pub(crate) estimate_ms: Option<f64>,
    /// Milliseconds that the request waited.
    pub(crate) queued_ms: f64,
}

/// What one token brought; all of it may be empty while a character or a marker isn't whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    /// Thoughts.
    pub(crate) thought: String,
    /// What is meant for the reader.
    pub(crate) text: String,
    /// How probable the token was, if that was asked for.
    pub(crate) logprobs: Option<Logprobs>,
}

impl Words {
    fn is_empty(&self) -> bool {
        self.thought.is_empty() && self.text.is_empty() && self.logprobs.is_none()
    }
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) finish: Finish,
    pub(crate) usage: Usage,
    pub(crate) telemetry: Telemetry,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended its turn.
    Stop,
    /// This stop text came.
    StopText(String),
    /// The model ended its turn to have tools called.
    Calls,
    /// The most tokens, or the context is full.
    Length,
}

/// Tokens of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Those of `prompt` that weren't read again.
    pub(crate) reused: usize,
    pub(crate) completion: usize,
    /// Those of `completion` that were thoughts.
    pub(crate) thoughts: usize,
}

/// One answer that is over.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    /// In the order in which they came.
    pub(crate) parts: Vec<Part>,
    pub(crate) logprobs: Vec<Logprobs>,
    pub(crate) ending: Ending,
}

impl Whole {
    /// All thoughts.
    pub(crate) fn thought(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Thought(text) = part { Some(&**text) } else { None })
            .collect()
    }

    /// All text for the reader.
    pub(crate) fn text(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Text(text) = part { Some(&**text) } else { None })
            .collect()
    }

    /// All calls.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.parts.iter().filter_map(|part| if let Part::Call(call) = part { Some(call) } else { None })
    }
}

/// Answers in the making; dropping it gives them up.
#[derive(Debug)]
pub(crate) struct Answer {
    choices: Vec<Choice>,
    ready: VecDeque<(usize, Delta)>,
    stops: Vec<String>,
}

#[derive(Debug)]
struct Choice {
    /// `None` when it is over.
    answering: Option<Answering>,
    thoughts: Thoughts,
    calls: Calls,
    n_thought_tokens: usize,
    progress: Progress,
}

impl Answer {
    /// Queues all jobs, or none.
    ///
    /// # Errors
    /// A refusal when the desk doesn't take them.
    pub(crate) fn start(desk: &Desk, prepared: Prepared) -> Result<Self, Refusal> {
        let Prepared { jobs, thoughts, tools, is_single_call, stops, .. } = prepared;
        let mut choices = Vec::with_capacity(jobs.len());
        for job in jobs {
            let progress =
                Progress { read: 0, total: job.prompt.len(), reused: 0, estimate_ms: None, queued_ms: 0.0 };
            let answering = Some(desk.submit(job)?);
            let calls = Calls::new(&tools, is_single_call);
            choices.push(Choice {
                answering,
                thoughts: thoughts.clone(),
                calls,
                n_thought_tokens: 0,
                progress,
            });
        }
        Ok(Self { choices, ready: VecDeque::new(), stops })
    }

    /// Answers that are made.
    pub(crate) fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// Tokens of the first prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.choices.first().map_or(0, |choice| choice.progress.total)
    }

    /// The next of what happened, and to which answer; `None` when all are over.
    ///
    /// # Errors
    /// A refusal when one of them failed; the others are given up with it.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Delta), Refusal>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The same for callers that wait for more than this.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, Delta), Refusal>>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(ready)));
            }
            let mut has_moved = false;
            for index in 0..self.choices.len() {
                let Some(answering) = &mut self.choices[index].answering else { continue };
                let Poll::Ready(piece) = answering.poll_next(context) else { continue };
                has_moved = true;
                let piece = piece.unwrap_or(Piece::Failed(Failure::EngineGone));
                if let Err(refusal) = self.take(index, piece) {
                    self.choices.clear();
                    return Poll::Ready(Some(Err(refusal)));
                }
            }
            if self.choices.iter().all(|choice| choice.answering.is_none()) && self.ready.is_empty() {
                return Poll::Ready(None);
            }
            if !has_moved {
                return Poll::Pending;
            }
        }
    }

    /// Waits for all answers.
    ///
    /// # Errors
    /// A refusal when one of them failed.
    pub(crate) async fn whole(mut self) -> Result<Vec<Whole>, Refusal> {
        let mut gathered: Vec<Gathered> = Vec::new();
        gathered.resize_with(self.n_choices(), Gathered::default);
        while let Some(next) = self.next().await {
            let (index, delta) = next?;
            gathered[index].add(delta);
        }
        gathered.into_iter().map(Gathered::whole).collect()
    }

    fn take(&mut self, index: usize, piece: Piece) -> Result<(), Refusal> {
        let Self { choices, ready, stops } = self;
        let choice = &mut choices[index];
        match piece {
            Piece::Started { queued_ms, reused_tokens, estimate_ms } => {
                let progress = &mut choice.progress;
                *progress = Progress {
                    read: reused_tokens,
                    reused: reused_tokens,
                    estimate_ms,
                    queued_ms,
                    total: progress.total,
                };
                ready.push_back((index, Delta::Progress(*progress)));
            }
            Piece::Prompt { n_read, n_tokens } => {
                choice.progress.read = n_read;
                choice.progress.total = n_tokens;
                ready.push_back((index, Delta::Progress(choice.progress)));
            }
            Piece::Token(piece) => {
                let parted = choice.thoughts.push(&piece.text);
                if piece.token.is_some() && choice.thoughts.is_inside() {
                    choice.n_thought_tokens += 1;
                }
                let deltas = choice.calls.read(parted, piece.logprobs);
                ready.extend(deltas.map(|delta| (index, delta)));
            }
            Piece::Done(report) => {
                let parted = choice.thoughts.finish();
                let deltas = choice.calls.finish(parted);
                ready.extend(deltas.map(|delta| (index, delta)));
                choice.answering = None;
                let ending = ending(*report, choice, stops);
                ready.push_back((index, Delta::Done(Box::new(ending))));
            }
            Piece::Failed(failure) => return Err(failure.into()),
        }
        Ok(())
    }
}

fn ending(report: Report, choice: &Choice, stops: &[String]) -> Ending {
    let Report { tokens, finish_reason, stop, telemetry } = report;
    let usage = Usage {
        prompt: telemetry.prompt_tokens,
        reused: telemetry.prompt_reused_tokens,
        completion: tokens.len(),
        thoughts: choice.n_thought_tokens.min(tokens.len()),
    };
    let finish = match (finish_reason, stop.and_then(|stop| stops.get(stop))) {
        (FinishReason::Stop, Some(stop)) => Finish::StopText(stop.clone()),
        (FinishReason::Stop, None) if choice.calls.n_calls() > 0 => Finish::Calls,
        (FinishReason::Stop, None) => Finish::Stop,
        (FinishReason::Length | FinishReason::Interrupted, _) => Finish::Length,
    };
    Ending { finish, usage, telemetry }
}

/// What came of an answer so far.
#[derive(Default)]
struct Gathered {
    cut: Blocks,
    blocks: Vec<Block>,
    logprobs: Vec<Logprobs>,
    ending: Option<Ending>,
}

impl Gathered {
    fn add(&mut self, delta: Delta) {
        let Self { cut, blocks, logprobs, ending } = self;
        match delta {
            Delta::Progress(_) => {}
            Delta::Words(words) => {
                cut.words(words.thought, words.text, blocks);
                logprobs.extend(words.logprobs);
            }
            Delta::Call(call) => cut.call(call, blocks),
            Delta::Done(end) => *ending = Some(*end),
        }
    }

    fn whole(self) -> Result<Whole, Refusal> {
        let Self { mut cut, mut blocks, logprobs, ending } = self;
        let ending = ending.ok_or(Refusal::from(Failure::EngineGone))?;
        cut.finish(&mut blocks);
        Ok(Whole { parts: blocks::parts(blocks), logprobs, ending })
    }
}
