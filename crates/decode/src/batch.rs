//! Several answers over one engine: steps of those that are being made are one step, so that an expert is read once for
//! all of them.
//!
//! A [`Batch`] owns the engine and has a seat for each of its sequences. Its driver [admits](Batch::admit) prompts to
//! free seats, calls [`Batch::advance`], each time one layer of work, and takes what came of it with
//! [`Batch::next_event`]. Between two layers it may admit, cancel, or leave.
//!
//! Prompts are read in long steps, as many tokens as the memory plan allows, of several prompts if there are such.
//! When answers are being made meanwhile, a long step is put aside between two layers to let one of theirs run.
//! Who shares a step changes no bit of anybody's answer.
//!
//! With more conversations than seats, those that lose theirs are kept as [prefixes](crate::prefix), as far as the memory
//! plan has room for them, and go on from there.

mod keeping;
mod passes;
mod seats;

use std::collections::VecDeque;

use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::Engine;
use crate::generation::{Event, GenerationConfig, Report};
use crate::prefix::Prefixes;
use passes::{Pace, Pass};
use seats::{Seat, Seats};

/// One answer of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What came of an answer.
#[derive(Debug)]
pub enum BatchEvent {
    /// It goes on.
    Event(Event),
    /// It is over.
    Over(Box<Report>),
    /// It ended with an error; others go on.
    Failed(DecodeError),
}

/// An answer that was admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    /// Its name.
    pub ticket: Ticket,
    /// Tokens of the prompt that needn't be read again: held in its seat, or kept before.
    pub n_reused: usize,
}

/// Answers in the making, over an engine.
pub struct Batch {
    engine: Engine,
    seats: Seats,
    /// The step that reads prompts.
    long: Option<Pass>,
    /// The step that makes tokens. With a long one under way, that one is put aside.
    short: Option<Pass>,
    /// Seats whose step failed together with others' and is tried alone.
    alone: VecDeque<usize>,
    pace: Pace,
    events: VecDeque<(Ticket, BatchEvent)>,
    n_tickets: u64,
    prefixes: Prefixes,
}

impl Batch {
    /// A batch with a seat for each [sequence](Engine::n_sequences) of `engine`, which keeps conversations in as much memory
    /// as the engine's plan has for them.
    pub fn new(engine: Engine) -> Self {
        Self {
            seats: Seats::new(engine.n_sequences()),
            prefixes: Prefixes::new(&engine),
            engine,
            long: None,
            short: None,
            alone: VecDeque::new(),
            pace: Pace::default(),
            events: VecDeque::new(),
            n_tickets: 0,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, for what doesn't run steps.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Seats.
    pub fn n_seats(&self) -> usize {
        self.seats.len()
    }

    /// Seats that nobody has.
    pub fn n_free(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is_free()).count()
    }

    /// Begins an answer to `prompt` in the free seat that holds most of it, or in another with what was kept of it. `None` when
    /// no seat is free.
    ///
    /// # Errors
    /// [`DecodeError`] when the prompt is empty or doesn't fit, or a setting is wrong.
    pub fn admit(
        &mut self,
        prompt: Vec<TokenId>,
        config: &GenerationConfig,
    ) -> Result<Option<Admitted>, DecodeError> {
        let Some(seat) = self.seat_for(&prompt) else { return Ok(None) };
        let ticket = Ticket(self.n_tickets);
        let n_reused = self.seats.sit(seat, &mut self.engine, ticket, prompt, config)?;
        self.n_tickets += 1;
        Ok(Some(Admitted { ticket, n_reused }))
    }

    /// Ends an answer as it is; its last event is [`BatchEvent::Over`]. A step that is only for it is abandoned at once, one
    /// that others share runs to its end before the seat is free.
    pub fn cancel(&mut self, ticket: Ticket) {
        let Some(i) = self.seats.of(ticket) else { return };
        if let Some(answer) = &mut self.seats[i].answer {
            answer.interrupt();
        }
        let is_alone = |pass: &Option<Pass>| pass.as_ref().is_some_and(|pass| pass.is_only(i));
        if is_alone(&self.short) {
            self.end_short();
        } else if is_alone(&self.long) && self.short.is_none() {
            self.long = None;
        }
        self.clear(i);
    }

    /// What came of an answer, oldest first.
    pub fn next_event(&mut self) -> Option<(Ticket, BatchEvent)> {
        self.events.pop_front()
    }

    /// Runs one layer of a step; `false` when there is nothing to do.
    pub fn advance(&mut self) -> bool {
        if self.short.is_some() {
            self.advance_short();
        } else if self.long.is_some() && !self.is_due() {
            self.advance_long();
        } else if !self.begin() {
            return false;
        }
        true
    }

    /// Shows all that can be shown of the answer at `seat`, and frees the seat when it is over.
    fn drain(&mut self, i: usize) {
        loop {
            match self.seats[i].poll(&mut self.engine) {
                None => return,
                Some(Ok(event)) => {
                    let ticket = self.seats[i].ticket;
                    self.events.push_back((ticket, BatchEvent::Event(event)));
                }
                Some(Err(error)) => return self.fail(i, error),
            }
            self.clear(i);
        }
    }

    /// Frees the seat if its answer is over and no step has it.
    fn clear(&mut self, i: usize) {
        let is_in = |pass: &Option<Pass>| pass.as_ref().is_some_and(|pass| pass.has(i));
        if is_in(&self.short) || is_in(&self.long) {
            return;
        }
        if let Some((ticket, report)) = self.seats.stand_up(i, &mut self.engine) {
            self.events.push_back((ticket, BatchEvent::Over(Box::new(report))));
        }
    }

    /// Ends the answer at `seat` with `error`.
    fn fail(&mut self, i: usize, error: DecodeError) {
        let Seat { ticket, answer, .. } = &mut self.seats[i];
        if answer.take().is_some() {
            self.events.push_back((*ticket, BatchEvent::Failed(error)));
        }
    }
}
