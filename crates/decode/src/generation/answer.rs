//! One answer, apart from the engine that makes it: what it wants read next, and what becomes of the logits.
//!
//! Its driver alternates: [`Answer::poll`] until it wants a step, [`Answer::prepare`], a step of the engine with its
//! [`Answer::share`], alone or beside those of others, and [`Answer::read`]. Logits are looked at between two steps.

mod saying;

use forerun_model::{Nanos, TokenId};
use forerun_scheduler::{DraftedStep, SchedulerStats};

use super::{Event, FinishReason, GenerationConfig, Report};
use crate::DecodeError;
use crate::draft::VERIFIED_ROWS_MAX;
use crate::engine::{Engine, Logits, Place, Share};
use crate::meter::{Meter, Work};
use crate::sampler::{History, Sampler};
use crate::session::Session;
use crate::text::{StopMatcher, TextBuffer};

/// What [`Answer::poll`] finds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// Something to show.
    Event(Event),
    /// Nothing can be done before a step.
    Step,
    /// The answer is over.
    Over,
}

/// An answer in the making.
pub(crate) struct Answer {
    sampler: Sampler,
    stops: StopMatcher,
    max_tokens: usize,
    choice: u32,
    n_logprobs: Option<usize>,
    prompt: Vec<TokenId>,
    n_reused: usize,
    /// The prompt and the tokens made.
    history: History,
    /// The bytes of tokens that are not whole characters yet.
    stream: TextBuffer,
    /// What the last token completed; kept for its memory.
    piece: String,
    state: State,
    meter: Meter,
    prompt_time: Nanos,
    decode_time: Nanos,
    checkpoint_at: usize,
    /// The token that was fed last, and its draft.
    fed: Vec<TokenId>,
    /// Where its rows are in the step that was read last.
    place: Place,
    /// What is being verified, between a step and the acceptance of its rows.
    open: Option<Open>,
    begun: Begun,
    counts: Counts,
}

/// A step of which not all rows were looked at yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// The row whose logits are next: so many drafted tokens were what the model said.
    row: usize,
    draft_time: Nanos,
    step_time: Nanos,
    /// What the scheduler counted in the step.
    counts: SchedulerStats,
}

/// How things were when a step began.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    /// When, with the drafting before it.
    at: Nanos,
    draft_time: Nanos,
    counts: SchedulerStats,
}

/// What was read and drafted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    tokens_read: usize,
    steps: usize,
    drafted: usize,
    accepted: usize,
    draft_time: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The prompt isn't read to its end.
    Prompt,
    /// A part of the prompt was read and not yet shown.
    Progress,
    /// The engine has the logits of the next token.
    Choose,
    /// This token was chosen and not yet shown.
    Show(TokenId),
    /// This token was shown and not yet fed to the model.
    Feed(TokenId),
    Done(FinishReason),
}

impl Answer {
    /// An answer to `prompt`, of which `session` may hold the beginning.
    ///
    /// # Errors
    /// [`DecodeError`] when the prompt is empty or doesn't fit, or a setting is wrong.
    pub(crate) fn new(
        engine: &mut Engine,
        session: &mut Session,
        prompt: Vec<TokenId>,
        config: &GenerationConfig,
    ) -> Result<Self, DecodeError> {
        let context = engine.plan().context;
        if prompt.is_empty() {
            return Err(DecodeError::EmptyPrompt);
        }
        if prompt.len() >= context {
            return Err(DecodeError::PromptTooLong { prompt_tokens: prompt.len(), context });
        }
        let banned = engine.tokenizer().vocabulary().banned();
        let sampler = Sampler::new(config.sampler.clone(), engine.shape().n_vocab, banned)?;
        let sampler = sampler.with_grammar(config.grammar.as_ref())?;
        let stops = StopMatcher::new(config.stops.clone())?;
        let n_reused = session.reuse(engine, &prompt)?;
        // The engine may hold other tokens than the prompt's, so the context is the bound.
        let max_tokens = config.max_tokens.unwrap_or(usize::MAX);
        let history =
            History::with_capacity(&prompt, max_tokens.min(context - prompt.len()) + VERIFIED_ROWS_MAX);
        let stream = TextBuffer::new(engine.tokenizer().vocabulary());
        let wish = config.checkpoint_at.filter(|_| engine.plan().n_checkpoints > 0);
        let checkpoint_at = wish.unwrap_or(prompt.len());
        Ok(Self {
            sampler,
            stops,
            max_tokens,
            choice: config.choice,
            n_logprobs: config.logprobs,
            prompt,
            n_reused,
            history,
            stream,
            piece: String::new(),
            state: State::Prompt,
            meter: Meter::start(engine),
            prompt_time: Nanos(0),
            decode_time: Nanos(0),
            checkpoint_at,
            fed: Vec::with_capacity(VERIFIED_ROWS_MAX),
            place: Place::default(),
            open: None,
            begun: Begun::default(),
            counts: Counts::default(),
        })
    }

