//! Jobs that wait, counts of what became of the others, and the engine thread's end of both.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forerun_decode::Telemetry;
use forerun_decode::prefix::PrefixStats;
use tokio::sync::{Notify, mpsc};

use super::live::Board;
use super::{Facts, Failure, Job, Piece, Refused};

/// How much of the mean the newest value is.
const NEWEST_SHARE: f64 = 0.2;
/// Bounds of what [`Refused::QueueFull`] advises, in seconds.
const RETRY_S: (f64, f64) = (1.0, 600.0);

/// How much is going on.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// Jobs that wait.
    pub queued: usize,
    /// Jobs that are being answered.
    pub active: usize,
    /// Jobs that may be answered at once.
    pub slots: usize,
    /// Jobs that may wait.
    pub queue_max: usize,
    /// Whether jobs are taken.
    pub is_open: bool,
    /// Whether the engine's thread is there.
    pub is_alive: bool,
    /// What was done since the start.
    pub totals: Totals,
    /// Conversations that are kept without a seat, and what came of them.
    pub kept: PrefixStats,
}

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Answers that came to their end.
    pub done: u64,
    /// Jobs that were given up by those who asked.
    pub given_up: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Jobs that were not taken, since too many waited.
    pub refused: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Those of them that needn't be read.
    pub prompt_reused_tokens: u64,
    /// Tokens made.
    pub decode_tokens: u64,
    /// Tokens that were drafted.
    pub draft_tokens: u64,
    /// Those of them that the model said too.
    pub accepted_tokens: u64,
    /// Seconds spent on reading prompts.
    pub prompt_s: f64,
    /// Seconds spent on making tokens.
    pub decode_s: f64,
    /// Seconds that the token loop waited for experts.
    pub stall_s: f64,
    /// Bytes of experts read because a router asked.
    pub bytes_demand: u64,
    /// Bytes of experts read on a guess.
    pub bytes_guess: u64,
    /// Those of them that no router asked for.
    pub bytes_wasted: u64,
    /// Reads handed to the system.
    pub reads: u64,
}

impl Totals {
    fn add(&mut self, t: &Telemetry) {
        self.prompt_tokens += t.prompt_tokens as u64;
        self.prompt_reused_tokens += t.prompt_reused_tokens as u64;
        self.decode_tokens += t.decode_tokens as u64;
        self.draft_tokens += t.draft_tokens as u64;
        self.accepted_tokens += t.accepted_tokens as u64;
        self.prompt_s += t.prompt_ms / 1e3;
        self.decode_s += t.decode_ms / 1e3;
        self.stall_s += t.stall_ms / 1e3;
        self.bytes_demand += t.bytes_demand;
        self.bytes_guess += t.bytes_guess;
        self.bytes_wasted += t.bytes_wasted;
        self.reads += t.reads;
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    GivenUp,
    Failed,
}

/// Where pieces of an answer go.
#[derive(Debug)]
pub(super) struct Line {
    pieces: mpsc::UnboundedSender<Piece>,
    given_up: Arc<AtomicBool>,
}

impl Line {
    pub(super) fn new(pieces: mpsc::UnboundedSender<Piece>, given_up: Arc<AtomicBool>) -> Self {
        Self { pieces, given_up }
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Sends a piece; that nobody listens is seen at the next look at [`Self::is_given_up`].
    pub(super) fn send(&self, piece: Piece) {
        let _ = self.pieces.send(piece);
    }
}

/// A job that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) job: Job,
    pub(super) line: Line,
    pub(super) since: Instant,
}

/// Whether jobs are taken and done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Open,
    /// No more are taken.
    Closing,
    /// Those that are there end now.
    GivingUp,
    /// The thread ends.
    Stopped,
    /// The thread ended by itself.
    Gone,
}

#[derive(Debug)]
struct Book {
    waiting: VecDeque<Waiting>,
    n_active: usize,
    state: State,
    totals: Totals,
    /// What is kept of conversations.
    kept: PrefixStats,
    /// Whether the thread is gone.
    has_ended: bool,
    next_number: u64,
    /// Mean seconds of an answer, newer ones counting more.
    answer_s: Option<f64>,
}

/// What both sides of the desk see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) facts: Facts,
    pub(super) board: Board,
    book: Mutex<Book>,
    /// Tells the engine's thread that there is something to do.
    wake: Condvar,
    /// Tells those who wait for the end that a job ended.
    ended: Notify,
}

impl Shared {
    pub(super) fn new(facts: Facts) -> Self {
        let book = Book {
            waiting: VecDeque::new(),
            n_active: 0,
            state: State::Open,
            totals: Totals::default(),
            kept: PrefixStats::default(),
            has_ended: false,
            next_number: 0,
            answer_s: None,
        };
        Self {
            facts,
            board: Board::default(),
            book: Mutex::new(book),
            wake: Condvar::new(),
            ended: Notify::new(),
        }
    }

