//! How many tokens to draft in the coming step: none, unless verifying them is expected to make decoding faster.
//!
//! A step that verifies `l` drafts is a pass of `l + 1` rows and brings the drafts that were right, up to the first wrong
//! one, and one token more. With `c_i` the chance that draft `i` is right if those before it are:
//!
//! ```text
//! tokens(l) = 1 + sum_{j <= l} prod_{i <= j} c_i          time(l) = work(l + 1) + stall(l + 1) + drafting(l)
//! ```
//!
//! `work`, `stall` and `drafting` are learnt from the steps themselves ([`cost`](self)), `c_i` from the drafter's word and
//! from what became of it. Another draft is made while some further length promises a rate `tokens / time` that is better by
//! [`DraftConfig::gain_min`] a draft. That is the early-stopping rule of DSpark (arXiv 2607.05147, algorithm 1) for one
//! sequence, with the experts that a wider pass reads in its time; it looks at nothing that follows the draft in question,
//! so it is right for every way of verifying.
//!
//! Where most of a step is reading, drafts seldom pay: a wider pass reads the union of its rows' experts, and a cache has
//! already taken what rows have in common. So drafting as such is on trial all the time, as in Cascade (arXiv 2506.20675):
//! what drafts cost over plain steps is paid from a purse that fills with a small share of the time and with what drafts
//! gain; when it is empty there are plain steps only, for spans that double while trials fail.
//!
//! Never here: drafters, files, a clock. Times come from the caller, and the same inputs give the same decisions.

mod acceptance;
mod cost;
mod curve;
mod trial;

use forerun_model::Nanos;

pub use self::trial::DraftMode;

use self::acceptance::Acceptance;
use self::cost::Costs;
use self::trial::Trial;

/// Most tokens that are ever drafted for one step: a pass of verification has at most sixteen rows.
pub const DRAFTED_MAX: usize = 15;

/// What is known before the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftConfig {
    /// Most tokens drafted for one step; more than [`DRAFTED_MAX`] count as that.
    pub n_max: usize,
    /// Bytes a second of the disk that experts come from, if a probe said so.
    pub disk_bytes_per_second: Option<f64>,
    /// Share of a plain step's computing that each further row is expected to add, before it is measured.
    pub row_growth: f64,
    /// Least relative gain of the rate for each further draft.
    pub gain_min: f64,
}

impl Default for DraftConfig {
    /// Kernels of this workspace take 1.1, 1.8 and 3.3 times as long for 2, 4 and 8 rows as for one; a gain of two
    /// hundredths a draft is the least that published rules ask for.
    fn default() -> Self {
        Self { n_max: 7, disk_bytes_per_second: None, row_growth: 0.3, gain_min: 0.02 }
    }
}

/// What became of a step, drafted or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftedStep {
    /// Rows of the pass: 1 if nothing was drafted.
    pub rows: usize,
    /// Tokens that were drafted and verified.
    pub drafted: usize,
    /// Those of them that were right; the step brought one token more.
    pub accepted: usize,
    /// The answer ended at an accepted draft: nothing is known of the drafts behind it.
    pub is_cut: bool,
    /// Time that the drafter took, to learn of what went before too; zero for a step without drafts.
    pub draft_time: Nanos,
    /// Time of everything else: the pass, sampling, committing.
    pub step_time: Nanos,
    /// Part of `step_time` that was waited for experts.
    pub stall_time: Nanos,
    /// Bytes that were read for the pass, asked for or guessed.
    pub missed_bytes: u64,
}

impl DraftedStep {
    /// Tokens that the step brought, at least one.
    pub fn emitted(&self) -> usize {
        self.accepted + usize::from(!self.is_cut || self.accepted == 0)
    }
}

/// Lengths that are counted: 0 to [`DRAFTED_MAX`].
pub const LENGTHS: usize = DRAFTED_MAX + 1;

