//! Which step runs next, and what becomes of it.

use std::mem;

use forerun_model::Nanos;

use super::Batch;
use super::seats::Seat;
use crate::DecodeError;
use crate::engine::Share;

/// Between two steps that make tokens, a long one may run for so many times as long as one of them took.
const LONG_TO_SHORT: u64 = 2;
/// But not longer, so that nobody waits for a second.
const LONG_MAX: Nanos = Nanos(400_000_000);

/// A step under way.
#[derive(Debug)]
pub(super) struct Pass {
    /// Whose shares it has, in their order.
    members: Vec<usize>,
    began: Nanos,
    n_rows: usize,
}

impl Pass {
    pub(super) fn has(&self, seat: usize) -> bool {
        self.members.contains(&seat)
    }

    pub(super) fn is_only(&self, seat: usize) -> bool {
        self.members == [seat]
    }
}

/// How long steps take.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last step that makes tokens ended.
    short_ended: Nanos,
    short_time: Nanos,
    /// How long the parts of the long step under way took so far.
    long_time: Nanos,
    /// The last long step, its rows and its time.
    read: Option<(usize, Nanos)>,
    /// Where the next long step begins to look for prompts.
    first: usize,
}

impl Pace {
    /// In proportion to the last long step; but a few rows want experts of their own too, so a step takes a quarter of that
    /// time at least.
    fn reading_time(&self, n_tokens: usize) -> Option<Nanos> {
        let (rows, time) = self.read?;
        Some(Nanos((time.0.saturating_mul(n_tokens as u64) / rows.max(1) as u64).max(time.0 / 4)))
    }
}

impl Batch {
    /// About how long reading `n_tokens` of a prompt takes with nobody else about; `None` before any were read.
    pub fn reading_time(&self, n_tokens: usize) -> Option<Nanos> {
        self.pace.reading_time(n_tokens)
    }

    /// Whether a step that makes tokens is to run now.
    pub(super) fn is_due(&self) -> bool {
        if self.speakers().next().is_none() {
            return false;
        }
        let wait = Nanos(LONG_TO_SHORT * self.pace.short_time.0).min(LONG_MAX);
        self.engine.clock().now() - self.pace.short_ended >= wait
    }

    /// Seats that want a token read and are in no long step.
    fn speakers(&self) -> impl Iterator<Item = usize> {
        let reads = |i| self.long.as_ref().is_some_and(|pass| pass.has(i));
        (0..self.seats.len()).filter(move |&i| self.seats[i].speaks() && !reads(i))
    }

    /// Begins the step that is next; `false` when there is nothing to do.
    pub(super) fn begin(&mut self) -> bool {
        if let Some(i) = self.alone.pop_front() {
            return self.begin_alone(i);
        }
        let is_long = self.long.is_some();
        let reads = self.seats.iter().any(|seat| seat.reads());
        let speaks = self.speakers().next().is_some();
        if speaks && (is_long || !reads || self.is_due()) {
            self.begin_short();
        } else if reads && !is_long {
            self.begin_long();
        } else {
            return false;
        }
        true
    }

    /// One whose step failed with others' is tried by itself: what is wrong with one is no matter of the others.
    fn begin_alone(&mut self, i: usize) -> bool {
        if self.seats[i].reads() && self.long.is_none() {
            self.start_long(vec![i]);
        } else if self.seats[i].speaks() {
            self.start_short(vec![i], false);
        }
        true
    }

    fn begin_short(&mut self) {
        let members: Vec<usize> = self.speakers().collect();
        // With several, each expert that is read serves more than one row as it is, and logits have so many rows of room.
        let drafts = members.len() == 1;
        self.start_short(members, drafts);
    }

    fn start_short(&mut self, members: Vec<usize>, drafts: bool) {
        if self.long.is_some() {
            self.engine.put_aside();
        }
        for &i in &members {
            self.prepare(i, drafts, usize::MAX);
        }
        let pass = self.pass(members);
        let begun = self.begin_step(&pass);
        self.short = Some(pass);
        if let Err(error) = begun {
            self.short_failed(error);
        }
    }

    /// Rows of prompts, beginning with another one each time, as far as there is room.
    fn begin_long(&mut self) {
        let n = self.seats.len();
        let first = self.pace.first;
        self.pace.first = (first + 1) % n;
        let mut room = self.engine.plan().rows_max;
        let mut members = Vec::new();
        for i in (first..first + n).map(|i| i % n) {
            if room > 0 && self.seats[i].reads() {
                room -= self.prepare(i, false, room).min(room);
                members.push(i);
            }
        }
        let pass = self.pass(members);
        self.start(pass);
    }

