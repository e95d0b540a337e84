//! Whether drafting pays at all: taken up when it might, given up when it has cost more than may be lost.
//!
//! The purse holds time that may be lost. It begins with that of a few plain steps, gains a small share of all time
//! that passes, and the time that drafted steps save; what they cost over plain steps is taken from it. So whatever the
//! model believes, drafting loses at most that share of a long run, and those few steps of a short one.

use super::{DraftedStep, Outlook, seconds};

/// Plain steps before the first drafts, to know what a plain step takes.
const PLAIN_FIRST: usize = 16;
/// The purse at the beginning and at most, in plain steps.
const PURSE_FIRST: f64 = 3.5;
const PURSE_MAX: f64 = 8.0;
/// What it must hold for a trial.
const PURSE_TRIAL: f64 = 2.0;
/// What must be left for another drafted step, which may take much.
const PURSE_MIN: f64 = 1.0;
/// Share of all time that may be lost.
const SHARE: f64 = 0.005;
/// Gain for which a trial begins, and below which drafting ends.
const HOPED_MIN: f64 = 1.03;
const GAIN_MIN: f64 = 1.02;
/// Drafted steps after which averages may end it, and about as many as an average is over.
const STEPS_MIN: usize = 24;
const SAMPLES: f64 = 48.0;
/// Drafts of the first step of a trial at most, and steps for each further one.
const LENGTH_FIRST: usize = 1;
const STEPS_EACH: usize = 2;
/// Gain from which one step in so many is a longer one.
const GAIN_EXPLORE: f64 = 1.08;
const EXPLORE_EVERY: usize = 8;
/// Steps for which a wrong draft is felt: its experts are in the way of others.
const FELT: usize = 24;
/// Steps in a row without a draft that was worth it, after which the drafter isn't asked for a while.
const IDLE_MAX: usize = 16;
/// Steps of a pause: the first, and the longest.
const PAUSE_FIRST: usize = 16;
const PAUSE_MAX: usize = 1024;
/// Drafted steps between two looks at what a plain step takes: the first, and the most; and the steps of a look.
const CHECK_FIRST: usize = 32;
const CHECK_MAX: usize = 256;
const CHECK: usize = 12;
/// Below this gain a look must be a good one: it lasts so many steps, and is soon repeated.
const GAIN_CLEAR: f64 = 1.15;
const CHECK_LONG: usize = 24;

/// Whether there are drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftMode {
    /// Not for so many steps at least.
    Plain {
        /// Steps until it is thought over.
        left: usize,
    },
    /// Yes; for so many steps so far.
    Drafts {
        /// Steps since they were taken up.
        steps: usize,
    },
    /// A few steps without, to see what they take now.
    Check {
        /// Steps that are left of it.
        left: usize,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    mode: DraftMode,
    /// Time that may be lost, in seconds; `None` before a plain step was seen.
    purse: Option<f64>,
    /// Time that drafts have saved since they were taken up.
    saved: f64,
    /// Means of drafted steps since they were taken up: tokens and seconds.
    tokens: f64,
    seconds: f64,
    /// Rate of those over the rate of plain steps.
    gain: f64,
    /// Drafted steps since they were taken up, and until the next check.
    steps: usize,
    check_in: usize,
    check_after: usize,
    pause: usize,
    /// Steps since the last draft.
    idle: usize,
    thought_over: bool,
    /// Whether there ever was a draft.
    was_tried: bool,
    n_lost: u64,
}

impl Default for Trial {
    fn default() -> Self {
        Self {
            mode: DraftMode::Plain { left: PLAIN_FIRST },
            purse: None,
            saved: 0.0,
            tokens: 0.0,
            seconds: 0.0,
            gain: 1.0,
            steps: 0,
            check_in: CHECK_FIRST,
            check_after: CHECK_FIRST,
            pause: PAUSE_FIRST,
            idle: 0,
            thought_over: false,
            was_tried: false,
            n_lost: 0,
        }
    }
}

impl Trial {
    /// Whether the coming step may have drafts.
    pub(super) fn drafts(&self) -> bool {
        matches!(self.mode, DraftMode::Drafts { .. })
    }

    /// How many it may have: a trial begins with few.
    pub(super) fn length_max(&self) -> usize {
        match self.mode {
            DraftMode::Drafts { steps } => LENGTH_FIRST + steps / STEPS_EACH,
            _ => 0,
        }
    }

