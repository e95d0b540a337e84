//! One answer: reads a prompt, then makes tokens, pulled piece by piece.
//!
//! The caller may stop between any two pieces; the session then holds what was read and made so far.

use forerun_model::{Nanos, TokenId};
use serde::Serialize;

use crate::DecodeError;
use crate::engine::{Engine, Logits};
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
    n_steps: usize,
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
        let n_reused = session.reuse(&prompt);
        // The engine may hold other tokens than the prompt's, so the context is the bound.
        let max_tokens = config.max_tokens.unwrap_or(usize::MAX);
        let history = History::with_capacity(&prompt, max_tokens.min(context - prompt.len()) + 1);
        let stream = TextBuffer::new(engine.tokenizer().vocabulary());
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
            n_steps: 0,
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
    pub fn finish(self) -> Report {
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
        let end = self.prompt.len().min(held + self.engine.plan().rows_max);
        let wish = if end == self.prompt.len() { Logits::Last } else { Logits::None };
        if self.session.extend(self.engine, &self.prompt[held..end], wish)?.is_some() {
            self.state = State::Choose;
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
        let is_full = self.session.tokens().len() == self.engine.plan().context;
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

    /// Draws the next token.
    fn choose(&mut self) -> Result<(), DecodeError> {
        let draw = Draw { choice: 0, position: self.session.tokens().len() as u64 };
        let token = self.sampler.sample(self.engine.logits(), &self.history, draw)?;
        self.state = State::Show(token);
        Ok(())
    }

    /// Feeds the token that was shown.
    fn feed(&mut self, token: TokenId) -> Result<(), DecodeError> {
        let begin = self.engine.clock().now();
        self.meter.step_begins(self.engine);
        self.session.extend(self.engine, &[token], Logits::Last)?;
        self.meter.step_ends(self.engine);
        self.state = State::Choose;
        self.n_steps += 1;
        self.decode_time = self.decode_time + (self.engine.clock().now() - begin);
        Ok(())
    }

    fn telemetry(&self) -> Telemetry {
        let work = Work {
            prompt_tokens: self.prompt.len(),
            reused_tokens: self.n_reused,
            prompt_time: self.prompt_time,
            decode_tokens: self.history.answer().len(),
            decode_steps: self.n_steps,
            decode_time: self.decode_time,
        };
        self.meter.telemetry(self.engine, &work)
    }
}