    fn start_long(&mut self, members: Vec<usize>) {
        for &i in &members {
            self.prepare(i, false, usize::MAX);
        }
        let pass = self.pass(members);
        self.start(pass);
    }

    fn start(&mut self, pass: Pass) {
        let begun = self.begin_step(&pass);
        self.pace.long_time = Nanos(0);
        self.long = Some(pass);
        if let Err(error) = begun {
            self.long_failed(error);
        }
    }

    /// Makes ready what the seat wants read; returns its rows.
    fn prepare(&mut self, i: usize, drafts: bool, rows_max: usize) -> usize {
        let Seat { session, answer, .. } = &mut self.seats[i];
        let Some(answer) = answer else { return 0 };
        answer.prepare(&mut self.engine, session, drafts, rows_max);
        answer.share(session).tokens.len()
    }

    fn pass(&self, members: Vec<usize>) -> Pass {
        let n_rows =
            members.iter().filter_map(|&i| share(&self.seats[i])).map(|share| share.tokens.len()).sum();
        Pass { members, began: self.engine.clock().now(), n_rows }
    }

    fn begin_step(&mut self, pass: &Pass) -> Result<(), DecodeError> {
        let Self { engine, seats, .. } = self;
        engine.begin(pass.members.iter().filter_map(|&i| share(&seats[i])))
    }

    pub(super) fn advance_short(&mut self) {
        match self.engine.advance() {
            Ok(false) => {}
            Ok(true) => {
                if let Some(pass) = self.short.take() {
                    let now = self.engine.clock().now();
                    self.pace.short_time = now - pass.began;
                    self.finish(&pass);
                    self.end_short();
                    self.release(&pass);
                }
            }
            Err(error) => self.short_failed(error),
        }
    }

    pub(super) fn advance_long(&mut self) {
        let begin = self.engine.clock().now();
        let advanced = self.engine.advance();
        self.pace.long_time = self.pace.long_time + (self.engine.clock().now() - begin);
        match advanced {
            Ok(false) => {}
            Ok(true) => {
                if let Some(pass) = self.long.take() {
                    self.pace.read = Some((pass.n_rows, self.pace.long_time));
                    self.finish(&pass);
                    self.release(&pass);
                }
            }
            Err(error) => self.long_failed(error),
        }
    }

    /// The short step is over, or given up: the long one goes on.
    pub(super) fn end_short(&mut self) {
        self.short = None;
        self.pace.short_ended = self.engine.clock().now();
        if self.long.is_some() {
            self.engine.take_up();
        }
        // Who was cancelled while it was aside has left it alone.
        let is_over = |&i: &usize| self.seats[i].answer.as_ref().is_none_or(|answer| answer.is_over());
        if self.long.as_ref().is_some_and(|pass| pass.members.iter().all(is_over))
            && let Some(pass) = self.long.take()
        {
            self.release(&pass);
        }
    }

    /// Hands everybody their logits, and shows what they make of them.
    fn finish(&mut self, pass: &Pass) {
        for (part, &i) in pass.members.iter().enumerate() {
            let place = self.engine.place(part);
            let Seat { session, answer, .. } = &mut self.seats[i];
            let read = match answer {
                // Rows that nobody accepts leave no trace.
                Some(answer) if !answer.is_over() => answer.read(&mut self.engine, session, place),
                _ => Ok(()),
            };
            match read {
                Ok(()) => self.drain(i),
                Err(error) => self.fail(i, error),
            }
        }
    }

    /// Frees the seats of those who are over.
    fn release(&mut self, pass: &Pass) {
        for &i in &pass.members {
            self.clear(i);
        }
    }

    fn short_failed(&mut self, error: DecodeError) {
        let pass = self.short.take();
        self.end_short();
        if let Some(pass) = pass {
            self.failed(&pass, error);
        }
    }

    fn long_failed(&mut self, error: DecodeError) {
        if let Some(pass) = self.long.take() {
            self.failed(&pass, error);
        }
    }

    /// A step failed: several answers are tried one by one, one without its draft, and one that had none ends.
    fn failed(&mut self, pass: &Pass, error: DecodeError) {
        let again = match pass.members[..] {
            [i] => self.seats[i].answer.as_mut().is_some_and(|answer| answer.drop_draft()),
            _ => true,
        };
        if again {
            self.alone.extend(&pass.members);
        } else if let Some(&i) = pass.members.first() {
            self.fail(i, error);
        }
        self.release(pass);
        // Nobody is tried twice for one failure.
        let mut alone = mem::take(&mut self.alone);
        alone.retain(|&i| !self.seats[i].is_free());
        self.alone = alone;
    }
}

/// What the answer at a seat wants read.
fn share(seat: &Seat) -> Option<Share<'_>> {
    Some(seat.answer.as_ref()?.share(&seat.session))
}
