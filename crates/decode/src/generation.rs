//! One answer: reads a prompt, then makes tokens, pulled piece by piece.
//!
//! The caller may stop between any two pieces; the session then holds what was read and made so far.

pub(crate) mod answer;
mod events;

use std::iter::once;

use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::{Engine, Place};
use crate::session::Session;
pub use events::{Event, FinishReason, GenerationConfig, Logprobs, Piece, Report};

use answer::{Answer, Next};

/// An answer in the making, alone on its engine.
pub struct Generation<'a> {
    engine: &'a mut Engine,
    session: &'a mut Session,
    answer: Answer,
}

impl Drop for Generation<'_> {
    /// The session keeps what was said, however the answer ends.
    fn drop(&mut self) {
        let _ = self.answer.settle(self.engine, self.session, true);
    }
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
        let answer = Answer::new(engine, session, prompt, config)?;
        Ok(Self { engine, session, answer })
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
            match self.answer.poll(self.engine, self.session)? {
                Next::Event(event) => return Ok(Some(event)),
                Next::Over => return Ok(None),
                Next::Step => self.step()?,
            }
        }
    }

    /// Ends the answer, whether it is over or not.
    pub fn finish(mut self) -> Report {
        self.answer.report(self.engine, self.session)
    }

    fn step(&mut self) -> Result<(), DecodeError> {
        let Self { engine, session, answer } = self;
        answer.prepare(engine, session, true, usize::MAX);
        let mut run = engine.run(once(answer.share(session)));
        if run.is_err() && answer.drop_draft() {
            run = engine.run(once(answer.share(session)));
        }
        run?;
        answer.read(engine, session, Place::default())
    }
}
