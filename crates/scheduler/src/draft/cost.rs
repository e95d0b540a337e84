//! What a step takes, by its rows: computing, waiting for the union of its rows' experts, drafting.
//!
//! Waiting is foreseen from bytes: `m` rows read `bytes(m)`, which takes `bytes(m) / rate`, and as much of that is hidden
//! behind computing as was in plain steps, in proportion to the computing. What wider steps really waited corrects that.

use super::curve::Curve;
use super::{DRAFTED_MAX, DraftConfig, DraftedStep, LENGTHS, seconds};

/// Growth of the bytes read for each further row before it is measured: routing is nearly independent from row to row
/// beyond what a cache has taken already.
const BYTES_GROWTH: f64 = 0.93;
/// Growth of a drafter's time for each further draft: most of it is one pass.
const DRAFT_GROWTH: f64 = 0.1;
/// A drafter's time before it is measured, as a share of a plain step's computing.
const DRAFT_SHARE: f64 = 0.05;
/// Steps that the model of waiting weighs as much as, beside what was waited at a width.
const MODEL_WEIGHT: f64 = 3.0;

/// Plain steps after a draft that don't count: experts of wrong drafts are still in the way.
const SETTLED: usize = 8;

/// Learns what steps take.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    work: Curve,
    bytes: Curve,
    /// Only its means are used.
    stall: Curve,
    drafting: Curve,
    disk_bytes_per_second: Option<f64>,
    n_max: usize,
    /// Plain steps since the last draft.
    settled: usize,
    /// Worked out after each step: a plain one, and one with so many drafts.
    plain_seconds: f64,
    seconds: [f64; LENGTHS],
}

impl Costs {
    pub(super) fn new(config: &DraftConfig) -> Self {
        let n_max = config.n_max.min(DRAFTED_MAX);
        let mut costs = Self {
            work: Curve::new(1, 0.0, config.row_growth.max(0.0)),
            bytes: Curve::new(1, 0.0, BYTES_GROWTH),
            stall: Curve::new(1, 0.0, 0.0),
            drafting: Curve::new(0, 0.0, DRAFT_GROWTH),
            disk_bytes_per_second: config.disk_bytes_per_second.filter(|rate| *rate > 0.0),
            n_max,
            settled: SETTLED,
            plain_seconds: 0.0,
            seconds: [0.0; LENGTHS],
        };
        costs.work_out();
        costs
    }

    /// Learns from a step; `asked`: the drafter was asked for drafts.
    pub(super) fn learn(&mut self, step: &DraftedStep, asked: bool) {
        let rows = step.rows.max(1);
        self.settled = if rows > 1 { 0 } else { self.settled + 1 };
        if asked {
            self.drafting.add(step.drafted, seconds(step.draft_time));
        }
        if rows > 1 || self.settled > SETTLED {
            self.learn_pass(rows, step);
        }
        self.work_out();
    }

    fn learn_pass(&mut self, rows: usize, step: &DraftedStep) {
        self.work.add(rows, seconds(step.step_time - step.stall_time));
        self.stall.add(rows, seconds(step.stall_time));
        self.bytes.add(rows, step.missed_bytes as f64);
    }

    /// Time of a plain step.
    pub(super) fn plain_seconds(&self) -> f64 {
        self.plain_seconds
    }

    /// Time of a step in which the drafter is asked and `drafted` tokens are verified, at most as many as are ever drafted.
    pub(super) fn seconds(&self, drafted: usize) -> f64 {
        self.seconds[drafted.min(self.n_max)]
    }

    fn work_out(&mut self) {
        let waits = self.waits();
        self.plain_seconds = (self.work.at(1) + waits[0]).max(f64::MIN_POSITIVE);
        for (drafted, wait) in waits.into_iter().enumerate().take(self.n_max + 1) {
            let step = self.work.at(drafted + 1) + wait + self.drafting(drafted);
            self.seconds[drafted] = step.max(f64::MIN_POSITIVE);
        }
    }

    fn drafting(&self, drafted: usize) -> f64 {
        let is_known = (0..LENGTHS).any(|n| self.drafting.n(n) > 0.0);
        if is_known { self.drafting.at(drafted) } else { DRAFT_SHARE * self.work.at(1) }
    }

    /// Time that passes wait, by their drafts: what bytes say, corrected by what was waited at the same width and at others.
    fn waits(&self) -> [f64; LENGTHS] {
        let foreseen = self.foreseen();
        let (mut seen, mut said) = (0.0, 0.0);
        for (drafted, foreseen) in foreseen.iter().enumerate().skip(1) {
            let n = self.stall.n(drafted + 1);
            seen += n * self.stall.mean(drafted + 1);
            said += n * foreseen;
        }
        std::array::from_fn(|drafted| {
            let (n, mean) = (self.stall.n(drafted + 1), self.stall.mean(drafted + 1));
            if drafted == 0 {
                return mean;
            }
            let usual = MODEL_WEIGHT * foreseen[drafted];
            let model = foreseen[drafted] * (seen + usual) / (said + usual).max(f64::MIN_POSITIVE);
            (MODEL_WEIGHT * model + n * mean) / (MODEL_WEIGHT + n)
        })
    }

    /// The same from bytes alone.
    fn foreseen(&self) -> [f64; LENGTHS] {
        let (plain_bytes, plain_stall, plain_work) = (self.bytes.at(1), self.stall.mean(1), self.work.at(1));
        // A rate at which a plain step's bytes would come sooner than it waited is none.
        let seen = plain_bytes / plain_stall.max(f64::MIN_POSITIVE);
        let rate = self.disk_bytes_per_second.map_or(seen, |rate| rate.min(seen)).max(f64::MIN_POSITIVE);
        let hidden = (plain_bytes / rate - plain_stall).max(0.0) / plain_work.max(f64::MIN_POSITIVE);
        std::array::from_fn(|drafted| match drafted {
            0 => plain_stall,
            _ if drafted > self.n_max && self.stall.n(drafted + 1) == 0.0 => 0.0,
            _ => (self.bytes.at(drafted + 1) / rate - hidden * self.work.at(drafted + 1)).max(0.0),
        })
    }

    /// What `drafted` tokens cost, beside a plain step, in words.
    pub(super) fn describe(&self, drafted: usize) -> String {
        let (rows, plain) = (drafted + 1, self.bytes.at(1));
        let time = self.seconds(drafted) / self.plain_seconds();
        if plain > 0.0 {
            format!("reads {:.1}x the bytes and takes {time:.1}x the time", self.bytes.at(rows) / plain)
        } else {
            format!("takes {time:.1}x the time")
        }
    }
}

#[cfg(test)]
impl Costs {
    /// Steps that take so long, by their drafts.
    pub(super) fn set_seconds(&mut self, seconds: [f64; LENGTHS]) {
        (self.plain_seconds, self.seconds) = (seconds[0], seconds);
    }
}