/// What was decided so far, and how well it was foreseen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftCounts {
    /// Steps by the number of tokens that were drafted.
    pub steps: [u64; LENGTHS],
    /// Tokens drafted.
    pub drafted: u64,
    /// Those that were right.
    pub accepted: u64,
    /// Times that drafting was taken up.
    pub trials: u64,
    /// Those of them that were given up without a gain.
    pub trials_lost: u64,
    /// Time that drafted steps were expected to take, drafting included.
    pub expected: Nanos,
    /// Time that they took.
    pub taken: Nanos,
}

impl DraftCounts {
    /// Time of drafted steps as a share of what was expected; 1 while there are none.
    pub fn bias(&self) -> f64 {
        if self.expected.0 == 0 { 1.0 } else { self.taken.as_millis_f64() / self.expected.as_millis_f64() }
    }
}

/// What is done at present, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftDecision {
    /// Whether there are drafts.
    pub mode: DraftMode,
    /// The length that would be best if every step were the average one.
    pub length: usize,
    /// Rate with drafts of that length over the rate without.
    pub gain: f64,
    /// The reason in words.
    pub reason: String,
}

/// Chooses how many tokens are drafted, step by step. One for each sequence of steps on one machine: what it learns of
/// the machine outlives a text.
#[derive(Clone, Debug)]
pub struct DraftRule {
    config: DraftConfig,
    acceptance: Acceptance,
    costs: Costs,
    trial: Trial,
    counts: DraftCounts,
    /// The drafter was asked, and said nothing of its confidence.
    is_mute: bool,
    /// The step under way.
    chances: Chances,
}

/// What is known of the step under way: tokens expected of the drafts admitted, and what the drafter said of them.
#[derive(Clone, Copy, Debug)]
struct Chances {
    n: usize,
    n_max: usize,
    said: [f32; DRAFTED_MAX],
    /// Chance that all drafts so far are right.
    all: f64,
    /// Expected tokens of the step.
    tokens: f64,
    /// One draft may follow that doesn't pay.
    may_explore: bool,
}

impl Chances {
    fn new(n_max: usize) -> Self {
        Self { n: 0, n_max, said: [f32::NAN; DRAFTED_MAX], all: 1.0, tokens: 1.0, may_explore: false }
    }
}

impl DraftRule {
    /// A rule that knows nothing but `config`.
    pub fn new(config: DraftConfig) -> Self {
        let n_max = config.n_max.min(DRAFTED_MAX);
        Self {
            config: DraftConfig { n_max, ..config },
            acceptance: Acceptance::default(),
            costs: Costs::new(&config),
            trial: Trial::default(),
            counts: DraftCounts::default(),
            is_mute: false,
            chances: Chances::new(0),
        }
    }

    /// Most tokens worth drafting in the coming step; 0: the drafter need not be asked.
    pub fn begin(&mut self) -> usize {
        let n_max = self.trial.length_max().min(self.config.n_max);
        self.chances = Chances { may_explore: self.trial.explores(), ..Chances::new(n_max) };
        if self.is_mute && !self.pays(f32::NAN) {
            // The answer is known without asking.
            self.chances = Chances::new(0);
        }
        self.chances.n_max
    }

    /// Whether another token shall be drafted, of which the drafter says that it is right with `confidence` if those before
    /// it are; NaN: the drafter doesn't say. After a refusal every further call refuses.
    pub fn admits(&mut self, confidence: f32) -> bool {
        self.is_mute = confidence.is_nan();
        let Chances { n, n_max, .. } = self.chances;
        if n >= n_max || !self.pays(confidence) {
            if n >= n_max || !self.chances.may_explore {
                self.chances.n_max = n;
                return false;
            }
            self.chances.n_max = n + 1;
        }
        let all = self.chances.all * self.acceptance.of(n, confidence);
        self.chances.all = all;
        self.chances.tokens += all;
        self.chances.said[n] = confidence;
        self.chances.n += 1;
        true
    }

