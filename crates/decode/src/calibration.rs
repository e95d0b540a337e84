//! Reads a text to see which columns of a model's matrices matter.
//!
//! The windows are those of [`crate::perplexity`], each read from its first token to its last, as llama.cpp's
//! `llama-imatrix` does; an engine that [collects](crate::EngineConfig::collects) adds up what it computes on the way.

use std::io::Read;

use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::{Engine, Logits};
use crate::meter::{Meter, Work};
use crate::session::Session;
use crate::telemetry::Telemetry;
use crate::text::TokenReader;
use crate::windows::{TextLength, Windows};

/// What [`Calibration::next`] brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEvent {
    /// A part of a window was read.
    Read,
    /// A window is complete, the `n`-th of the text from 1: the engine's sums hold it, and no part of another.
    Window {
        /// Which one.
        n: u64,
    },
}

/// A text being read, pulled step by step. The engine's context is the window.
pub struct Calibration<'e, R> {
    engine: &'e mut Engine,
    session: Session,
    windows: Windows<R>,
    /// The window under way; empty between two.
    window: Vec<TokenId>,
    meter: Meter,
    work: Work,
}

impl<'e, R: Read> Calibration<'e, R> {
    /// Reads the text of `reader`, whose length was counted with this engine's tokenizer and context.
    pub fn new(engine: &'e mut Engine, reader: TokenReader<R>, length: TextLength) -> Self {
        let meter = Meter::start(engine);
        let windows = Windows::new(reader, length);
        Self { engine, session: Session::new(), windows, window: Vec::new(), meter, work: Work::default() }
    }

    /// Passes over the first `n` windows, which an earlier run read.
    ///
    /// # Errors
    /// [`DecodeError`] when the text can't be read, or has fewer.
    pub fn skip(&mut self, n: u64) -> Result<(), DecodeError> {
        for _ in 0..n {
            self.take()?;
            self.window.clear();
        }
        Ok(())
    }

    /// Runs one step; `None` when every window was read.
    ///
    /// # Errors
    /// [`DecodeError`]. The sums then hold a part of a window, and what was saved of them before is what counts.
    #[expect(clippy::should_implement_trait, reason = "a step may fail")]
    pub fn next(&mut self) -> Result<Option<ReadEvent>, DecodeError> {
        if self.window.is_empty() && !self.take()? {
            return Ok(None);
        }
        let begin = self.engine.clock().now();
        let (held, rows_max) = (self.session.tokens().len(), self.engine.plan().rows_max);
        let end = self.window.len().min(held + rows_max);
        self.session.extend(self.engine, &self.window[held..end], Logits::None)?;
        self.work.prompt_tokens += end - held;
        self.work.prompt_time = self.work.prompt_time + (self.engine.clock().now() - begin);
        if end < self.window.len() {
            return Ok(Some(ReadEvent::Read));
        }
        self.window.clear();
        self.session = Session::new();
        Ok(Some(ReadEvent::Window { n: self.windows.n_taken() }))
    }

    /// The engine, whose sums are whole between two windows.
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Where time and bytes went; tokens that were read count as a prompt's.
    pub fn telemetry(&self) -> Telemetry {
        self.meter.telemetry(self.engine, &self.work)
    }

    fn take(&mut self) -> Result<bool, DecodeError> {
        self.windows.next(self.engine.tokenizer(), self.engine.plan().context, &mut self.window)
    }
}
