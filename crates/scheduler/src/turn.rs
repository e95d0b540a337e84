//! One layer's turn: every expert that the routing names is handed out once, whichever is ready first.

use forerun_arena::ReadLease;
use forerun_model::{ExpertKey, LayerId, PartOffsets};

use crate::{GuessInput, Scheduler, SchedulerError, View};

/// An expert that can be computed with.
#[derive(Debug)]
pub struct Ready {
    /// The expert.
    pub key: ExpertKey,
    /// Its bytes, perhaps among others. Its slot, if it has one, isn't overwritten before this lease and its clones are
    /// dropped.
    pub lease: ReadLease,
    /// Where gate, up and down begin in them.
    pub parts: PartOffsets,
}

/// The ear of a scheduler, within a turn or between two.
#[derive(Debug)]
pub struct Listener<'a>(pub(crate) &'a mut Scheduler);

impl Listener<'_> {
    /// Whether an offer about `layer` at `view` is welcome now. Where it isn't, no router need be asked.
    pub fn listens(&mut self, view: View, layer: LayerId) -> bool {
        self.0.listens(view, layer)
    }

    /// Whether offers must bring router scores.
    pub fn wants_scores(&self) -> bool {
        self.0.wants_scores()
    }

    /// As [`Scheduler::announce`].
    pub fn announce(&mut self, layer: LayerId, n_experts: usize) {
        self.0.announce(layer, n_experts);
    }

    /// As [`Scheduler::offer`].
    pub fn offer(&mut self, input: GuessInput<'_>) {
        self.0.offer(input);
    }
}

/// The experts of one layer, from [`Scheduler::open_layer`].
///
/// Dropping it early abandons the rest: reads in flight go on and their experts stay for later turns.
#[derive(Debug)]
pub struct Turn<'a> {
    scheduler: &'a mut Scheduler,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(scheduler: &'a mut Scheduler) -> Self {
        Self { scheduler }
    }

    /// Lets the predictor guess from `input`; its guesses are read after everything that this turn wants.
    pub fn offer(&mut self, input: GuessInput<'_>) {
        self.scheduler.offer(input);
    }

    /// As [`Scheduler::listener`].
    pub fn listener(&mut self) -> Listener<'_> {
        self.scheduler.listener()
    }

    /// The next expert that is ready, sleeping until there is one; `None` when all were handed out.
    ///
    /// Hits come first, lent ones before those in slots, then reads as they finish. A turn may want more experts than
    /// there are slots: then a lease that the caller drops is what makes room for the next read.
    ///
    /// # Errors
    /// [`SchedulerError::Fetch`] when an expert can't be read, [`SchedulerError::AllSlotsLeased`] when the caller
    /// keeps every slot, [`SchedulerError::StoreStuck`] when the store breaks its contract. No expert is lost by an
    /// error: the turn may be asked again, and the failed read is then tried again.
    pub fn next_ready(&mut self) -> Result<Option<Ready>, SchedulerError> {
        self.scheduler.next_ready()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.scheduler.close_turn();
    }
}
