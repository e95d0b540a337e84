//! Reads that come back: waited for, timed, counted, and put where their experts belong.

use forerun_arena::SlotIdx;
use forerun_model::{ExpertKey, Nanos};
use forerun_storage::{Fetched, Filled, StoreError};

use super::Scheduler;
use crate::SchedulerError;
use crate::slots::Origin;

impl Scheduler {
    /// Takes in what the store has finished, without sleeping.
    pub(super) fn poll(&mut self) {
        if self.slots.n_loading() > 0 {
            self.wait(Nanos(0));
            self.land_all();
        }
    }

    /// Sleeps until the store has finished something, and takes it in.
    pub(super) fn sleep(&mut self) -> Result<(), SchedulerError> {
        let n_loading = self.slots.n_loading();
        if let (0, false, Some(&key)) = (n_loading, self.store_full, self.queue.front()) {
            return Err(SchedulerError::AllSlotsLeased { key, n_slots: self.slots.len() });
        }
        self.wait(Nanos::MAX);
        if self.done.is_empty() {
            self.store_full = false;
            return Err(SchedulerError::StoreStuck { n_loading });
        }
        self.land_all();
        Ok(())
    }

    /// Waits for the store, which is a stall if it brings something; a store that does its reading here, without
    /// readers of its own, takes its time even for a look.
    fn wait(&mut self, until: Nanos) {
        let before = self.clock.now();
        self.store.wait(until, &mut self.done);
        if self.done.is_empty() {
            return;
        }
        let now = self.clock.now();
        self.stats.stall = self.stats.stall + (now - before);
        self.time_reads(until, before, now);
    }

    /// Learns how long a read takes from waits that really waited: only then is it known when a read was over.
    fn time_reads(&mut self, until: Nanos, before: Nanos, now: Nanos) {
        const SLEPT: Nanos = Nanos::from_micros(5);
        let Some((since, n_reads)) = &mut self.disk_busy_since else { return };
        *n_reads += self.done.iter().filter(|fetched| fetched.result.is_ok()).count() as u64;
        if until == Nanos::MAX && now - before > SLEPT && *n_reads > 0 {
            self.lookahead.pace.read_took(Nanos((now - *since).0 / *n_reads));
            (*since, *n_reads) = (now, 0);
        }
    }

    fn land_all(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        for Fetched { key, result } in done.drain(..) {
            self.store_full = false;
            let slot = self.slots.find(key).filter(|&slot| self.slots.get(slot).is_loading());
            let slot = slot.expect("a store gives back what was begun, once");
            match result {
                Ok(filled) => self.land(slot, filled),
                Err(source) => self.crash(slot, source),
            }
        }
        self.done = done;
        if self.slots.n_loading() == 0 {
            self.disk_busy_since = None;
        }
    }

    /// A read has filled its slot.
    fn land(&mut self, slot: SlotIdx, filled: Filled) {
        assert_eq!(filled.lease.slot(), Some(slot), "a store fills the slot that it was given");
        let row = self.slots.get(slot);
        match row.origin {
            Origin::Demand => {
                self.stats.bytes_demand += filled.read_bytes;
                self.lookahead.demand_landed(filled.read_bytes);
            }
            Origin::Guess | Origin::Sweep => self.stats.bytes_guess += filled.read_bytes,
        }
        self.lookahead.record(row.key.layer, filled.read_bytes);
        self.stats.guesses_used += u64::from(row.origin.is_ahead() && row.used);
        self.stats.again += u64::from(!self.seen.insert(row.key));
        if row.promised {
            self.n_awaited -= 1;
            self.ready.push_back(slot);
        }
        self.slots.fill(slot, filled);
    }

    /// A read has failed, or was a guess that was given up. Who asked for it in this turn hears of it; who joined an older
    /// read gets one of their own.
    fn crash(&mut self, slot: SlotIdx, source: StoreError) {
        match source {
            StoreError::GivenUp { key, read_bytes } => {
                self.gave_up(key, read_bytes);
            }
            _ => {
                self.stats.failures += 1;
                self.lookahead.withdrawn(self.slots.get(slot).key);
            }
        }
        let row = self.slots.get(slot);
        let (key, promised) = (row.key, row.promised);
        let asked_now = row.origin == Origin::Demand && row.turn == self.slots.turn();
        self.slots.vacate(slot);
        if !promised {
            return;
        }
        self.n_awaited -= 1;
        let at = self.queue.partition_point(|&queued| queued < key);
        self.queue.insert(at, key);
        if asked_now {
            self.failure.get_or_insert(SchedulerError::Fetch { key, source });
        }
    }

    /// A guess was given up after `read_bytes`, all for nothing.
    pub(super) fn gave_up(&mut self, key: ExpertKey, read_bytes: u64) {
        self.lookahead.given_up(key, read_bytes);
        // The disk spent time on what is no whole read.
        if let Some(since) = &mut self.disk_busy_since {
            *since = (self.clock.now(), 0);
        }
        self.stats.guesses_given_up += 1;
        self.stats.bytes_guess += read_bytes;
        self.stats.bytes_wasted += read_bytes;
    }
}