    /// Whether one of the lengths beyond what was admitted promises a better rate, if the next draft is right with
    /// `confidence` and those behind it as often as usual.
    fn pays(&self, confidence: f32) -> bool {
        let Chances { n, n_max, mut all, mut tokens, .. } = self.chances;
        let mut least = tokens / self.costs.seconds(n);
        for k in n..n_max {
            all *= if k == n { self.acceptance.of(k, confidence) } else { self.acceptance.usual(k) };
            tokens += all;
            least *= 1.0 + self.config.gain_min;
            if tokens / self.costs.seconds(k + 1) >= least {
                return true;
            }
        }
        false
    }

    /// Learns from a step, drafted or not.
    pub fn observe(&mut self, step: &DraftedStep) {
        let drafted = step.drafted.min(DRAFTED_MAX);
        self.count(step, drafted);
        let said = self.chances.said;
        for (k, &confidence) in said.iter().enumerate().take(drafted) {
            if k < step.accepted {
                self.acceptance.learn(k, confidence, true);
            } else {
                if !step.is_cut {
                    self.acceptance.learn(k, confidence, false);
                }
                break;
            }
        }
        let asked = self.chances.n_max > 0 || drafted > 0 || step.draft_time.0 > 0;
        self.costs.learn(step, asked);
        let outlook = self.outlook();
        let lost_before = self.trial.n_lost();
        let was_drafting = self.trial.drafts();
        self.trial.step(step, self.costs.plain_seconds(), outlook);
        if self.trial.is_new() && !was_drafting {
            self.counts.trials += 1;
        }
        if self.trial.is_thought_over() {
            self.acceptance.forget();
        }
        self.counts.trials_lost += self.trial.n_lost() - lost_before;
        self.chances = Chances::new(0);
    }

    fn count(&mut self, step: &DraftedStep, drafted: usize) {
        let DraftCounts { steps, expected, taken, .. } = &mut self.counts;
        steps[drafted] += 1;
        if drafted > 0 {
            *expected = *expected + nanos(self.costs.seconds(drafted));
            *taken = *taken + step.step_time + step.draft_time;
        }
        self.counts.drafted += drafted as u64;
        self.counts.accepted += step.accepted.min(drafted) as u64;
    }

    /// The best length if every step were the average one, with its gain, and the gain that is possible if drafts are right
    /// more often than was seen so far.
    fn outlook(&self) -> Outlook {
        let best = |chance: &dyn Fn(usize) -> f64| {
            let (mut all, mut tokens) = (1.0, 1.0);
            let gains = (0..self.config.n_max).map(|k| {
                all *= chance(k);
                tokens += all;
                (k + 1, tokens / self.costs.seconds(k + 1) * self.costs.plain_seconds())
            });
            gains.fold((0, 1.0), |best, gain| if gain.1 > best.1 { gain } else { best })
        };
        let (length, gain) = best(&|k| self.acceptance.usual(k));
        let (_, hoped) = best(&|k| self.acceptance.hoped(k));
        Outlook { length, gain, hoped }
    }

    /// What was counted so far.
    pub fn counts(&self) -> &DraftCounts {
        &self.counts
    }

    /// What is done at present, and why.
    pub fn decision(&self) -> DraftDecision {
        let Outlook { length, gain, .. } = self.outlook();
        let mode = self.trial.mode();
        let n = length.max(1).min(self.config.n_max.max(1));
        let tokens = (0..n).fold((1.0, 1.0), |(all, tokens), k| {
            let all = all * self.acceptance.usual(k);
            (all, tokens + all)
        });
        let parts = self.costs.describe(n);
        let reason = format!("verification of {} rows {parts} for {:.1} tokens", n + 1, tokens.1);
        DraftDecision { mode, length, gain, reason }
    }
}

/// See [`DraftRule::outlook`].
#[derive(Clone, Copy, Debug)]
struct Outlook {
    length: usize,
    gain: f64,
    hoped: f64,
}

fn seconds(span: Nanos) -> f64 {
    span.as_millis_f64() / 1e3
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests;
