//! Fewer slots while the model runs.

use super::{N_SLOTS_MIN, Scheduler};
use crate::SchedulerError;

impl Scheduler {
    /// From now on uses `n_slots` slots at most, and gives the memory of the others back to the system: the longest
    /// unused ones, as soon as nobody reads them. A scheduler never uses more slots again.
    ///
    /// # Errors
    /// [`SchedulerError::TooFewSlots`].
    pub fn shrink(&mut self, n_slots: usize) -> Result<(), SchedulerError> {
        if n_slots < N_SLOTS_MIN {
            return Err(SchedulerError::TooFewSlots { n_slots, n_slots_min: N_SLOTS_MIN });
        }
        self.n_slots_max = self.n_slots_max.min(n_slots);
        self.withdraw_guesses(None);
        self.lookahead.forget();
        self.retire_excess();
        Ok(())
    }

    /// Retires slots beyond the largest number that is allowed, as far as they are free.
    pub(super) fn retire_excess(&mut self) {
        while self.slots.len() > self.n_slots_max {
            let free = self.slots.oldest_first().find(|(_, slot)| slot.is_free());
            let Some((slot, row)) = free else { return };
            if row.resident().is_some() {
                self.stats.evictions += 1;
                self.stats.bytes_wasted += row.unused_bytes();
            }
            self.slots.retire(slot);
            let lease = self.arena.try_write(slot);
            let mut lease = lease.expect("a slot without readers is the scheduler's to write");
            // A system that keeps the pages has them swapped out in time.
            let _ = lease.release_pages();
            self.retired.push(lease);
        }
    }
}