    /// A panic elsewhere leaves nothing half-written in the book.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a job; returns its number.
    pub(super) fn enqueue(&self, job: Job, line: Line) -> Result<u64, Refused> {
        let config = &self.facts.config;
        let mut book = self.book();
        match book.state {
            State::Open => {}
            State::Gone => return Err(Refused::EngineGone),
            State::Closing | State::GivingUp | State::Stopped => return Err(Refused::ShuttingDown),
        }
        let free = self.facts.n_parallel.saturating_sub(book.n_active);
        if book.waiting.len() >= config.queue_max + free {
            book.totals.refused += 1;
            let answers = (book.waiting.len() + book.n_active) as f64 / self.facts.n_parallel.max(1) as f64;
            let wait_s = book.answer_s.unwrap_or(RETRY_S.0) * answers / 2.0;
            let retry_after_s = whole_seconds(wait_s.clamp(RETRY_S.0, RETRY_S.1));
            return Err(Refused::QueueFull { queue_max: config.queue_max, retry_after_s });
        }
        let number = book.next_number;
        book.next_number += 1;
        book.waiting.push_back(Waiting { number, job, line, since: Instant::now() });
        drop(book);
        self.wake.notify_one();
        Ok(number)
    }

    /// Takes a job out of the queue, if it still waits.
    pub(super) fn withdraw(&self, number: u64) {
        let mut book = self.book();
        if let Some(at) = book.waiting.iter().position(|ticket| ticket.number == number) {
            book.waiting.remove(at);
            book.totals.given_up += 1;
            drop(book);
            self.ended.notify_waiters();
        }
    }

    /// The next job, for which it waits; `None` when the thread is to end. The caller says when it [ended](Self::end).
    pub(super) fn take(&self) -> Option<Waiting> {
        let mut book = self.book();
        loop {
            if book.state >= State::Stopped {
                return None;
            }
            if let Some(ticket) = book.waiting.pop_front() {
                book.n_active += 1;
                return Some(ticket);
            }
            book = self.wake.wait(book).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next job, if one waits; as [`Self::take`].
    pub(super) fn try_take(&self) -> Option<Waiting> {
        let mut book = self.book();
        let waiting = book.waiting.pop_front()?;
        book.n_active += 1;
        Some(waiting)
    }

    /// A job ended, after so many seconds, and left these figures if it began.
    pub(super) fn end(&self, outcome: Outcome, seconds: f64, telemetry: Option<&Telemetry>) {
        let mut book = self.book();
        book.n_active = book.n_active.saturating_sub(1);
        // How soon others leave says nothing of how long an answer takes.
        if matches!(outcome, Outcome::Done) {
            book.answer_s = Some(mean(book.answer_s, seconds));
        }
        match outcome {
            Outcome::Done => book.totals.done += 1,
            Outcome::GivenUp => book.totals.given_up += 1,
            Outcome::Failed => book.totals.failed += 1,
        }
        if let Some(telemetry) = telemetry {
            book.totals.add(telemetry);
        }
        drop(book);
        self.ended.notify_waiters();
    }

    /// Whether jobs that are being done are to end now.
    pub(super) fn gives_up(&self) -> bool {
        self.book().state >= State::GivingUp
    }

    pub(super) fn status(&self) -> Status {
        let config = &self.facts.config;
        let book = self.book();
        Status {
            queued: book.waiting.len(),
            active: book.n_active,
            slots: self.facts.n_parallel,
            queue_max: config.queue_max,
            is_open: book.state == State::Open,
            is_alive: book.state != State::Gone,
            totals: book.totals,
            kept: book.kept,
        }
    }

    pub(super) fn close(&self) {
        self.advance(State::Closing);
    }

    pub(super) fn give_up_all(&self) {
        self.advance(State::GivingUp);
        self.fail_waiting(|| Failure::ShuttingDown);
    }

    pub(super) fn stop(&self) {
        self.advance(State::Stopped);
        self.wake.notify_all();
    }

    /// The engine's thread ends; if nobody asked it to, those who wait learn of it.
    pub(super) fn thread_ends(&self) {
        let mut book = self.book();
        if book.state < State::Stopped {
            book.state = State::Gone;
        }
        book.n_active = 0;
        book.has_ended = true;
        drop(book);
        self.fail_waiting(|| Failure::EngineGone);
    }

    /// Waits until nothing waits and nothing is done.
    pub(super) async fn until_idle(&self) {
        loop {
            let ended = self.ended.notified();
            let is_idle = {
                let book = self.book();
                book.waiting.is_empty() && book.n_active == 0
            };
            if is_idle {
                return;
            }
            ended.await;
        }
    }

    /// Waits until the engine's thread is gone.
    pub(super) async fn until_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.book().has_ended {
                return;
            }
            ended.await;
        }
    }

    /// What is kept of conversations now.
    pub(super) fn keep(&self, kept: PrefixStats) {
        self.book().kept = kept;
    }

    fn advance(&self, state: State) {
        let mut book = self.book();
        book.state = book.state.max(state);
    }

    fn fail_waiting(&self, failure: impl Fn() -> Failure) {
        let mut book = self.book();
        let waiting = std::mem::take(&mut book.waiting);
        book.totals.failed += waiting.len() as u64;
        drop(book);
        for ticket in waiting {
            ticket.line.send(Piece::Failed(failure()));
        }
        self.ended.notify_waiters();
    }
}

/// A mean in which newer values count more.
pub(super) fn mean(old: Option<f64>, value: f64) -> f64 {
    old.map_or(value, |old| old + NEWEST_SHARE * (value - old))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the caller bounds it")]
fn whole_seconds(seconds: f64) -> u64 {
    seconds.ceil() as u64
}
