//! Guesses: begun when nothing better is to be done, taken back or made demands when the router has spoken.

use forerun_model::LayerId;
use forerun_storage::Withdrawn;

use super::Scheduler;
use crate::plan::{Move, plan_guesses};
use crate::slots::{Origin, Slots};

impl Scheduler {
    /// The guesses of `layer` are over: those that were right become demands, and those that were wrong are taken back
    /// unless their reading has begun.
    pub(super) fn settle_guesses(&mut self, layer: LayerId) {
        let Self { wanted, slots, store, .. } = self;
        for &key in &*wanted {
            let slot = slots.find(key).map(|slot| slots.get(slot));
            if slot.is_some_and(|slot| slot.is_loading() && slot.origin == Origin::Guess) {
                store.promote(key);
            }
        }
        self.withdraw_guesses(Some(layer));
    }

    /// Takes back guesses whose reading hasn't begun; says whether there were any.
    pub(super) fn withdraw_guesses(&mut self, layer: Option<LayerId>) -> bool {
        let mut withdrawn = std::mem::take(&mut self.withdrawn);
        self.store.withdraw_guesses(layer, &mut withdrawn);
        let any = !withdrawn.is_empty();
        self.store_full &= !any;
        for Withdrawn { key, lease } in withdrawn.drain(..) {
            let slot = lease.slot();
            debug_assert_eq!(self.slots.get(slot).key, key, "a store gives back what was begun");
            drop(lease);
            self.slots.vacate(slot);
            self.stats.guesses_withdrawn += 1;
        }
        self.withdrawn = withdrawn;
        any
    }

    /// Begins to read guesses when nothing that was asked for is left to begin. A guess that the store knows
    /// nothing of is dropped.
    pub(super) fn begin_guesses(&mut self) {
        let room = |slots: &Slots, depth: usize| slots.n_loading() < depth;
        if self.guesses.is_empty() || !self.queue.is_empty() || !room(&self.slots, self.depth_seen) {
            return;
        }
        plan_guesses(&self.slots, &mut self.ranking, &self.guesses, &mut self.moves);
        for i in 0..self.moves.len() {
            let Move::Guess { key, slot } = self.moves[i] else { continue };
            let refused = matches!(self.begin(key, slot, Origin::Guess), Ok(false));
            if refused || !room(&self.slots, self.depth_seen) {
                break;
            }
            self.guesses.retain(|guess| guess.key != key);
        }
        self.store.start();
    }
}
