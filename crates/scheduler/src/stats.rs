//! Counts for telemetry: what was wanted, what was read for it, what was read in vain.

use forerun_model::Nanos;

/// Counts since the scheduler was made; they only grow, but for [`SchedulerStats::bytes_wasted`].
///
/// Each expert of each turn is counted once, when its layer is opened: as a hit, a join or a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Layers opened.
    pub turns: u64,
    /// Wanted experts that could be handed out at once: in a slot, or lent.
    pub hits: u64,
    /// Those of `hits` that the store lent.
    pub lent: u64,
    /// Wanted experts that were being read already.
    pub joins: u64,
    /// Wanted experts that were neither.
    pub misses: u64,
    /// Experts that lost their slot to another.
    pub evictions: u64,
    /// Reads begun because a router asked.
    pub fetches: u64,
    /// Reads, of either kind, that brought an expert that had been there before.
    pub again: u64,
    /// Reads that came back without bytes, but for guesses that were given up.
    pub failures: u64,
    /// Reads begun before a router asked: a predictor guessed, or a pass of many rows read its next layer.
    pub guesses: u64,
    /// Those of `guesses` that were taken back before anything was read for them.
    pub guesses_withdrawn: u64,
    /// Those of `guesses` that were taken back when they had been read in part, or were being read.
    pub guesses_given_up: u64,
    /// Guesses that were read, and that a router wanted before they lost their slot.
    pub guesses_used: u64,
    /// Comparisons of passes with guesses and passes without that were completed.
    pub trials: u64,
    /// Time spent on asking routers ahead of their turn.
    pub asking: Nanos,
    /// Bytes read because a router asked.
    pub bytes_demand: u64,
    /// Bytes of `guesses`.
    pub bytes_guess: u64,
    /// Those of `bytes_guess` that no router wanted, or not yet.
    pub bytes_wasted: u64,
    /// Time that callers waited for reads that then came back: asleep in
    /// [`Turn::next_ready`](crate::Turn::next_ready), or while a store without readers of its own did the reading.
    pub stall: Nanos,
}

impl SchedulerStats {
    /// Experts that routers wanted.
    pub fn wanted(&self) -> u64 {
        self.hits + self.joins + self.misses
    }

    /// The share of wanted experts that could be handed out at once; zero when none was wanted.
    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.wanted())
    }

    /// The share of the experts that had to be read whose reading a guess had begun before their layer was opened; zero
    /// when none had to.
    pub fn guess_recall(&self) -> f64 {
        share(self.guesses_used, self.guesses_used + self.fetches)
    }

    /// The share of the guesses that were read which a router wanted; zero when none was read. Of a part of the counts, those
    /// that were read before and wanted in it can make it too large: it is never more than 1.
    pub fn guess_precision(&self) -> f64 {
        share(self.guesses_used, self.guesses.saturating_sub(self.guesses_withdrawn)).min(1.0)
    }

    /// Bytes that were demanded, or guessed and then used.
    pub fn useful_bytes(&self) -> u64 {
        (self.bytes_demand + self.bytes_guess).saturating_sub(self.bytes_wasted)
    }

    /// What was counted since `earlier`, a value of the same scheduler.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            turns: self.turns - earlier.turns,
            hits: self.hits - earlier.hits,
            lent: self.lent - earlier.lent,
            joins: self.joins - earlier.joins,
            misses: self.misses - earlier.misses,
            evictions: self.evictions - earlier.evictions,
            fetches: self.fetches - earlier.fetches,
            again: self.again - earlier.again,
            failures: self.failures - earlier.failures,
            guesses: self.guesses - earlier.guesses,
            guesses_withdrawn: self.guesses_withdrawn - earlier.guesses_withdrawn,
            guesses_given_up: self.guesses_given_up - earlier.guesses_given_up,
            guesses_used: self.guesses_used - earlier.guesses_used,
            trials: self.trials - earlier.trials,
            asking: self.asking - earlier.asking,
            bytes_demand: self.bytes_demand - earlier.bytes_demand,
            bytes_guess: self.bytes_guess - earlier.bytes_guess,
            bytes_wasted: self.bytes_wasted.saturating_sub(earlier.bytes_wasted),
            stall: self.stall - earlier.stall,
        }
    }
}

/// Zero when there is nothing to be a part of.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
