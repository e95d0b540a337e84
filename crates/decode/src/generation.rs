//! One answer: reads a prompt, then makes tokens, pulled piece by piece.
//!
//! The caller may stop between any two pieces; the session then holds what was read and made so far.

use forerun_model::{Nanos, TokenId};
use forerun_scheduler::{DraftedStep, SchedulerStats};
use serde::Serialize;

use crate::DecodeError;
use crate::draft::VERIFIED_ROWS_MAX;
use crate::engine::{Choosing, Engine, Logits};
use crate::meter::{Meter, Work};
use crate::sampler::{Draw, History, Sampler, SamplerConfig};
use crate::session::Session;
use crate::telemetry::Telemetry;
use crate::text::{StopMatcher, TextBuffer};

/// What ends an answer, and how its tokens are chosen.
#[derive(Clone, Debug, Default)]
pub struct GenerationConfig {
    /// How tokens are chosen.
    pub sampler: SamplerConfig,
    /// Most tokens; `None`: as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they aren't part of it.
    pub stops: Vec<String>,
    /// Tokens of the prompt after which a checkpoint is kept, if the engine keeps any: where a later prompt may go on
    /// otherwise. `None`: all of them.
    pub checkpoint_at: Option<usize>,
}

/// What [`Generation::next`] brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A part of the prompt was read.
    Prompt {
        /// Tokens of the prompt that are held now.
        n_read: usize,
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// The answer goes on: whole characters, perhaps none yet.
    Text(String),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended its turn, or a stop text came.
    Stop,
    /// The most tokens, or the context is full.
    Length,
    /// The caller stopped.
    Interrupted,
}

/// What an answer leaves.
#[derive(Clone, Debug)]
pub struct Report {
    /// The tokens made, without the one that ended the turn.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Where time and bytes went.
    pub telemetry: Telemetry,
}

/// An answer in the making.
pub struct Generation<'a> {
    engine: &'a mut Engine,
    session: &'a mut Session,
    sampler: Sampler,
    stops: StopMatcher,
    max_tokens: usize,
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
    /// What is being verified, between a step and the acceptance of its rows.
    open: Option<Open>,
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

/// What was read and drafted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    tokens_read: usize,
    steps: usize,
    drafted: usize,
    accepted: usize,
    draft_time: Nanos,
}

impl Drop for Generation<'_> {
    /// The session keeps what was said, however the answer ends.
    fn drop(&mut self) {
        let _ = self.settle(true);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Prompt,
    /// The engine has the logits of the next token.
    Choose,
    /// This token was chosen and not yet shown.
    Show(TokenId),
    /// This token was shown and not yet fed to the model.
    Feed(TokenId),
    Done(FinishReason),
}

impl<'a> Generation<'a> {
    /// An answer to `prompt`, of which `session` may hold the beginning.
    ///
    /// # Errors
    /// [`DecodeError`] when the prompt is empty or doesn't fit, or a setting is wrong.
    pub fn new(
        engine: &'a mut Engine,
        session: &'a mut Session,
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
        let stops = StopMatcher::new(config.stops.clone())?;
        let n_reused = session.reuse(engine, &prompt)?;
        // The engine may hold other tokens than the prompt's, so the context is the bound.
        let max_tokens = config.max_tokens.unwrap_or(usize::MAX);
        let history =
            History::with_capacity(&prompt, max_tokens.min(context - prompt.len()) + VERIFIED_ROWS_MAX);
        let stream = TextBuffer::new(engine.tokenizer().vocabulary());
        let wish = config.checkpoint_at.filter(|_| engine.plan().n_checkpoints > 0);
        let checkpoint_at = wish.unwrap_or(prompt.len());
        let meter = Meter::start(engine);
        Ok(Self {
            engine,
            session,
            sampler,
            stops,
            max_tokens,
            prompt,
            n_reused,
            history,
            stream,
            piece: String::new(),
            state: State::Prompt,
            meter,
            prompt_time: Nanos(0),
            decode_time: Nanos(0),
            checkpoint_at,
            fed: Vec::with_capacity(VERIFIED_ROWS_MAX),
            open: None,
            counts: Counts::default(),
        })
    }

