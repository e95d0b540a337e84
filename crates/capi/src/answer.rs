//! Makes one answer, a layer of work at a time, so that a wish to stop is heard between two layers.

use std::ops::ControlFlow;

use forerun_decode::text::{Parted, Thoughts};
use forerun_decode::{Batch, BatchEvent, Event as Made, FinishReason, Report, Ticket};

use crate::CapiError;
use crate::engine::Engine;
use crate::request::{Ask, Prepared};

/// What is told of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A part of the prompt was read.
    Prompt(Read),
    /// The answer goes on; the words are whole characters, and some.
    Text(Read, &'a str),
    /// The thoughts go on; as above.
    Thought(Read, &'a str),
}

/// How much of the prompt is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    /// Tokens that are held.
    pub(crate) n_read: usize,
    /// Tokens of the prompt.
    pub(crate) n_tokens: usize,
}

/// What came of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) finish_reason: FinishReason,
    pub(crate) prompt_tokens: usize,
    pub(crate) reused_tokens: usize,
    pub(crate) answer_tokens: usize,
    pub(crate) seed: u64,
    pub(crate) prompt_ms: f64,
    pub(crate) decode_ms: f64,
    /// All figures, as JSON.
    pub(crate) telemetry: String,
}

/// Answers; the batch has a free seat, and has it again afterwards.
///
/// # Errors
/// [`CapiError`]: what is wrong with the request, or what the answer failed by.
pub(crate) fn answer(
    engine: &Engine,
    batch: &mut Batch,
    ask: &Ask<'_>,
    told: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
) -> Result<Answered, CapiError> {
    let Prepared { tokens, config, thoughts } = ask.prepare(batch.engine())?;
    let n_tokens = tokens.len();
    let admitted = batch.admit(tokens, &config).map_err(CapiError::answer)?.ok_or(CapiError::Busy)?;
    let read = Read { n_read: admitted.n_reused, n_tokens };
    let mut telling = Telling { told, thoughts, read, is_stopped: false };
    telling.tell(&Event::Prompt(read));
    let report = make(engine, batch, admitted.ticket, &mut telling)?;
    let telemetry = &report.telemetry;
    Ok(Answered {
        finish_reason: report.finish_reason,
        prompt_tokens: n_tokens,
        reused_tokens: admitted.n_reused,
        answer_tokens: report.tokens.len(),
        seed: config.sampler.seed,
        prompt_ms: telemetry.prompt_ms,
        decode_ms: telemetry.decode_ms,
        telemetry: serde_json::to_string(telemetry).unwrap_or_default(),
    })
}

/// Pulls the answer to its end.
fn make(
    engine: &Engine,
    batch: &mut Batch,
    ticket: Ticket,
    telling: &mut Telling<'_>,
) -> Result<Box<Report>, CapiError> {
    loop {
        let mut granted = Ok(());
        if engine.is_cancelled() || telling.is_stopped {
            telling.is_stopped = true;
            batch.cancel(ticket);
        } else {
            granted = engine.grant(batch);
            if granted.is_err() {
                batch.cancel(ticket);
            }
        }
        let works = batch.advance();
        let mut has_news = false;
        while let Some((_, event)) = batch.next_event() {
            has_news = true;
            match event {
                BatchEvent::Event(event) => telling.pass_on(event),
                BatchEvent::Over(report) => {
                    telling.finish();
                    return granted.map(|()| report);
                }
                BatchEvent::Failed(error) => return Err(CapiError::answer(error)),
            }
        }
        assert!(works || has_news, "an answer that isn't over has work to do");
    }
}

/// Tells the caller, until it wants to hear no more.
struct Telling<'a> {
    told: &'a mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    thoughts: Thoughts,
    read: Read,
    is_stopped: bool,
}

impl Telling<'_> {
    fn pass_on(&mut self, event: Made) {
        match event {
            Made::Prompt { n_read, n_tokens } => {
                self.read = Read { n_read, n_tokens };
                self.tell(&Event::Prompt(self.read));
            }
            Made::Text(piece) => {
                let parted = self.thoughts.push(&piece.text);
                self.words(&parted);
            }
        }
    }

    /// What was held back, in case it had become a marker.
    fn finish(&mut self) {
        let parted = self.thoughts.finish();
        self.words(&parted);
    }

    fn words(&mut self, Parted { thought, answer }: &Parted) {
        if !thought.is_empty() {
            self.tell(&Event::Thought(self.read, thought));
        }
        if !answer.is_empty() {
            self.tell(&Event::Text(self.read, answer));
        }
    }

    fn tell(&mut self, event: &Event<'_>) {
        if !self.is_stopped {
            self.is_stopped = (self.told)(event).is_break();
        }
    }
}
