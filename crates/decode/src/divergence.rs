//! How far a model's predictions are from another's, over a text.
//!
//! Both models read the windows of [`crate::perplexity`] step by step in turn, and of every prediction in a window's second
//! half the whole distributions are compared while their logits are in memory: nothing of them is kept but a few sums and
//! one number a token. With `b` the base's distribution and `m` the model's, the divergence of a token is
//! `KL(b || m) = sum(b * ln(b / m))`, in f64, in the vocabulary's order.
//!
//! Tokens of one window have much in common, so they are no independent samples. What is: the windows. A mean's error is
//! that of the mean of the windows' means, `sd / sqrt(n)` with Student's t for `n - 1` degrees of freedom; it needs two
//! windows.

mod stats;

use std::io::Read;

use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::{Engine, Logits, Outlook};
use crate::meter::{Meter, Work};
use crate::perplexity::ScoreEvent;
use crate::session::Session;
use crate::telemetry::Telemetry;
use crate::text::{TokenReader, Vocabulary};
use crate::windows::{TextLength, Windows};
pub use stats::{Comparison, Interval};
use stats::{Sums, Token};

/// Splits a budget between a model and its base: each gets the smallest plan that works for it, and of the rest a share as
/// large as its share of what both could use beyond that. The process itself is in both plans, so the two together take a
/// little less. `None` when there is no budget.
///
/// # Errors
/// [`DecodeError::BudgetOfTwo`] when the two smallest plans don't fit.
pub fn split_budget(
    budget_bytes: Option<u64>,
    model: &Outlook,
    base: &Outlook,
) -> Result<Option<[u64; 2]>, DecodeError> {
    let Some(budget_bytes) = budget_bytes else { return Ok(None) };
    let (of_model, of_base) = (model.range()?, base.range()?);
    split(budget_bytes, of_model, of_base).map(Some)
}

/// Of each, the smallest plan and the one that holds everything.
fn split(budget_bytes: u64, model: (u64, u64), base: (u64, u64)) -> Result<[u64; 2], DecodeError> {
    let smallest_bytes = model.0.saturating_add(base.0);
    let Some(rest) = budget_bytes.checked_sub(smallest_bytes) else {
        return Err(DecodeError::BudgetOfTwo { budget_bytes, smallest_bytes, base_bytes: base.0 });
    };
    let [of_model, of_base] = [model, base].map(|(smallest, whole)| whole - smallest);
    let both = u128::from(of_model) + u128::from(of_base);
    let share = u128::from(rest) * u128::from(of_model) / both.max(1);
    let share = if both == 0 { rest / 2 } else { u64::try_from(share).unwrap_or(rest) };
    Ok([model.0 + share, budget_bytes - model.0 - share])
}

/// One of the two models, and what of the window it holds.
struct Reader<'e> {
    engine: &'e mut Engine,
    session: Session,
    meter: Meter,
    work: Work,
}

impl<'e> Reader<'e> {
    fn new(engine: &'e mut Engine) -> Self {
        let meter = Meter::start(engine);
        Self { engine, session: Session::new(), meter, work: Work::default() }
    }

    /// Reads `window` up to `end`, in steps as large as the plan has room for, without logits.
    fn read_to(&mut self, window: &[TokenId], end: usize) -> Result<(), DecodeError> {
        while self.session.tokens().len() < end {
            let held = self.session.tokens().len();
            let next = end.min(held + self.engine.plan().rows_max);
            self.step(&window[held..next], Logits::None)?;
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[TokenId], wish: Logits) -> Result<(), DecodeError> {
        let begin = self.engine.clock().now();
        self.session.extend(self.engine, tokens, wish)?;
        self.work.prompt_tokens += tokens.len();
        self.work.prompt_time = self.work.prompt_time + (self.engine.clock().now() - begin);
        Ok(())
    }

    fn logit_rows(&self) -> usize {
        let plan = self.engine.plan();
        plan.logit_rows.min(plan.rows_max)
    }

    fn telemetry(&self) -> Telemetry {
        self.meter.telemetry(self.engine, &self.work)
    }
}

/// Two models over one text, pulled step by step. The context of both is the window.
pub struct Divergence<'e, R> {
    model: Reader<'e>,
    base: Reader<'e>,
    windows: Windows<R>,
    /// The window under way; empty between two.
    window: Vec<TokenId>,
    sums: Sums,
    n_windows: u64,
}

impl<'e, R: Read> Divergence<'e, R> {
    /// Compares `model` with `base` over `text`, whose length was counted with their tokenizer and context.
    ///
    /// # Errors
    /// [`DecodeError::OtherVocabulary`] unless both have the same tokens, [`DecodeError::OtherContext`] unless the same
    /// window.
    pub fn new(
        model: &'e mut Engine,
        base: &'e mut Engine,
        text: R,
        length: TextLength,
    ) -> Result<Self, DecodeError> {
        let (context, base_context) = (model.plan().context, base.plan().context);
        if context != base_context {
            return Err(DecodeError::OtherContext { context, base_context });
        }
        same_vocabulary(model.tokenizer().vocabulary(), base.tokenizer().vocabulary())?;
        let sizes = [&model, &base].map(|engine| engine.shape().n_vocab);
        if sizes[0] != sizes[1] {
            let difference = format!("the model's head has {} rows, the base's {}", sizes[0], sizes[1]);
            return Err(DecodeError::OtherVocabulary { difference });
        }
        Ok(Self {
            model: Reader::new(model),
            base: Reader::new(base),
            windows: Windows::new(TokenReader::new(text), length),
            window: Vec::new(),
            sums: Sums::default(),
            n_windows: 0,
        })
    }

