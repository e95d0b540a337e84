//! The engine's thread: a batch of jobs, one layer of work at a time.
//!
//! Between two layers it looks whether somebody gave a job up, and whether a free seat can be given to one that waits. So
//! a job that is alone in its step ends within a layer's time; one that shares its step with others is told so, and its
//! rows ride along to the step's end.

use std::collections::BTreeMap;
use std::time::Instant;

use forerun_decode::sampler::SamplerError;
use forerun_decode::{
    Admitted, Batch, BatchEvent, DecodeError, Event, FinishReason, GenerationConfig, Report, Ticket, UseMap,
};

use super::live::Watch;
use super::queue::{Outcome, Shared, Waiting};
use super::{Bound, Failure, Job, Piece};

/// Works until the desk is shut down.
pub(super) fn run(mut batch: Batch, shared: &Shared) {
    let _end = End(shared);
    let uses = UseMap::of(batch.engine());
    batch.engine_mut().watch(Some(Box::new(uses.clone())));
    let watch = Watch::new(uses);
    let mut worker = Worker { batch, active: BTreeMap::new(), shared, watch, totals: (0, 0) };
    while worker.fill_seats() {
        worker.leave();
        worker.batch.advance();
        worker.hand_out();
        if shared.board.is_watched() && worker.watch.is_due() {
            worker.show();
        }
    }
    worker.batch.close();
    worker.keep();
}

/// Tells the desk that the thread ends, even by a panic.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.thread_ends();
    }
}

/// A job that has a seat.
struct Active {
    waiting: Waiting,
    began: Instant,
    progress: Progress,
    /// Whether it was given up, and has the seat only to the end of a step.
    is_left: bool,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Tokens of the prompt that are held.
    pub(super) read: usize,
    /// Tokens of the prompt.
    pub(super) of: usize,
    /// Tokens made.
    pub(super) made: usize,
}

struct Worker<'a> {
    batch: Batch,
    active: BTreeMap<Ticket, Active>,
    shared: &'a Shared,
    watch: Watch,
    /// Tokens of prompts read and tokens made so far.
    totals: (u64, u64),
}

impl Worker<'_> {
    /// Gives free seats to jobs that wait; with nothing else to do, waits for one. `false` when the thread is to end.
    fn fill_seats(&mut self) -> bool {
        while self.batch.n_free() > 0 {
            let waiting = if self.active.is_empty() {
                self.show();
                match self.shared.take() {
                    Some(waiting) => waiting,
                    None => return false,
                }
            } else {
                match self.shared.try_take() {
                    Some(waiting) => waiting,
                    None => break,
                }
            };
            self.seat(waiting);
        }
        true
    }

    fn seat(&mut self, waiting: Waiting) {
        let began = Instant::now();
        if waiting.line.is_given_up() {
            return self.shared.end(Outcome::GivenUp, 0.0, None);
        }
        let queued_ms = (began - waiting.since).as_secs_f64() * 1e3;
        let of = waiting.job.prompt.len();
        match self.admit(&waiting.job) {
            Ok(Some(admitted)) => {
                self.keep();
                let reused_tokens = admitted.n_reused;
                let estimate = self.batch.reading_time(of - reused_tokens);
                let estimate_ms = estimate.map(|time| time.as_millis_f64());
                waiting.line.send(Piece::Started { queued_ms, reused_tokens, estimate_ms });
                let progress = Progress { read: reused_tokens, of, made: 0 };
                self.active.insert(admitted.ticket, Active { waiting, began, progress, is_left: false });
            }
            // The caller saw a free seat.
            Ok(None) => self.refuse(&waiting, Failure::EngineGone),
            Err(error) => self.refuse(&waiting, error.into()),
        }
    }

    /// Gives a job a free seat, with the grammar that it keeps to; that takes what compiling takes, if another was compiled
    /// since.
    fn admit(&mut self, job: &Job) -> Result<Option<Admitted>, DecodeError> {
        let Some(Bound { spec, begin }) = &job.bound else {
            return self.batch.admit(job.prompt.clone(), &job.how);
        };
        let batch = &mut self.batch;
        let admitted = self.shared.facts.with_grammar(spec, |grammar| {
            let grammar = Some(grammar.clone().beginning(*begin));
            batch.admit(job.prompt.clone(), &GenerationConfig { grammar, ..job.how.clone() })
        });
        admitted.map_err(SamplerError::Grammar)?
    }

    fn refuse(&self, waiting: &Waiting, failure: Failure) {
        waiting.line.send(Piece::Failed(failure));
        self.shared.end(Outcome::Failed, 0.0, None);
    }

    /// Ends jobs that nobody waits for, or all when the server can't wait any longer.
    fn leave(&mut self) {
        let gives_up = self.shared.gives_up();
        let leaves = |job: &Active| !job.is_left && (gives_up || job.waiting.line.is_given_up());
        let leaving: Vec<Ticket> =
            self.active.iter().filter(|(_, job)| leaves(job)).map(|(ticket, _)| *ticket).collect();
        for ticket in leaving {
            if let Some(job) = self.active.get_mut(&ticket) {
                job.is_left = true;
            }
            self.batch.cancel(ticket);
        }
    }

    /// Passes on what came of the last layer.
    fn hand_out(&mut self) {
        while let Some((ticket, event)) = self.batch.next_event() {
            match event {
                BatchEvent::Event(event) => self.pass_on(ticket, event),
                BatchEvent::Over(report) => self.over(ticket, report),
                BatchEvent::Failed(error) => self.failed(ticket, error),
            }
        }
    }

    fn pass_on(&mut self, ticket: Ticket, event: Event) {
        let Some(job) = self.active.get_mut(&ticket) else { return };
        match event {
            Event::Prompt { n_read, n_tokens } => {
                self.totals.0 += n_read.saturating_sub(job.progress.read) as u64;
                job.progress.read = n_read;
                job.waiting.line.send(Piece::Prompt { n_read, n_tokens });
            }
            Event::Text(piece) => {
                job.progress.made += usize::from(piece.token.is_some());
                self.totals.1 += u64::from(piece.token.is_some());
                job.waiting.line.send(Piece::Token(piece));
            }
        }
    }

    /// Says what is kept of conversations, and what went wrong with it.
    fn keep(&mut self) {
        self.shared.keep(self.batch.prefix_stats());
        for warning in self.batch.take_prefix_warnings() {
            tracing::warn!("{warning}");
        }
    }

    fn over(&mut self, ticket: Ticket, report: Box<Report>) {
        let Some(job) = self.active.remove(&ticket) else { return };
        let telemetry = report.telemetry.clone();
        let outcome = if report.finish_reason != FinishReason::Interrupted {
            job.waiting.line.send(Piece::Done(report));
            Outcome::Done
        } else if job.waiting.line.is_given_up() {
            Outcome::GivenUp
        } else {
            job.waiting.line.send(Piece::Failed(Failure::ShuttingDown));
            Outcome::Failed
        };
        self.shared.end(outcome, job.began.elapsed().as_secs_f64(), Some(&telemetry));
    }

    fn failed(&mut self, ticket: Ticket, error: DecodeError) {
        let Some(job) = self.active.remove(&ticket) else { return };
        job.waiting.line.send(Piece::Failed(error.into()));
        self.shared.end(Outcome::Failed, job.began.elapsed().as_secs_f64(), None);
    }

    /// Tells those who watch what the machine does.
    fn show(&mut self) {
        let jobs = self.active.values().map(|job| (job.waiting.number, job.progress));
        let tick = self.watch.tick(self.batch.engine(), jobs, self.totals);
        self.shared.board.show(tick);
    }
}