    /// Whether the coming step may be longer by a draft than seems best, to see whether it is: now and then while drafts
    /// clearly gain.
    pub(super) fn explores(&self) -> bool {
        let DraftMode::Drafts { steps } = self.mode else { return false };
        steps >= STEPS_MIN && steps.is_multiple_of(EXPLORE_EVERY) && self.gain >= GAIN_EXPLORE
    }

    /// Whether the last step ended a pause.
    pub(super) fn is_thought_over(&self) -> bool {
        self.thought_over
    }

    /// Whether drafts have just been taken up.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.mode, DraftMode::Drafts { steps: 0 })
    }

    pub(super) fn mode(&self) -> DraftMode {
        self.mode
    }

    /// Times that drafts were given up without a gain.
    pub(super) fn n_lost(&self) -> u64 {
        self.n_lost
    }

    /// A step is over; a plain one takes `plain` seconds at present.
    pub(super) fn step(&mut self, step: &DraftedStep, plain: f64, outlook: Outlook) {
        let taken = seconds(step.step_time + step.draft_time);
        let purse = self.purse.get_or_insert(PURSE_FIRST * plain);
        *purse += SHARE * taken;
        self.idle = if step.drafted > 0 { 0 } else { self.idle + 1 };
        self.was_tried |= step.drafted > 0;
        let is_felt = self.drafts() || (self.idle <= FELT && self.was_tried);
        let saved = if is_felt { plain * step.emitted() as f64 - taken } else { 0.0 };
        let purse = (self.purse.unwrap_or(0.0) + saved).min(PURSE_MAX * plain);
        self.purse = Some(purse);
        self.saved += saved;
        self.thought_over = matches!(self.mode, DraftMode::Plain { left: 0 | 1 });
        self.mode = match self.mode {
            DraftMode::Plain { left: 0 | 1 } => {
                if purse >= PURSE_TRIAL * plain && outlook.hoped >= HOPED_MIN {
                    self.take_up()
                } else {
                    DraftMode::Plain { left: self.pause }
                }
            }
            DraftMode::Plain { left } => DraftMode::Plain { left: left - 1 },
            DraftMode::Check { left: 0 | 1 } => DraftMode::Drafts { steps: self.steps },
            DraftMode::Check { left } => DraftMode::Check { left: left - 1 },
            DraftMode::Drafts { steps } => {
                let weight = 1.0 / (steps as f64 + 1.0).min(SAMPLES);
                self.tokens += weight * (step.emitted() as f64 - self.tokens);
                self.seconds += weight * (taken - self.seconds);
                self.drafted(steps + 1, purse, plain)
            }
        };
    }

    fn take_up(&mut self) -> DraftMode {
        (self.saved, self.steps, self.idle) = (0.0, 0, 0);
        (self.check_in, self.check_after) = (CHECK_FIRST, CHECK_FIRST);
        DraftMode::Drafts { steps: 0 }
    }

    fn drafted(&mut self, steps: usize, purse: f64, plain: f64) -> DraftMode {
        self.steps = steps;
        let gain = plain * self.tokens / self.seconds.max(f64::MIN_POSITIVE);
        self.gain = gain;
        if purse < PURSE_MIN * plain || (steps >= STEPS_MIN && gain < GAIN_MIN) {
            self.n_lost += u64::from(self.saved <= 0.0);
            self.pause = if self.saved > 0.0 { PAUSE_FIRST } else { (2 * self.pause).min(PAUSE_MAX) };
            return DraftMode::Plain { left: self.pause };
        }
        if self.idle >= IDLE_MAX {
            self.pause = (2 * self.pause).min(PAUSE_MAX);
            return DraftMode::Plain { left: self.pause };
        }
        self.check_in -= 1;
        if self.check_in > 0 {
            return DraftMode::Drafts { steps };
        }
        let is_clear = gain >= GAIN_CLEAR;
        self.check_after = if is_clear { (2 * self.check_after).min(CHECK_MAX) } else { 2 * CHECK_FIRST };
        self.check_in = self.check_after;
        DraftMode::Check { left: if is_clear { CHECK } else { CHECK_LONG } }
    }
}

#[cfg(test)]
impl Trial {
    /// A trial that has lasted for long.
    pub(super) fn drafting() -> Self {
        Self { mode: DraftMode::Drafts { steps: 1_000 }, ..Self::default() }
    }
}