    /// Tokens of the prompt that were held when it began.
    pub(crate) fn n_reused(&self) -> usize {
        self.n_reused
    }

    /// Whether its prompt isn't read to its end.
    pub(crate) fn reads_prompt(&self) -> bool {
        matches!(self.state, State::Prompt | State::Progress)
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    /// Ends it as soon as its caller wishes; what was said is kept.
    pub(crate) fn interrupt(&mut self) {
        if !self.is_over() {
            self.state = State::Done(FinishReason::Interrupted);
        }
    }

    /// Goes on as far as the logits that are there allow.
    ///
    /// # Errors
    /// [`DecodeError`]; the call may be repeated.
    pub(crate) fn poll(&mut self, engine: &mut Engine, session: &mut Session) -> Result<Next, DecodeError> {
        loop {
            match self.state {
                State::Prompt => return Ok(Next::Step),
                State::Progress => {
                    let (n_read, n_tokens) = (session.tokens().len(), self.prompt.len());
                    self.state = if n_read < n_tokens { State::Prompt } else { State::Choose };
                    return Ok(Next::Event(Event::Prompt { n_read, n_tokens }));
                }
                State::Choose => self.choose(engine, session)?,
                State::Show(token) => {
                    return Ok(Next::Event(Event::Text(self.show(engine, session, token)?)));
                }
                State::Feed(token) => match &mut self.open {
                    // A draft has fed it already.
                    Some(open) if self.fed.get(open.row + 1) == Some(&token) => {
                        open.row += 1;
                        self.state = State::Choose;
                    }
                    _ => {
                        self.settle(engine, session, false)?;
                        return Ok(Next::Step);
                    }
                },
                State::Done(_) => return Ok(Next::Over),
            }
        }
    }

    /// Makes ready what is to be read next, with a draft of what follows if `drafts`; at most `rows_max` tokens of a prompt.
    pub(crate) fn prepare(&mut self, engine: &mut Engine, session: &Session, drafts: bool, rows_max: usize) {
        self.begun.at = engine.clock().now();
        self.begun.draft_time = Nanos(0);
        self.fed.clear();
        match self.state {
            State::Prompt => {
                let held = session.tokens().len();
                let mut end = self.prompt.len().min(held + engine.plan().rows_max.min(rows_max));
                if held < self.checkpoint_at {
                    end = end.min(self.checkpoint_at);
                }
                self.fed.extend_from_slice(&self.prompt[held..end]);
            }
            State::Feed(token) => {
                self.meter.step_begins(engine);
                self.fed.push(token);
                if drafts {
                    self.begun.draft_time = self.draft(engine, session);
                }
            }
            State::Progress | State::Choose | State::Show(_) | State::Done(_) => {}
        }
        self.begun.counts = engine.scheduler_stats();
    }

    /// Takes the draft out of what is to be read; `false` when there is none. What only a draft fails by, such as an
    /// expert that can't be read, isn't the answer's affair.
    pub(crate) fn drop_draft(&mut self) -> bool {
        let has_draft = matches!(self.state, State::Feed(_)) && self.fed.len() > 1;
        if has_draft {
            self.fed.truncate(1);
        }
        has_draft
    }

    /// What [`Self::prepare`] made ready.
    pub(crate) fn share<'a>(&'a self, session: &Session) -> Share<'a> {
        let tokens = &self.fed[..];
        let past = session.tokens().len();
        let is_draft = matches!(self.state, State::Feed(_)) && tokens.len() > 1;
        let is_unfinished = matches!(self.state, State::Prompt) && past + tokens.len() < self.prompt.len();
        let wish = match (is_draft, is_unfinished) {
            (true, _) => Logits::All,
            (false, true) => Logits::None,
            (false, false) => Logits::Last,
        };
        Share { sequence: session.sequence(), past, tokens, wish, may_reject: is_draft }
    }

    /// Takes what the step left, where its share was at `place`.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub(crate) fn read(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
        place: Place,
    ) -> Result<(), DecodeError> {
        self.place = place;
        match self.state {
            State::Prompt => {
                session.accept(engine, place.part, &self.fed)?;
                let end = session.tokens().len();
                if end == self.checkpoint_at {
                    engine.pin_checkpoint(session.sequence(), end)?;
                }
                self.state = State::Progress;
                self.prompt_time = self.prompt_time + (engine.clock().now() - self.begun.at);
            }
            State::Feed(_) => {
                let counts = engine.scheduler_stats().since(&self.begun.counts);
                self.meter.step_ends(engine);
                let time = engine.clock().now() - self.begun.at;
                let draft_time = self.begun.draft_time;
                self.open = Some(Open { row: 0, draft_time, step_time: time - draft_time, counts });
                self.state = State::Choose;
                self.decode_time = self.decode_time + time;
                if self.fed.len() == 1 {
                    // Nothing to be looked at.
                    self.settle(engine, session, false)?;
                }
            }
            State::Progress | State::Choose | State::Show(_) | State::Done(_) => {}
        }
        Ok(())
    }

    /// Keeps the rows of the open step that the model agreed with, if there is one; `is_cut` when the answer ended before
    /// all of them were looked at.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub(crate) fn settle(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
        is_cut: bool,
    ) -> Result<(), DecodeError> {
        let Some(open) = self.open else { return Ok(()) };
        let begin = engine.clock().now();
        session.accept(engine, self.place.part, &self.fed[..=open.row])?;
        self.open = None;
        let time = engine.clock().now() - begin;
        let drafted = self.fed.len() - 1;
        engine.conclude(
            session.sequence(),
            &DraftedStep {
                rows: self.fed.len(),
                drafted,
                accepted: open.row,
                is_cut,
                draft_time: open.draft_time,
                step_time: open.step_time + time,
                stall_time: open.counts.stall,
                missed_bytes: open.counts.bytes_demand + open.counts.bytes_guess,
            },
        );
        self.decode_time = self.decode_time + time;
        self.counts.tokens_read += open.row + 1;
        self.counts.steps += 1;
        self.counts.drafted += drafted;
        self.counts.accepted += open.row;
        self.counts.draft_time = self.counts.draft_time + open.draft_time;
        Ok(())
    }

    /// Ends the answer, whether it is over or not.
    pub(crate) fn report(&mut self, engine: &mut Engine, session: &mut Session) -> Report {
        // Rows of what was said are kept; a failure leaves the session without them, which costs reading them anew.
        let _ = self.settle(engine, session, true);
        let finish_reason = match self.state {
            State::Done(reason) => reason,
            _ => FinishReason::Interrupted,
        };
        let work = Work {
            prompt_tokens: self.prompt.len(),
            reused_tokens: self.n_reused,
            prompt_time: self.prompt_time,
            decode_tokens: self.history.answer().len(),
            tokens_read: self.counts.tokens_read,
            decode_steps: self.counts.steps,
            draft_tokens: self.counts.drafted,
            accepted_tokens: self.counts.accepted,
            draft_time: self.counts.draft_time,
            decode_time: self.decode_time,
        };
        let telemetry = self.meter.telemetry(engine, &work);
        let (tokens, stop) = (self.history.answer().to_vec(), self.stops.stop());
        Report { tokens, finish_reason, stop, telemetry }
    }
}
