//! How well a model predicts a text.
//!
//! The definition is that of llama.cpp's `llama-perplexity`, so that figures can be compared: the tokens of the whole
//! text are cut in windows as long as the context, of which only whole ones count; a window begins with the token
//! that the vocabulary puts in front of a text, if it does, in place of its own first; the first half of a window is
//! only read, and every token after the middle one is predicted from all before it. With `nll` the negative natural
//! logarithm of a token's probability, the result is `exp(mean(nll))`, and its standard error that of the mean times
//! the result.

use std::io::Read;

use forerun_model::{Nanos, TokenId};

use crate::DecodeError;
use crate::engine::{Engine, Logits};
use crate::meter::{Meter, Work};
use crate::session::Session;
use crate::telemetry::Telemetry;
use crate::text::TokenReader;
use crate::windows::Windows;
pub use crate::windows::{TextLength, WINDOW_MIN};

/// Tokens of a window when none are asked for.
pub const WINDOW_DEFAULT: usize = 512;
/// Rows of a step whose logits are wanted; see [`crate::EngineConfig::logit_rows`].
pub const LOGIT_ROWS: usize = 16;

/// A result, or what it would be if the text ended here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The exponential of the mean negative log-probability.
    pub perplexity: f64,
    /// Its standard error.
    pub stderr: f64,
    /// Tokens that were predicted.
    pub n_tokens: u64,
}

impl Estimate {
    /// That of `n_tokens` tokens with these sums of negative log-probabilities and of their squares; `None` before two.
    #[expect(clippy::cast_precision_loss, reason = "nobody scores 2^53 tokens")]
    pub(crate) fn of(nll: f64, squares: f64, n_tokens: u64) -> Option<Self> {
        let n = n_tokens as f64;
        let mean = nll / n;
        let variance = (squares / n - mean * mean).max(0.0);
        let perplexity = mean.exp();
        let stderr = perplexity * (variance / (n - 1.0)).sqrt();
        (n_tokens > 1).then_some(Self { perplexity, stderr, n_tokens })
    }
}

/// Predictions so far: sums of negative log-probabilities and of their squares.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    nll: f64,
    squares: f64,
    n_tokens: u64,
}

impl Sums {
    fn add(&mut self, nll: f64) {
        self.nll += nll;
        self.squares += nll * nll;
        self.n_tokens += 1;
    }

    /// `None` before two tokens.
    fn estimate(&self) -> Option<Estimate> {
        Estimate::of(self.nll, self.squares, self.n_tokens)
    }
}

/// The negative log-probability of `token` under the softmax of `logits`; summed in f64, in the vocabulary's order.
fn negative_log_probability(logits: &[f32], token: TokenId) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    sum.ln() + largest - f64::from(logits[token.idx()])
}

/// What [`Perplexity::next`] brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreEvent {
    /// A part of a window was read.
    Read,
    /// A window is complete, the `n`-th from 1; [`Perplexity::estimate`] counts it.
    Window {
        /// Which one.
        n: u64,
    },
}

/// A text being scored, pulled step by step. The engine's context is the window.
pub struct Perplexity<'e, R> {
    engine: &'e mut Engine,
    session: Session,
    windows: Windows<R>,
    /// The window under way; empty between two.
    window: Vec<TokenId>,
    /// Predictions in whole windows, and with those of the window under way.
    whole: Sums,
    sums: Sums,
    n_windows: u64,
    meter: Meter,
    work: Work,
}

impl<'e, R: Read> Perplexity<'e, R> {
    /// Scores `text`, whose length was counted with this engine's tokenizer and context.
    pub fn new(engine: &'e mut Engine, text: R, length: TextLength) -> Self {
        let meter = Meter::start(engine);
        Self {
            engine,
            session: Session::new(),
            windows: Windows::new(TokenReader::new(text), length),
            window: Vec::new(),
            whole: Sums::default(),
            sums: Sums::default(),
            n_windows: 0,
            meter,
            work: Work::default(),
        }
    }

