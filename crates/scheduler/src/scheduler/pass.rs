//! Where a pass through the layers begins and ends.

use super::Scheduler;
use crate::SchedulerError;
use crate::lookahead::Lookahead;

impl Scheduler {
    /// Bytes that what is learnt for guesses takes, of a model with `n_layers` layers.
    pub fn lookahead_bytes(n_layers: usize) -> usize {
        Lookahead::bytes(n_layers)
    }

    /// Begins a pass of `n_rows` tokens through the layers.
    pub fn begin_pass(&mut self, n_rows: usize) {
        self.close_turn();
        self.withdraw_guesses(None);
        self.n_rows = n_rows;
        self.sweep = None;
        self.depth_seen = usize::MAX;
        self.lookahead.begin_pass(self.clock.now(), n_rows);
    }

    /// Ends a pass through the layers: says whether the experts that the store lent for it were all along what they
    /// were when the model was opened. Before that, nothing that was computed from them counts.
    ///
    /// # Errors
    /// [`SchedulerError::Lent`] when they weren't; the pass can be tried again, over slots.
    pub fn end_pass(&mut self) -> Result<(), SchedulerError> {
        self.store.check_lent().map_err(|source| SchedulerError::Lent { source })?;
        self.stats.trials += u64::from(self.lookahead.end_pass(self.clock.now()));
        Ok(())
    }

    /// From now on reads every expert into a slot; the memory that lending took is free when the caller's leases are
    /// dropped.
    pub fn stop_lending(&mut self) {
        self.store.stop_lending();
        self.lent.clear();
    }
}
