//! The desk: where jobs wait for the one thread that owns the engine.
//!
//! A [`Desk`] is a cheap handle. [`Desk::submit`] never waits: a job is taken into a bounded queue or refused. What becomes
//! of it comes through its [`Answering`]; dropping that gives the job up, whether it still waits, its prompt is being read, or
//! it answers. The engine's side is in `worker`.

mod facts;
mod grammars;
mod live;
mod queue;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forerun_decode::{Batch, DecodeError, Engine, GenerationConfig, Report};
use forerun_model::TokenId;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::error::ServerError;
pub use facts::{Defaults, DeskConfig, Facts};
pub use grammars::Bound;
pub(crate) use live::Watching;
use queue::{Line, Shared};
pub use queue::{Status, Totals};

/// One answer to be made.
#[derive(Clone, Debug)]
pub struct Job {
    /// The tokens to go on from; not empty, and fewer than the context.
    pub prompt: Vec<TokenId>,
    /// How to go on; its grammar comes from [`Self::bound`].
    pub how: GenerationConfig,
    /// What the answer keeps to; `None`: nothing.
    pub bound: Option<Bound>,
}

/// What comes of a job, in this order: `Started`, `Prompt` as parts of it are read, `Token` for each token, and `Done` or
/// `Failed`, which is the last. A job may fail at any time.
#[derive(Debug)]
pub enum Piece {
    /// The engine turned to the job.
    Started {
        /// Milliseconds that it waited.
        queued_ms: f64,
        /// Tokens of the prompt that needn't be read again.
        reused_tokens: usize,
        /// Milliseconds that reading the others will take, from what the last prompts took; `None` before the first.
        estimate_ms: Option<f64>,
    },
    /// A part of the prompt was read.
    Prompt {
        /// Tokens of it that are held now.
        n_read: usize,
        /// Tokens of it.
        n_tokens: usize,
    },
    /// The answer goes on.
    Token(forerun_decode::Piece),
    /// The answer is over.
    Done(Box<Report>),
    /// There will be no more.
    Failed(Failure),
}

/// Why a job ended without its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The engine says why.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The server stops, and the time for answers to end is over.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine's thread ended by a fault of ours.
    #[error("the engine is gone; the server must be started again")]
    EngineGone,
}

/// Why a job isn't taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many wait as may.
    #[error("{queue_max} requests wait already, and no more may; try again in {retry_after_s} s")]
    QueueFull {
        /// Most jobs that may wait.
        queue_max: usize,
        /// When to come again, by what answers took of late.
        retry_after_s: u64,
    },
    /// The server stops.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine's thread ended by a fault of ours.
    #[error("the engine is gone; the server must be started again")]
    EngineGone,
}

/// A handle to the engine's thread; clones are the same desk.
#[derive(Clone)]
pub struct Desk {
    shared: Arc<Shared>,
}

impl Desk {
    /// Gives `engine` a thread of its own, which ends with [`Self::shut_down`].
    ///
    /// # Errors
    /// [`ServerError::Thread`], or [`ServerError::Prefixes`] when conversations can't be kept where they should be.
    pub fn start(engine: Engine, config: DeskConfig) -> Result<Self, ServerError> {
        let prefixes = config.prefixes.clone();
        let shared = Arc::new(Shared::new(Facts::of(&engine, config)));
        let batch = Batch::with_prefixes(engine, prefixes);
        let batch = batch.map_err(|source| ServerError::Prefixes { source: Box::new(source) })?;
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("engine".into());
        let spawned = thread.spawn(move || worker::run(batch, &theirs));
        spawned.map_err(|source| ServerError::Thread { source })?;
        Ok(Self { shared })
    }

    /// What is known of the model.
    pub fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    /// Takes a job, or says why not; never waits.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn submit(&self, job: Job) -> Result<Answering, Refused> {
        let (sender, pieces) = mpsc::unbounded_channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let line = Line::new(sender, Arc::clone(&given_up));
        let ticket = self.shared.enqueue(job, line)?;
        Ok(Answering { pieces, given_up, ticket, shared: Arc::clone(&self.shared) })
    }

    /// Begins to watch the machine at work.
    pub(crate) fn watch(&self) -> Watching {
        Watching::new(Arc::clone(&self.shared))
    }

    /// How much is going on.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Takes no more jobs, lets those that are there end within `grace`, gives up the rest, has conversations written to disk
    /// if that is wished, and ends the thread.
    pub async fn shut_down(&self, grace: Duration) {
        self.shared.close();
        if timeout(grace, self.shared.until_idle()).await.is_err() {
            self.shared.give_up_all();
            self.shared.until_idle().await;
        }
        self.shared.stop();
        self.shared.until_ended().await;
    }
}

/// The answer to a job, as it is made. Dropping it gives the job up.
///
/// Never more than a job's tokens and steps wait in it, so a slow reader costs a bounded amount of memory and holds nobody up.
#[derive(Debug)]
pub struct Answering {
    pieces: mpsc::UnboundedReceiver<Piece>,
    given_up: Arc<AtomicBool>,
    ticket: u64,
    shared: Arc<Shared>,
}

impl Answering {
    /// The next piece; `None` behind the last.
    pub async fn next(&mut self) -> Option<Piece> {
        self.pieces.recv().await
    }

    /// The same for callers that wait for several.
    pub fn poll_next(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Option<Piece>> {
        self.pieces.poll_recv(context)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        self.shared.withdraw(self.ticket);
    }
}
