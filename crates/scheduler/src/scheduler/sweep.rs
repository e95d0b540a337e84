//! Passes of many rows: most of a layer's experts are wanted, so the next layer's are read while this one is computed, its
//! mixer among it, when the disk would have nothing to do.
//!
//! Nobody is asked which: those that are missing are read in their order, as demands are, so that neighbours come in one
//! read. Those that the layer then doesn't want were read in vain, as few as the rest of the layer before that nobody wanted.

use forerun_model::{ExpertId, ExpertKey, LayerId};
use forerun_storage::Priority;

use super::guesses::SLOTS_SHARE;
use super::{ROWS_GUESSED_MAX, Scheduler, WINDOW};
use crate::Guess;
use crate::plan::{Move, plan_guesses};
use crate::slots::Origin;

/// A layer's experts are read before its turn when the layer before wanted at least this share of its own, in percent.
const SHARE_PERCENT: usize = 75;

/// How far a layer has been read before its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    layer: LayerId,
    next: u16,
    end: u16,
}

impl Scheduler {
    /// Says which layer is opened after the one whose turn is under way, and how many experts it has. In a pass of many rows
    /// its experts are then read as soon as all that this turn wants is on its way.
    pub fn announce(&mut self, layer: LayerId, n_experts: usize) {
        let wants_most = self.n_rows > ROWS_GUESSED_MAX && self.n_wanted * 100 >= n_experts * SHARE_PERCENT;
        let end = u16::try_from(n_experts).ok();
        let sweep = end.map(|end| Sweep { layer, next: 0, end });
        self.sweep = sweep.filter(|_| wants_most && self.keeps && self.lookahead.is_on());
    }

    /// Begins what is missing of the next layer, when nothing that was asked for is left to begin.
    pub(super) fn begin_sweep(&mut self) {
        while self.queue.is_empty()
            && let Some(sweep) = self.sweep
        {
            let n_free = self.slots.len().div_ceil(SLOTS_SHARE).min(self.depth_seen);
            let n_max = n_free.saturating_sub(self.slots.n_loading()).min(WINDOW);
            self.missing(sweep, n_max);
            if self.guesses.is_empty() {
                break;
            }
            plan_guesses(&self.slots, &mut self.ranking, &self.guesses, &mut self.moves);
            let n_planned = self.moves.len();
            let n_begun = self.begin_moves();
            if n_begun < n_planned || n_planned < self.guesses.len() {
                break;
            }
        }
        if self.sweep.is_some() {
            self.store.start();
        }
    }

    /// Replaces the guesses by the next of `sweep` that are neither in memory nor on their way.
    fn missing(&mut self, sweep: Sweep, n_max: usize) {
        self.guesses.clear();
        for expert in sweep.next..sweep.end {
            if self.guesses.len() == n_max {
                return;
            }
            let key = ExpertKey { layer: sweep.layer, expert: ExpertId(expert) };
            if self.slots.find(key).is_none() && !self.store.can_lend(key) {
                self.guesses.push(Guess { key, probability: 1.0 });
            } else if self.guesses.is_empty() {
                self.swept(expert);
            }
        }
    }

    /// Begins the planned reads in their order, until the store takes no more; says how many it took.
    fn begin_moves(&mut self) -> usize {
        for i in 0..self.moves.len() {
            let Move::Guess { key, slot } = self.moves[i] else { continue };
            // An expert that can't be read is an error once it is wanted.
            if let Ok(false) = self.begin(key, slot, (Origin::Sweep, Priority::Demand)) {
                return i;
            }
            self.swept(key.expert.0);
        }
        self.moves.len()
    }

    /// Everything up to `expert` is done with.
    fn swept(&mut self, expert: u16) {
        if let Some(sweep) = &mut self.sweep {
            sweep.next = expert + 1;
        }
    }
}
