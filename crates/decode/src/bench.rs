//! How fast a model reads and decodes: passes over given tokens, the first of which only warms up.
//!
//! A pass reads the prompt anew and then feeds one token at a time, as an answer would, so two engines can be measured
//! in turns. Which tokens these are decides the routing, and so how often experts must be read under a budget.

use forerun_model::{Nanos, TokenId};

use crate::DecodeError;
use crate::engine::{Engine, Logits};
use crate::meter::{Meter, Work};
use crate::session::Session;
use crate::telemetry::Telemetry;

/// Times of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// From the first token of the prompt to the logits of its last.
    pub prefill: Nanos,
    /// Of all decode steps together.
    pub decode: Nanos,
}

/// What [`Bench::next`] brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchEvent {
    /// Some tokens of a pass were fed.
    Fed(usize),
    /// A pass is complete: the `n`-th, where the 0th is the warm-up.
    Pass {
        /// Which one.
        n: usize,
        /// How long it took.
        pass: Pass,
    },
}

/// A measurement, pulled step by step.
pub struct Bench<'e> {
    engine: &'e mut Engine,
    session: Session,
    prompt: Vec<TokenId>,
    decode: Vec<TokenId>,
    n_repeats: usize,
    /// Passes that are complete, with the warm-up.
    n_passes: usize,
    /// The pass under way.
    pass: Pass,
    /// The passes that count.
    passes: Vec<Pass>,
    meter: Meter,
    warm_up_bytes: u64,
}

impl<'e> Bench<'e> {
    /// One pass to warm up and `n_repeats` that count, each over `prompt` and `decode`.
    ///
    /// # Errors
    /// [`DecodeError::EmptyPrompt`] when either is empty, [`DecodeError::BenchContext`] when they don't fit the context.
    pub fn new(
        engine: &'e mut Engine,
        prompt: Vec<TokenId>,
        decode: Vec<TokenId>,
        n_repeats: usize,
    ) -> Result<Self, DecodeError> {
        let (need, context) = (prompt.len().saturating_add(decode.len()), engine.plan().context);
        if prompt.is_empty() || decode.is_empty() {
            return Err(DecodeError::EmptyPrompt);
        }
        if need > context {
            return Err(DecodeError::BenchContext { need, context });
        }
        let meter = Meter::start(engine);
        Ok(Self {
            engine,
            session: Session::new(),
            prompt,
            decode,
            n_repeats,
            n_passes: 0,
            pass: Pass::default(),
            passes: Vec::with_capacity(n_repeats),
            meter,
            warm_up_bytes: 0,
        })
    }

    /// Runs one step; `None` when every pass is complete.
    ///
    /// # Errors
    /// [`DecodeError`] of the step; the call may be repeated, but the pass then took longer.
    #[expect(clippy::should_implement_trait, reason = "a step may fail, and the report comes after the last")]
    pub fn next(&mut self) -> Result<Option<BenchEvent>, DecodeError> {
        if self.n_passes > self.n_repeats {
            return Ok(None);
        }
        let held = self.session.tokens().len();
        let Some(decoded) = held.checked_sub(self.prompt.len()) else { return self.read(held).map(Some) };
        if let Some(&token) = self.decode.get(decoded) {
            let begin = self.engine.clock().now();
            self.meter.step_begins(self.engine);
            self.session.extend(self.engine, &[token], Logits::Last)?;
            self.meter.step_ends(self.engine);
            self.pass.decode = self.pass.decode + (self.engine.clock().now() - begin);
            return Ok(Some(BenchEvent::Fed(1)));
        }
        Ok(Some(self.end_pass()))
    }

    /// Reads a part of the prompt.
    fn read(&mut self, held: usize) -> Result<BenchEvent, DecodeError> {
        let end = self.prompt.len().min(held + self.engine.plan().rows_max);
        let wish = if end == self.prompt.len() { Logits::Last } else { Logits::None };
        let begin = self.engine.clock().now();
        self.session.extend(self.engine, &self.prompt[held..end], wish)?;
        self.pass.prefill = self.pass.prefill + (self.engine.clock().now() - begin);
        Ok(BenchEvent::Fed(end - held))
    }

    fn end_pass(&mut self) -> BenchEvent {
        let (n, pass) = (self.n_passes, std::mem::take(&mut self.pass));
        self.session = Session::new();
        self.n_passes += 1;
        if n == 0 {
            self.warm_up_bytes = self.meter.telemetry(self.engine, &Work::default()).bytes_demand;
            self.meter = Meter::start(self.engine);
        } else {
            self.passes.push(pass);
        }
        BenchEvent::Pass { n, pass }
    }

    /// The passes that count, so far.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Bytes of experts that the warm-up read.
    pub fn warm_up_bytes(&self) -> u64 {
        self.warm_up_bytes
    }

    /// The engine that is measured.
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Figures of all passes that count, together.
    pub fn telemetry(&self) -> Telemetry {
        let sum = |time: fn(&Pass) -> Nanos| self.passes.iter().fold(Nanos(0), |sum, pass| sum + time(pass));
        let n = self.passes.len();
        let work = Work {
            prompt_tokens: n * self.prompt.len(),
            reused_tokens: 0,
            prompt_time: sum(|pass| pass.prefill),
            decode_tokens: n * self.decode.len(),
            tokens_read: n * self.decode.len(),
            decode_steps: n * self.decode.len(),
            decode_time: sum(|pass| pass.decode),
            ..Work::default()
        };
        self.meter.telemetry(self.engine, &work)
    }
}