    /// Runs both models over the next tokens; `None` when every window was compared.
    ///
    /// # Errors
    /// [`DecodeError`]; the text or a step failed, and the window under way can't be compared any more.
    #[expect(clippy::should_implement_trait, reason = "a step may fail, and the result comes after the last")]
    pub fn next(&mut self) -> Result<Option<ScoreEvent>, DecodeError> {
        if self.window.is_empty() {
            let (tokenizer, len) = (self.model.engine.tokenizer(), self.model.engine.plan().context);
            if !self.windows.next(tokenizer, len, &mut self.window)? {
                return Ok(None);
            }
        }
        let (middle, last) = (self.window.len() / 2, self.window.len() - 1);
        let held = self.base.session.tokens().len();
        if held < middle {
            self.base.read_to(&self.window, middle)?;
            self.model.read_to(&self.window, middle)?;
            return Ok(Some(ScoreEvent::Read));
        }
        // The last token is predicted, and predicts nothing.
        let end = last.min(held + self.base.logit_rows().min(self.model.logit_rows()));
        self.base.step(&self.window[held..end], Logits::All)?;
        self.model.step(&self.window[held..end], Logits::All)?;
        self.compare(held);
        if end < last {
            return Ok(Some(ScoreEvent::Read));
        }
        self.window.clear();
        (self.base.session, self.model.session) = (Session::new(), Session::new());
        self.sums.end_window();
        self.n_windows += 1;
        Ok(Some(ScoreEvent::Window { n: self.n_windows }))
    }

    /// Adds what both said after the tokens from `held` on.
    fn compare(&mut self, held: usize) {
        let n_vocab = self.base.engine.shape().n_vocab;
        let rows = self.base.engine.logits().chunks_exact(n_vocab);
        let rows = rows.zip(self.model.engine.logits().chunks_exact(n_vocab));
        for ((base, model), &next) in rows.zip(&self.window[held + 1..]) {
            self.sums.add(Token::of(base, model, next));
        }
    }

    /// The result of the whole windows so far; `None` before the first.
    pub fn comparison(&self) -> Option<Comparison> {
        self.sums.comparison()
    }

    /// The mean divergence of the whole windows so far, which is cheaper to ask for.
    pub fn kl(&self) -> Option<Interval> {
        (self.n_windows > 0).then(|| self.sums.kl())
    }

    /// Whole windows so far.
    pub fn n_windows(&self) -> u64 {
        self.n_windows
    }

    /// Where time and bytes of the model and of the base went; tokens that were read count as a prompt's.
    pub fn telemetry(&self) -> [Telemetry; 2] {
        [self.model.telemetry(), self.base.telemetry()]
    }
}

/// Refuses two vocabularies that differ, with the first difference.
fn same_vocabulary(model: &Vocabulary, base: &Vocabulary) -> Result<(), DecodeError> {
    let refuse = |difference| Err(DecodeError::OtherVocabulary { difference });
    let n = model.len().min(base.len());
    let ids = (0..u32::try_from(n).unwrap_or(u32::MAX)).map(TokenId);
    let shown = |vocabulary: &Vocabulary, id| {
        String::from_utf8_lossy(vocabulary.token_bytes(id).unwrap_or_default()).into_owned()
    };
    for id in ids {
        if model.token_bytes(id) != base.token_bytes(id) {
            let (ours, theirs) = (shown(model, id), shown(base, id));
            return refuse(format!("token {} is {ours:?} in the model and {theirs:?} in the base", id.0));
        }
        if model.kind(id) != base.kind(id) {
            let [ours, theirs] = [model, base].map(|of| of.kind(id));
            return refuse(format!("token {} is {ours:?} in the model and {theirs:?} in the base", id.0));
        }
    }
    if model.len() != base.len() {
        return refuse(format!("the model has {} tokens, the base {}", model.len(), base.len()));
    }
    if model.opening() != base.opening() {
        return refuse("only one of them puts a token in front of a text, or another one".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_split_by_what_each_can_use() {
        let check = |budget, model, base, expect: [u64; 2]| {
            assert_eq!(split(budget, model, base).unwrap(), expect, "{budget}");
        };
        check(30, (10, 100), (20, 100), [10, 20]);
        check(47, (10, 100), (20, 100), [10 + 9, 20 + 8]);
        check(1000, (10, 10), (20, 100), [10, 990]);
        check(40, (10, 10), (20, 20), [15, 25]);
        let error = split(29, (10, 100), (20, 100)).unwrap_err();
        let words = "the memory budget of 29 B is too small for two models at once; the smallest that works here is 30 B, \
                     of which 20 B are the base's";
        assert_eq!(error.to_string(), words);
    }
}
