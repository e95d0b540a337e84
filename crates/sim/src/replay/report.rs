//! What a replay has measured.

use forerun_model::Nanos;
use forerun_scheduler::SchedulerStats;

/// Where the time and the bytes of a [`Replay`](crate::Replay) went. `time` is the sum of `compute`, `asked` and the
/// stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayReport {
    /// Tokens that were counted.
    pub n_tokens: usize,
    /// Time that they took.
    pub time: Nanos,
    /// Time that they would take if nothing were waited for or asked ahead.
    pub compute: Nanos,
    /// Time spent on asking routers ahead of their turn.
    pub asked: Nanos,
    /// What the scheduler counted.
    pub stats: SchedulerStats,
    /// What the disk can give.
    pub disk_bytes_per_second: u64,
}

impl ReplayReport {
    /// Time that the loop waited for experts.
    pub fn stall(&self) -> Nanos {
        self.stats.stall
    }

    /// Tokens a second.
    pub fn tokens_per_second(&self) -> f64 {
        1e3 * ratio(self.n_tokens as u64, 1) / self.time.as_millis_f64()
    }

    /// Mean time of a token, in milliseconds.
    pub fn ms_per_token(&self) -> f64 {
        self.time.as_millis_f64() / ratio(self.n_tokens as u64, 1)
    }

    /// Mean bytes that were read for a token, useful or not.
    pub fn bytes_per_token(&self) -> f64 {
        ratio(self.stats.bytes_demand + self.stats.bytes_guess, self.n_tokens as u64)
    }

    /// Bytes that were demanded, or guessed and then used.
    pub fn useful_bytes(&self) -> u64 {
        self.stats.useful_bytes()
    }

    /// Bytes that were read in vain, as a share of the useful ones.
    pub fn extra_bytes(&self) -> f64 {
        ratio(self.stats.bytes_wasted, self.useful_bytes())
    }

    /// Share of the reads that routers needed which a guess had begun before.
    pub fn recall(&self) -> f64 {
        self.stats.guess_recall()
    }

    /// Share of the guesses that were read which a router wanted.
    pub fn precision(&self) -> f64 {
        self.stats.guess_precision()
    }

    /// The larger of compute time and transfer time of the useful bytes, as a share of the real time: 1 is what no
    /// schedule of these bytes can beat.
    pub fn overlap_efficiency(&self) -> f64 {
        let transfer_ms = 1e3 * ratio(self.useful_bytes(), self.disk_bytes_per_second);
        self.compute.as_millis_f64().max(transfer_ms) / self.time.as_millis_f64()
    }
}

/// Zero when there is nothing to be a part of.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
