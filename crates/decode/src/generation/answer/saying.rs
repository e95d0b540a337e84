//! From logits to what is said: choosing, showing and drafting tokens.

use forerun_model::{Nanos, TokenId};

use super::{Answer, State};
use crate::DecodeError;
use crate::engine::{Choosing, Engine};
use crate::generation::{FinishReason, Logprobs, Piece};
use crate::sampler::{Draw, SamplerError, TokenLogprob, logprob, top_logprobs};
use crate::session::Session;

impl Answer {
    /// Shows the token that was chosen, and ends the answer if it is the last.
    pub(super) fn show(
        &mut self,
        engine: &Engine,
        session: &Session,
        token: TokenId,
    ) -> Result<Piece, DecodeError> {
        let vocabulary = engine.tokenizer().vocabulary();
        let last = |text| Ok(Piece { text, ..Piece::default() });
        if vocabulary.end_ids().contains(&token) {
            return last(self.end(FinishReason::Stop));
        }
        if self.history.answer().len() >= self.max_tokens {
            return last(self.end(FinishReason::Length));
        }
        let logprobs = self.logprobs(engine, token)?;
        self.piece.clear();
        self.stream.push(vocabulary, token, &mut self.piece);
        self.history.push(token);
        let output = self.stops.push(&self.piece);
        self.state = State::Feed(token);
        let is_full = self.held(session) == engine.plan().context;
        let text = if output.stop.is_some() {
            self.state = State::Done(FinishReason::Stop);
            output.text
        } else if is_full || self.history.answer().len() >= self.max_tokens {
            output.text + &self.end(FinishReason::Length)
        } else {
            output.text
        };
        Ok(Piece { text, token: Some(token), logprobs })
    }

    /// The logits that are next.
    fn logits<'e>(&self, engine: &'e Engine) -> &'e [f32] {
        engine.logits_row(self.place.first_logits + self.open.map_or(0, |open| open.row))
    }

    /// How probable `token`, which was chosen last, was, if anybody wants to know.
    fn logprobs(&self, engine: &Engine, token: TokenId) -> Result<Option<Logprobs>, SamplerError> {
        let Some(n) = self.n_logprobs else { return Ok(None) };
        let logits = self.logits(engine);
        let mut top = Vec::with_capacity(n + 1);
        top_logprobs(logits, n, &mut top)?;
        let logprob = logprob(logits, token)?;
        Ok(Some(Logprobs { chosen: TokenLogprob { token, logprob }, top }))
    }

    /// Ends the answer; returns the text that was held back.
    fn end(&mut self, reason: FinishReason) -> String {
        self.state = State::Done(reason);
        let mut piece = String::new();
        self.stream.finish(&mut piece);
        self.stops.push(&piece).text + &self.stops.finish()
    }

    /// Tokens that are held, with those whose rows are still to be accepted.
    fn held(&self, session: &Session) -> usize {
        session.tokens().len() + self.open.map_or(0, |open| open.row + 1)
    }

    /// Draws the next token.
    pub(super) fn choose(&mut self, engine: &Engine, session: &Session) -> Result<(), DecodeError> {
        let draw = Draw { choice: self.choice, position: self.held(session) as u64 };
        let logits = self.logits(engine);
        let token = self.sampler.sample(logits, &self.history, draw)?;
        self.state = State::Show(token);
        Ok(())
    }

    /// Adds a draft of what follows the token in `fed`; returns the time that it took.
    pub(super) fn draft(&mut self, engine: &mut Engine, session: &Session) -> Nanos {
        let held = session.tokens();
        let left = self.max_tokens.saturating_sub(self.history.answer().len());
        let choosing = Choosing {
            sampler: &mut self.sampler,
            history: &mut self.history,
            first: Draw { choice: self.choice, position: held.len() as u64 + 1 },
            // The step says one more token by itself.
            n_max: left.saturating_sub(1),
        };
        engine.propose(session.sequence(), held, choosing, &mut self.fed)
    }
}
