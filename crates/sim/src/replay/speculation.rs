//! Decoding with drafts: what a rule for their length makes of a machine, a text and a drafter.
//!
//! A step of `m` rows wants the union of the experts of `m` tokens. Rows of drafts that will be accepted are the next tokens
//! of the trace; the others are routed as tokens that have nothing to do with the text's next ones. Whether a draft is
//! right is chance with a chance of its own, which the drafter may know more or less.

use forerun_model::{Clock as _, Nanos};
use forerun_scheduler::draft::DraftCounts;
use forerun_scheduler::{DraftConfig, DraftRule, DraftedStep, Predictor, SchedulerStats};

use super::Replay;
use super::walk::Walk;
use crate::rng::hash;
use crate::{RunError, Trace, VirtualClock};

/// How often drafts are right, given that those before them in the step are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Acceptance {
    /// As often at each position.
    Flat(f64),
    /// By position; the last counts for those behind it.
    Each([f64; 7]),
    /// By turns, for so many tokens each.
    Bursts {
        /// In every second stretch, from the first on.
        high: f64,
        /// In the others.
        low: f64,
        /// Tokens of a stretch.
        tokens: usize,
    },
}

/// What the drafter says of a draft's chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Confidence {
    /// Nothing.
    Absent,
    /// Its logit, off by `bias` and by chance of a deviation of about `noise`.
    Said {
        /// Above zero: overconfident.
        bias: f64,
        /// Deviation.
        noise: f64,
    },
}

/// A drafter, and a computer that verifies what it drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// How often it is right, on average.
    pub acceptance: Acceptance,
    /// How much its chances differ from draft to draft: deviation of their logits.
    pub spread: f64,
    /// What it says of them.
    pub confidence: Confidence,
    /// Its time whenever it is asked, as a share of a token's computing.
    pub block_share: f32,
    /// Its time for each draft, likewise.
    pub draft_share: f32,
    /// What each row beyond the first costs, as a share of the first. Experts grow with their own rows.
    pub row_growth: f32,
    /// Wrong drafts are routed as tokens at most so far away; as any token if there are not so many.
    pub stray_tokens: usize,
    /// Decides what is chance.
    pub seed: u64,
}

impl Default for Speculation {
    /// A block drafter as good as the one of this project's small model on chats, on this workspace's kernels.
    fn default() -> Self {
        Self {
            acceptance: Acceptance::Each([0.50, 0.69, 0.83, 0.88, 0.93, 0.90, 0.87]),
            spread: 1.5,
            confidence: Confidence::Said { bias: 0.5, noise: 0.5 },
            block_share: 0.08,
            draft_share: 0.01,
            row_growth: 0.3,
            stray_tokens: usize::MAX,
            seed: 1,
        }
    }
}

/// How many tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// Always so many; 0 asks no drafter.
    Fixed(usize),
    /// As many as the rule wishes.
    Rule(DraftConfig),
}

/// Where time and tokens went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeculationReport {
    /// Tokens that were counted.
    pub n_tokens: usize,
    /// Time that they took.
    pub time: Nanos,
    /// What the scheduler counted.
    pub stats: SchedulerStats,
    /// What the rule counted; nothing for a fixed length.
    pub counts: DraftCounts,
}

impl SpeculationReport {
    /// Mean time of a token, in milliseconds.
    pub fn ms_per_token(&self) -> f64 {
        self.time.as_millis_f64() / self.n_tokens as f64
    }
}