    /// The next piece; `None` when the answer is over.
    ///
    /// # Errors
    /// [`DecodeError`]; the session holds what was read and made before, and the call may be repeated.
    #[expect(
        clippy::should_implement_trait,
        reason = "a piece may fail, and the report comes after the last"
    )]
    pub fn next(&mut self) -> Result<Option<Event>, DecodeError> {
        loop {
            match self.state {
                State::Prompt => return self.read_prompt().map(Some),
                State::Choose => self.choose()?,
                State::Show(token) => return Ok(Some(Event::Text(self.show(token)))),
                State::Feed(token) => self.feed(token)?,
                State::Done(_) => return Ok(None),
            }
        }
    }

    /// Ends the answer, whether it is over or not.
    pub fn finish(mut self) -> Report {
        // Rows of what was said are kept; a failure leaves the session without them, which costs reading them anew.
        let _ = self.settle(true);
        let finish_reason = match self.state {
            State::Done(reason) => reason,
            State::Prompt | State::Choose | State::Show(_) | State::Feed(_) => FinishReason::Interrupted,
        };
        let telemetry = self.telemetry();
        Report { tokens: self.history.answer().to_vec(), finish_reason, telemetry }
    }

    fn read_prompt(&mut self) -> Result<Event, DecodeError> {
        let begin = self.engine.clock().now();
        let held = self.session.tokens().len();
        let mut end = self.prompt.len().min(held + self.engine.plan().rows_max);
        if held < self.checkpoint_at {
            end = end.min(self.checkpoint_at);
        }
        let wish = if end == self.prompt.len() { Logits::Last } else { Logits::None };
        if self.session.extend(self.engine, &self.prompt[held..end], wish)?.is_some() {
            self.state = State::Choose;
        }
        if end == self.checkpoint_at {
            self.engine.pin_checkpoint(end)?;
        }
        self.prompt_time = self.prompt_time + (self.engine.clock().now() - begin);
        Ok(Event::Prompt { n_read: end, n_tokens: self.prompt.len() })
    }

    /// Shows the token that was chosen, and ends the answer if it is the last.
    fn show(&mut self, token: TokenId) -> String {
        let vocabulary = self.engine.tokenizer().vocabulary();
        if vocabulary.end_ids().contains(&token) {
            return self.end(FinishReason::Stop);
        }
        if self.history.answer().len() >= self.max_tokens {
            return self.end(FinishReason::Length);
        }
        self.piece.clear();
        self.stream.push(vocabulary, token, &mut self.piece);
        self.history.push(token);
        let output = self.stops.push(&self.piece);
        self.state = State::Feed(token);
        let is_full = self.held() == self.engine.plan().context;
        if output.stop.is_some() {
            self.state = State::Done(FinishReason::Stop);
            output.text
        } else if is_full || self.history.answer().len() >= self.max_tokens {
            output.text + &self.end(FinishReason::Length)
        } else {
            output.text
        }
    }

    /// Ends the answer; returns the text that was held back.
    fn end(&mut self, reason: FinishReason) -> String {
        self.state = State::Done(reason);
        let mut piece = String::new();
        self.stream.finish(&mut piece);
        self.stops.push(&piece).text + &self.stops.finish()
    }

    /// Tokens that are held, with those whose rows are still to be accepted.
    fn held(&self) -> usize {
        self.session.tokens().len() + self.open.map_or(0, |open| open.row + 1)
    }

    /// Draws the next token.
    fn choose(&mut self) -> Result<(), DecodeError> {
        let draw = Draw { choice: 0, position: self.held() as u64 };
        let logits = self.engine.logits_row(self.open.map_or(0, |open| open.row));
        let token = self.sampler.sample(logits, &self.history, draw)?;
        self.state = State::Show(token);
        Ok(())
    }

    /// Feeds the token that was shown: a draft may have done so, or it is read now, with a draft of what follows.
    fn feed(&mut self, token: TokenId) -> Result<(), DecodeError> {
        if let Some(open) = &mut self.open
            && self.fed.get(open.row + 1) == Some(&token)
        {
            open.row += 1;
            self.state = State::Choose;
            return Ok(());
        }
        self.settle(false)?;
        let begin = self.engine.clock().now();
        self.meter.step_begins(self.engine);
        let draft_time = self.draft(token);
        let drafted = self.engine.clock().now();
        let before = self.engine.scheduler_stats();
        self.verify()?;
        let counts = self.engine.scheduler_stats().since(&before);
        self.meter.step_ends(self.engine);
        let end = self.engine.clock().now();
        self.open = Some(Open { row: 0, draft_time, step_time: end - drafted, counts });
        self.state = State::Choose;
        self.decode_time = self.decode_time + (end - begin);
        if self.fed.len() == 1 {
            // Nothing to be looked at.
            self.settle(false)?;
        }
        Ok(())
    }

    /// Reads the token and its draft. What only a draft fails by, such as an expert that can't be read, isn't the answer's
    /// affair: then the token is read alone.
    fn verify(&mut self) -> Result<(), DecodeError> {
        let verified = self.session.verify(self.engine, &self.fed);
        if verified.is_err() && self.fed.len() > 1 {
            self.fed.truncate(1);
            return self.session.verify(self.engine, &self.fed);
        }
        verified
    }

    /// Leaves `token` and a draft of what follows it in `fed`; returns the time that drafting took.
    fn draft(&mut self, token: TokenId) -> Nanos {
        self.fed.clear();
        self.fed.push(token);
        let held = self.session.tokens();
        let left = self.max_tokens.saturating_sub(self.history.answer().len());
        let choosing = Choosing {
            sampler: &mut self.sampler,
            history: &mut self.history,
            first: Draw { choice: 0, position: held.len() as u64 + 1 },
            // The step says one more token by itself.
            n_max: left.saturating_sub(1),
        };
        self.engine.propose(held, choosing, &mut self.fed)
    }

    /// Keeps the rows of the open step that the model agreed with, if there is one; `is_cut` when the answer ended before
    /// all of them were looked at.
    fn settle(&mut self, is_cut: bool) -> Result<(), DecodeError> {
        let Some(open) = self.open else { return Ok(()) };
        let begin = self.engine.clock().now();
        self.session.accept(self.engine, &self.fed[..=open.row])?;
        self.open = None;
        let time = self.engine.clock().now() - begin;
        let drafted = self.fed.len() - 1;
        self.engine.conclude(&DraftedStep {
            rows: self.fed.len(),
            drafted,
            accepted: open.row,
            is_cut,
            draft_time: open.draft_time,
            step_time: open.step_time + time,
            stall_time: open.counts.stall,
            missed_bytes: open.counts.bytes_demand + open.counts.bytes_guess,
        });
        self.decode_time = self.decode_time + time;
        self.counts.tokens_read += open.row + 1;
        self.counts.steps += 1;
        self.counts.drafted += drafted;
        self.counts.accepted += open.row;
        self.counts.draft_time = self.counts.draft_time + open.draft_time;
        Ok(())
    }

    fn telemetry(&self) -> Telemetry {
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
        self.meter.telemetry(self.engine, &work)
    }
}
