//! Who sits where: the sessions of an engine's sequences, and the answers that go on in them.

use std::ops::{Deref, DerefMut};

use forerun_compute::SequenceIdx;
use forerun_model::TokenId;

use super::Ticket;
use crate::DecodeError;
use crate::engine::Engine;
use crate::generation::answer::{Answer, Next};
use crate::generation::{Event, GenerationConfig, Report};
use crate::session::Session;

/// A session, and the answer that it is used for.
pub(super) struct Seat {
    pub(super) session: Session,
    pub(super) answer: Option<Answer>,
    /// The answer's; of no meaning without one.
    pub(super) ticket: Ticket,
    /// When an answer began here last, in answers.
    used: u64,
}

impl Seat {
    pub(super) fn is_free(&self) -> bool {
        self.answer.is_none()
    }

    /// Whether a part of its prompt is to be read next.
    pub(super) fn reads(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.reads_prompt() && !answer.is_over())
    }

    /// Whether a token is to be read next.
    pub(super) fn speaks(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.reads_prompt() && !answer.is_over())
    }

    /// What can be shown without a step.
    pub(super) fn poll(&mut self, engine: &mut Engine) -> Option<Result<Event, DecodeError>> {
        match self.answer.as_mut()?.poll(engine, &mut self.session) {
            Ok(Next::Event(event)) => Some(Ok(event)),
            Ok(Next::Step | Next::Over) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// All seats of a batch.
pub(super) struct Seats {
    seats: Vec<Seat>,
    n_begun: u64,
}

impl Deref for Seats {
    type Target = [Seat];

    fn deref(&self) -> &[Seat] {
        &self.seats
    }
}

impl DerefMut for Seats {
    fn deref_mut(&mut self) -> &mut [Seat] {
        &mut self.seats
    }
}

impl Seats {
    pub(super) fn new(n: usize) -> Self {
        let seat =
            |i| Seat { session: Session::on(SequenceIdx(i)), answer: None, ticket: Ticket(0), used: 0 };
        Self { seats: (0..n).map(seat).collect(), n_begun: 0 }
    }

    /// The seat of an answer.
    pub(super) fn of(&self, ticket: Ticket) -> Option<usize> {
        self.seats.iter().position(|seat| !seat.is_free() && seat.ticket == ticket)
    }

    /// The free seat that an answer to `prompt` should have: where it goes on with what is held, if that is most of what is
    /// held there or of the prompt; else the one that was used longest ago, so that another conversation isn't lost for a few
    /// tokens. With it, how much of the prompt needn't be read there.
    pub(super) fn best(&self, engine: &Engine, prompt: &[TokenId]) -> Option<(usize, usize)> {
        let free = || (0..self.seats.len()).filter(|&i| self.seats[i].is_free());
        let goes_on = |&(i, reusable): &(usize, usize)| {
            reusable > 0 && 2 * reusable >= self.seats[i].session.tokens().len().min(prompt.len())
        };
        let reusable = free().map(|i| (i, self.seats[i].session.reusable(engine, prompt)));
        let longest = reusable.filter(goes_on).max_by_key(|&(_, reusable)| reusable);
        longest.or_else(|| {
            let i = self.oldest()?;
            Some((i, self.seats[i].session.reusable(engine, prompt)))
        })
    }

    /// The free seat that was used longest ago.
    pub(super) fn oldest(&self) -> Option<usize> {
        let free = (0..self.seats.len()).filter(|&i| self.seats[i].is_free());
        free.min_by_key(|&i| self.seats[i].used)
    }

    /// Begins an answer; returns how many tokens of the prompt are held already.
    pub(super) fn sit(
        &mut self,
        i: usize,
        engine: &mut Engine,
        ticket: Ticket,
        prompt: Vec<TokenId>,
        config: &GenerationConfig,
    ) -> Result<usize, DecodeError> {
        let Seat { session, .. } = &mut self.seats[i];
        let answer = Answer::new(engine, session, prompt, config)?;
        let n_reused = answer.n_reused();
        self.n_begun += 1;
        let seat = &mut self.seats[i];
        (seat.answer, seat.ticket, seat.used) = (Some(answer), ticket, self.n_begun);
        Ok(n_reused)
    }

    /// Ends the answer if it is over.
    pub(super) fn stand_up(&mut self, i: usize, engine: &mut Engine) -> Option<(Ticket, Report)> {
        let Seat { session, answer, ticket, .. } = &mut self.seats[i];
        let mut over = answer.take_if(|answer| answer.is_over())?;
        Some((*ticket, over.report(engine, session)))
    }
}