    /// Runs one step; `None` when every window was scored.
    ///
    /// # Errors
    /// [`DecodeError`]; the call may be repeated, unless the text itself can't be read.
    #[expect(clippy::should_implement_trait, reason = "a step may fail, and the result comes after the last")]
    pub fn next(&mut self) -> Result<Option<ScoreEvent>, DecodeError> {
        let begin = self.engine.clock().now();
        if self.window.is_empty() {
            let (tokenizer, len) = (self.engine.tokenizer(), self.engine.plan().context);
            if !self.windows.next(tokenizer, len, &mut self.window)? {
                return Ok(None);
            }
        }
        let is_whole = self.step()?;
        self.work.prompt_time = self.work.prompt_time + self.since(begin);
        if !is_whole {
            return Ok(Some(ScoreEvent::Read));
        }
        self.window.clear();
        self.session = Session::new();
        self.whole = self.sums;
        self.n_windows += 1;
        Ok(Some(ScoreEvent::Window { n: self.n_windows }))
    }

    /// The result of the whole windows so far; `None` before the first.
    pub fn estimate(&self) -> Option<Estimate> {
        self.whole.estimate()
    }

    /// Whole windows so far.
    pub fn n_windows(&self) -> u64 {
        self.n_windows
    }

    /// Where time and bytes went; tokens that were read count as a prompt's.
    pub fn telemetry(&self) -> Telemetry {
        self.meter.telemetry(self.engine, &self.work)
    }

    fn since(&self, begin: Nanos) -> Nanos {
        self.engine.clock().now() - begin
    }

    /// Reads the next tokens of the window, and scores predictions where they count. `true` at the window's end.
    fn step(&mut self) -> Result<bool, DecodeError> {
        let plan = self.engine.plan();
        let (rows_max, logit_rows) = (plan.rows_max, plan.logit_rows.min(plan.rows_max));
        let held = self.session.tokens().len();
        // The last token is predicted, and predicts nothing.
        let (middle, last) = (self.window.len() / 2, self.window.len() - 1);
        let (end, wish) = if held < middle {
            (middle.min(held + rows_max), Logits::None)
        } else {
            (last.min(held + logit_rows), Logits::All)
        };
        let n_vocab = self.engine.shape().n_vocab;
        if let Some(logits) = self.session.extend(self.engine, &self.window[held..end], wish)? {
            for (row, &next) in logits.chunks_exact(n_vocab).zip(&self.window[held + 1..]) {
                self.sums.add(negative_log_probability(row, next));
            }
        }
        self.work.prompt_tokens += end - held;
        Ok(end == last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probability_is_that_of_the_softmax() {
        let logits = [1.0_f32, 2.0, 3.0].map(f32::ln);
        for (token, share) in [(0, 1.0 / 6.0), (1, 2.0 / 6.0), (2, 3.0 / 6.0_f64)] {
            let found = negative_log_probability(&logits, TokenId(token));
            assert!((found + share.ln()).abs() < 1e-7, "{found}");
        }
        // Logits whose exponentials don't fit any float.
        assert!(negative_log_probability(&[2e4, 0.0], TokenId(0)).abs() < 1e-12);
        assert!((negative_log_probability(&[2e4, 0.0], TokenId(1)) - 2e4).abs() < 1e-9);
    }

    #[test]
    fn the_error_is_that_of_the_mean_times_the_result() {
        let mut sums = Sums::default();
        assert_eq!(sums.estimate(), None);
        sums.add(1.0);
        assert_eq!(sums.estimate(), None);
        sums.add(3.0);
        let found = sums.estimate().unwrap();
        // Mean 2, variance 1, over n - 1 = 1.
        assert!((found.perplexity - 2.0_f64.exp()).abs() < 1e-12 && found.n_tokens == 2);
        assert!((found.stderr - found.perplexity).abs() < 1e-12);
        let mut same = Sums::default();
        (0..5).for_each(|_| same.add(0.1));
        assert!(same.estimate().unwrap().stderr < 1e-6);
    }
}