impl Speculation {
    /// A number in `0..1` that `parts` decide.
    fn chance(&self, parts: [u64; 3]) -> f64 {
        (hash(&[self.seed, parts[0], parts[1], parts[2]]) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number of mean 0 and deviation 1, bell-shaped enough: the sum of three even ones.
    fn normal(&self, of: u64, token: usize, k: usize) -> f64 {
        let one = |i| self.chance([of + i, token as u64, k as u64]) - 0.5;
        2.0 * (one(0) + one(1) + one(2))
    }

    /// The chance of the draft at position `k` of the step that begins with `token`.
    fn right(&self, token: usize, k: usize) -> f64 {
        let mean = match self.acceptance {
            Acceptance::Flat(mean) => mean,
            Acceptance::Each(means) => means[k.min(means.len() - 1)],
            Acceptance::Bursts { high, low, tokens } => {
                if (token / tokens.max(1)).is_multiple_of(2) {
                    high
                } else {
                    low
                }
            }
        };
        sigmoid(logit(mean) + self.spread * self.normal(10, token, k))
    }

    fn accepts(&self, token: usize, k: usize) -> bool {
        self.chance([1, token as u64, k as u64]) < self.right(token, k)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a confidence is a guess")]
    fn says(&self, token: usize, k: usize) -> f32 {
        match self.confidence {
            Confidence::Absent => f32::NAN,
            Confidence::Said { bias, noise } => {
                sigmoid(logit(self.right(token, k)) + bias + noise * self.normal(20, token, k)) as f32
            }
        }
    }

    /// The drafter's time for `drafted` tokens, if a token's computing takes `alone`.
    fn drafting(&self, alone: Nanos, drafted: usize) -> Nanos {
        alone.times(self.block_share + self.draft_share * drafted as f32)
    }

    /// The token as which the wrong draft at position `k` is routed.
    fn stray(&self, n_tokens: usize, token: usize, k: usize) -> usize {
        let within = (self.stray_tokens.saturating_mul(2)).min(n_tokens).max(1);
        let away = hash(&[self.seed, 2, token as u64, k as u64]) % within as u64;
        token + n_tokens + usize::try_from(away).unwrap_or(0) - within / 2
    }
}

fn logit(p: f64) -> f64 {
    let p = p.clamp(1e-4, 1.0 - 1e-4);
    (p / (1.0 - p)).ln()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Replay {
    /// Runs `trace` with drafts of `lengths`, from the first token that counts on: the rule begins without experience, the
    /// slots are full.
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be had.
    pub fn speculate(
        &self,
        trace: &Trace,
        speculation: &Speculation,
        lengths: Lengths,
        predictor: Box<dyn Predictor>,
    ) -> Result<SpeculationReport, RunError> {
        let clock = VirtualClock::new();
        let mut scheduler = self.scheduler(trace, predictor, &clock)?;
        let mut walk = Walk::new(self, trace, &clock).growing(speculation.row_growth);
        for token in 0..self.n_warm {
            walk.pass(&mut scheduler, &[token])?;
        }
        let (started, before) = (clock.now(), scheduler.stats());
        let mut chooser = Chooser::new(lengths);
        let (mut token, mut tokens) = (self.n_warm, Vec::new());
        let alone = walk.token_alone();
        while token < self.n_warm + self.n_tokens {
            let n_max = chooser.begin();
            let drafted = (0..n_max).take_while(|&k| chooser.admits(speculation.says(token, k))).count();
            let accepted = (0..drafted).take_while(|&k| speculation.accepts(token, k)).count();
            let draft_time = if n_max == 0 { Nanos(0) } else { speculation.drafting(alone, drafted) };
            clock.advance(draft_time);
            let (at, then) = (clock.now(), scheduler.stats());
            tokens.clear();
            tokens.push(token);
            tokens.extend((0..drafted).map(|k| match k < accepted {
                true => token + 1 + k,
                false => speculation.stray(trace.n_tokens, token, k),
            }));
            walk.pass(&mut scheduler, &tokens)?;
            let stats = scheduler.stats().since(&then);
            chooser.observe(&DraftedStep {
                rows: drafted + 1,
                drafted,
                accepted,
                is_cut: false,
                draft_time,
                step_time: clock.now() - at,
                stall_time: stats.stall,
                missed_bytes: stats.bytes_demand + stats.bytes_guess,
            });
            token += accepted + 1;
        }
        let stats = scheduler.stats().since(&before);
        Ok(SpeculationReport {
            n_tokens: token - self.n_warm,
            time: clock.now() - started,
            stats,
            counts: chooser.counts(),
        })
    }
}

/// Who says how many.
enum Chooser {
    Fixed(usize),
    Rule(Box<DraftRule>),
}

impl Chooser {
    fn new(lengths: Lengths) -> Self {
        match lengths {
            Lengths::Fixed(n) => Self::Fixed(n),
            Lengths::Rule(config) => Self::Rule(Box::new(DraftRule::new(config))),
        }
    }

    fn begin(&mut self) -> usize {
        match self {
            Self::Fixed(n) => *n,
            Self::Rule(rule) => rule.begin(),
        }
    }

    fn admits(&mut self, confidence: f32) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Rule(rule) => rule.admits(confidence),
        }
    }

    fn observe(&mut self, step: &DraftedStep) {
        if let Self::Rule(rule) = self {
            rule.observe(step);
        }
    }

    fn counts(&self) -> DraftCounts {
        match self {
            Self::Fixed(_) => DraftCounts::default(),
            Self::Rule(rule) => *rule.counts(),
        }
    }
}
