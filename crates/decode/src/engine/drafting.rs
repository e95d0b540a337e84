//! The engine's drafter, and the rule that says how much of a draft is worth verifying.

use forerun_compute::SequenceIdx;
use forerun_model::{Nanos, TokenId};
use forerun_scheduler::draft::DraftMode;
use forerun_scheduler::{DraftRule, DraftedStep, Scheduler};

use super::Engine;
use crate::DecodeError;
use crate::draft::{Anchor, Draft, Drafter, Seen};
use crate::sampler::{Draw, History, Sampler, SamplerError};
use crate::telemetry::Decision;

/// Drafts in a row that may fail for want of an expert before drafting is given up.
const FAILURES_MAX: usize = 8;

/// A drafter at work.
pub(super) struct Drafting {
    drafter: Box<dyn Drafter>,
    rule: DraftRule,
    /// Most tokens of a draft, whatever it is worth.
    n_max: usize,
    /// Whether a draft has that many, whatever it is worth.
    is_fixed: bool,
    /// Drafts in a row that failed since experts couldn't be had.
    n_failed: usize,
}

/// How tokens of an answer are chosen, for a draft that is to agree with it.
pub(crate) struct Choosing<'a> {
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) history: &'a mut History,
    /// Where the first drafted token would be drawn.
    pub(crate) first: Draw,
    /// Most tokens that the answer can use.
    pub(crate) n_max: usize,
}

impl Drafting {
    /// `n_max` tokens at most are drafted by `drafter`, or as near to `fixed` as it can, if there is such a number.
    pub(super) fn new(
        drafter: Box<dyn Drafter>,
        rule: DraftRule,
        n_max: usize,
        fixed: Option<usize>,
    ) -> Self {
        let n_max = n_max.min(drafter.n_max()).min(fixed.unwrap_or(usize::MAX));
        Self { drafter, rule, n_max, is_fixed: fixed.is_some(), n_failed: 0 }
    }

    pub(super) fn name(&self) -> &'static str {
        self.drafter.name()
    }

    /// What the rule does and why, once there were steps.
    pub(super) fn decision(&self) -> Option<Decision> {
        let counts = self.rule.counts();
        let n_steps: u64 = counts.steps.iter().sum();
        if n_steps == 0 {
            return None;
        }
        let lengths = counts.steps.iter().enumerate().filter(|(_, n)| **n > 0);
        let lengths: Vec<_> = lengths.map(|(length, n)| format!("{n} of {length}")).collect();
        let decision = self.rule.decision();
        let choice = if self.is_fixed {
            format!("{} tokens", self.n_max)
        } else {
            match decision.mode {
                DraftMode::Plain { .. } => "off at present".to_owned(),
                DraftMode::Check { .. } | DraftMode::Drafts { .. } => format!("{} tokens", decision.length),
            }
        };
        let reason = format!(
            "{}; steps by drafted tokens: {}; drafted steps took {:.2} of the time foreseen",
            decision.reason,
            lengths.join(", "),
            counts.bias()
        );
        Some(Decision::new("draft length", choice, reason))
    }

    pub(super) fn observe(&mut self, scheduler: &mut Scheduler, seen: Seen<'_>) -> Result<(), DecodeError> {
        self.drafter.observe(scheduler, seen)
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.drafter.truncate(len);
    }

    pub(super) fn resume(&mut self, tokens: &[TokenId]) {
        self.drafter.resume(tokens);
    }

    /// Adds a draft to `tokens`, which hold the token that it follows.
    fn propose(
        &mut self,
        scheduler: &mut Scheduler,
        held: &[TokenId],
        choosing: Choosing<'_>,
        ends: &[TokenId],
        tokens: &mut Vec<TokenId>,
    ) -> Result<(), DecodeError> {
        if choosing.n_max == 0 {
            return Ok(());
        }
        let is_fixed = self.is_fixed;
        let worth = self.rule.begin();
        let n_max = if is_fixed { self.n_max } else { worth.min(self.n_max) }.min(choosing.n_max);
        if n_max == 0 {
            return Ok(());
        }
        let anchor = Anchor { held, token: tokens[0] };
        let n_vocab = choosing.sampler.n_vocab();
        let mut draft = Growing { rule: &mut self.rule, tokens, n_max, is_fixed, n_vocab, ends, choosing };
        let proposed = self.drafter.propose(scheduler, anchor, &mut draft);
        draft.take_back();
        proposed
    }
}

/// A draft that grows.
struct Growing<'a> {
    rule: &'a mut DraftRule,
    /// The token before it, then the draft.
    tokens: &'a mut Vec<TokenId>,
    n_max: usize,
    is_fixed: bool,
    n_vocab: usize,
    /// Tokens after which nothing is worth guessing.
    ends: &'a [TokenId],
    choosing: Choosing<'a>,
}

impl Growing<'_> {
    fn len(&self) -> usize {
        self.tokens.len() - 1
    }

    /// The answer has said none of it yet.
    fn take_back(&mut self) {
        for _ in 0..self.len() {
            self.choosing.history.pop();
        }
    }
}

impl Draft for Growing<'_> {
    fn admits(&mut self, confidence: f32) -> bool {
        let is_over = self.len() >= self.n_max || self.tokens.last().is_some_and(|t| self.ends.contains(t));
        !is_over && (self.is_fixed || self.rule.admits(confidence))
    }

    fn choose(&mut self, logits: &[f32]) -> Result<TokenId, SamplerError> {
        let Choosing { sampler, history, first, .. } = &mut self.choosing;
        let draw = Draw { position: first.position + (self.tokens.len() - 1) as u64, ..*first };
        let token = sampler.sample(logits, history, draw)?;
        self.push(token);
        Ok(token)
    }

    fn push(&mut self, token: TokenId) {
        // A step has no room for more, and a backend no row for what isn't a token.
        if self.len() < self.n_max && token.idx() < self.n_vocab {
            self.tokens.push(token);
            self.choosing.history.push(token);
        }
    }
}

impl Engine {
    /// Adds a draft of what follows `held` and the one token in `tokens` to `tokens`: as much as is worth verifying, perhaps
    /// nothing. Returns the time that it took.
    pub(crate) fn propose(
        &mut self,
        sequence: SequenceIdx,
        held: &[TokenId],
        choosing: Choosing<'_>,
        tokens: &mut Vec<TokenId>,
    ) -> Nanos {
        let Some(drafting) = &mut self.sequences[sequence.0].drafting else { return Nanos(0) };
        let begin = self.clock.now();
        let room = self.plan.context.saturating_sub(held.len() + 1);
        let choosing = Choosing { n_max: choosing.n_max.min(room), ..choosing };
        let ends = self.tokenizer.vocabulary().end_ids();
        let proposed = drafting.propose(&mut self.scheduler, held, choosing, ends, tokens);
        match proposed {
            Ok(()) => drafting.n_failed = 0,
            // The disk may come back.
            Err(DecodeError::Scheduler(_)) if drafting.n_failed < FAILURES_MAX => {
                drafting.n_failed += 1;
                tokens.truncate(1);
            }
            Err(error) => {
                tokens.truncate(1);
                self.stop_drafting(sequence, &error);
            }
        }
        self.clock.now() - begin
    }

    /// Tells the rule how a step went.
    pub(crate) fn conclude(&mut self, sequence: SequenceIdx, step: &DraftedStep) {
        if let Some(drafting) = &mut self.sequence(sequence).drafting {
            drafting.rule.observe(step);
        }
    }
}
