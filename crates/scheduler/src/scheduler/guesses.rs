//! Guesses: begun when nothing better is to be done, taken back or made demands when the router has spoken.

use forerun_model::{LayerId, Nanos};
use forerun_storage::{Priority, Withdrawn};

use super::{ROWS_GUESSED_MAX, Scheduler};
use crate::lookahead::Change;
use crate::plan::{Move, plan_guesses};
use crate::slots::{Origin, Slots};
use crate::{GUESSES_MAX, GuessInput, Listener, View};

/// Share of the slots, one in so many, that guesses may fill at once.
pub(super) const SLOTS_SHARE: usize = 4;

impl Scheduler {
    /// Whether an offer about `layer` at `view` is welcome now. Where it isn't, no router need be asked.
    pub fn listens(&mut self, view: View, layer: LayerId) -> bool {
        let hears = self.n_rows <= ROWS_GUESSED_MAX && self.predictor.listens(view);
        hears && self.lookahead.listens(layer, self.clock.now())
    }

    /// Whether offers must bring router scores.
    pub fn wants_scores(&self) -> bool {
        self.predictor.wants_scores()
    }

    /// Whom to offer router scores.
    pub fn listener(&mut self) -> Listener<'_> {
        Listener(self)
    }

    /// What the scheduler has decided otherwise since it was made: how many guesses a layer gets.
    pub fn changes(&self) -> &[Change] {
        self.lookahead.changes()
    }

    /// Lets the predictor guess between two turns, as [`Turn::offer`](crate::Turn::offer) does within one.
    pub fn offer(&mut self, input: GuessInput<'_>) {
        self.guesses.clear();
        self.predictor.guess(&input, &mut self.guesses);
        self.guesses.truncate(GUESSES_MAX);
        let now = self.clock.now();
        let Self { guesses, lookahead, slots, store, stats, .. } = self;
        let asked = lookahead.replace(input.view, input.layer, now, now - stats.stall);
        stats.asking = stats.asking + asked;
        for (rank, guess) in guesses.iter().enumerate() {
            let slot = slots.find(guess.key).map(|slot| slots.get(slot));
            let is_here = slot.is_some_and(|slot| !(slot.is_loading() && slot.origin.is_ahead()));
            // What the store lends needs no reading ahead.
            if !is_here && !store.can_lend(guess.key) {
                lookahead.add(input.view, rank, *guess);
            }
        }
        self.begin_guesses();
    }

    /// Time without stalls: what computing took.
    pub(super) fn busy_time(&self) -> Nanos {
        self.clock.now() - self.stats.stall
    }

    /// The guesses of `layer` are over: those that were right become demands, and those that were wrong are taken back
    /// or given up.
    pub(super) fn settle_guesses(&mut self, layer: LayerId) {
        let Self { wanted, slots, store, .. } = self;
        for &key in &*wanted {
            let slot = slots.find(key).map(|slot| slots.get(slot));
            if slot.is_some_and(|slot| slot.is_loading() && slot.origin == Origin::Guess) {
                store.promote(key);
            }
        }
        self.withdraw_guesses(Some(layer));
        let busy = self.busy_time();
        self.lookahead.opened(layer, &self.wanted, busy);
    }

    /// Takes back guesses as far as the store still can; says whether any came back at once.
    pub(super) fn withdraw_guesses(&mut self, layer: Option<LayerId>) -> bool {
        let mut withdrawn = std::mem::take(&mut self.withdrawn);
        self.store.withdraw_guesses(layer, &mut withdrawn);
        let any = !withdrawn.is_empty();
        self.store_full &= !any;
        for Withdrawn { key, lease, read_bytes } in withdrawn.drain(..) {
            let slot = lease.slot();
            debug_assert_eq!(self.slots.get(slot).key, key, "a store gives back what was begun");
            drop(lease);
            self.slots.vacate(slot);
            match read_bytes {
                0 => {
                    self.lookahead.withdrawn(key);
                    self.stats.guesses_withdrawn += 1;
                }
                _ => self.gave_up(key, read_bytes),
            }
        }
        self.withdrawn = withdrawn;
        any
    }

    /// Begins to read those guesses that pay, when nothing that was asked for is left to begin. A guess that the store
    /// knows nothing of is dropped.
    pub(super) fn begin_guesses(&mut self) {
        let room =
            |slots: &Slots, depth: usize| slots.n_loading() < depth.min(slots.len().div_ceil(SLOTS_SHARE));
        if !self.lookahead.has_waiting() || !self.queue.is_empty() || !room(&self.slots, self.depth_seen) {
            return;
        }
        let busy = self.busy_time();
        self.lookahead.admit(self.slots.n_loading(), busy, &mut self.guesses);
        if self.guesses.is_empty() {
            return;
        }
        plan_guesses(&self.slots, &mut self.ranking, &self.guesses, &mut self.moves);
        for i in 0..self.moves.len() {
            let Move::Guess { key, slot } = self.moves[i] else { continue };
            match self.begin(key, slot, (Origin::Guess, Priority::Guess)) {
                Ok(true) => self.lookahead.begun(key),
                Ok(false) => break,
                Err(_) => self.lookahead.drop_guess(key),
            }
            if !room(&self.slots, self.depth_seen) {
                break;
            }
        }
        self.store.start();
    }
}
