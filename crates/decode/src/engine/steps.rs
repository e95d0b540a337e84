//! Runs steps: plain ones, which are accepted whole, and those that verify a draft, of which a part may be.

use forerun_compute::{Checkpoint, Row, SequenceIdx, Step};
use forerun_model::{Position, TokenId};

use super::{Engine, Logits};
use crate::DecodeError;
use crate::draft::Seen;
use crate::telemetry::Decision;

const SEQUENCE: SequenceIdx = SequenceIdx(0);

impl Engine {
    /// Runs one step over consecutive text tokens that follow `past` ones and accepts them. The logits that are wanted
    /// are then [`Self::logits`].
    ///
    /// # Errors
    /// [`DecodeError`]; what was accepted before stays as it was, and the step can be tried again.
    pub(crate) fn step(&mut self, past: usize, tokens: &[TokenId], wish: Logits) -> Result<(), DecodeError> {
        self.run(past, tokens, wish, false)?;
        self.accept(past, tokens)
    }

    /// Runs one step over a token and its draft and leaves it open: all logits are there, and [`Self::accept`] says how many
    /// of the rows are kept. A step that isn't accepted before the next is as if it had not been.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(crate) fn verify(&mut self, past: usize, tokens: &[TokenId]) -> Result<(), DecodeError> {
        let is_alone = tokens.len() == 1;
        self.run(past, tokens, if is_alone { Logits::Last } else { Logits::All }, !is_alone)
    }

    fn run(
        &mut self,
        past: usize,
        tokens: &[TokenId],
        wish: Logits,
        may_reject: bool,
    ) -> Result<(), DecodeError> {
        let rows_max = self.plan.logit_rows;
        if wish == Logits::All && tokens.len() > rows_max {
            return Err(DecodeError::LogitRows { rows: tokens.len(), rows_max });
        }
        let first = u32::try_from(past).unwrap_or(u32::MAX);
        let last = tokens.len().saturating_sub(1);
        self.rows.clear();
        self.rows.extend((first..).zip(tokens).enumerate().map(|(i, (position, &token))| Row {
            token,
            position: Position::text(position),
            wants_logits: wish == Logits::All || (wish == Logits::Last && i == last),
        }));
        if past == 0 {
            // The backend forgets what it held when the step begins.
            self.epoch += 1;
            self.cut(0);
        }
        let step = Step { sequence: SEQUENCE, past, rows: &self.rows, may_reject };
        self.steps.run(&mut *self.backend, &mut self.scheduler, &step, &mut self.output)
    }

    /// Keeps the first rows of the step, those of `tokens`, and shows them to the drafter.
    ///
    /// # Errors
    /// [`DecodeError`] when there is no such step.
    pub(crate) fn accept(&mut self, past: usize, tokens: &[TokenId]) -> Result<(), DecodeError> {
        self.backend.accept(tokens.len())?;
        let n_rows = self.rows.len().max(1);
        let of = |values| head(values, tokens.len(), n_rows);
        let (taps, normed) = (of(&self.output.taps), of(&self.output.normed));
        let seen = Seen { first: past, tokens, taps, normed };
        let observed = self.drafting.as_mut().map(|drafting| drafting.observe(&mut self.scheduler, seen));
        if let Some(Err(error)) = observed {
            self.stop_drafting(&error);
        }
        let len = past + tokens.len();
        match self.checkpoints.every() {
            Some(every) if past / every != len / every => self.keep_checkpoint(len),
            _ => Ok(()),
        }
    }

    /// Gives drafting up: an answer needs none.
    pub(super) fn stop_drafting(&mut self, error: &DecodeError) {
        if let Some(drafting) = self.drafting.take() {
            let reason = format!("`{}` failed and is off from here on: {error}", drafting.name());
            self.decisions.push(Decision::new("draft", "none", reason));
        }
    }

    /// Remembers how the sequence is now, at `len` tokens, if checkpoints may be kept.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub(crate) fn keep_checkpoint(&mut self, len: usize) -> Result<(), DecodeError> {
        if let Some(mut checkpoint) = self.checkpoints.room(len) {
            self.backend.save(SEQUENCE, &mut checkpoint)?;
            self.checkpoints.keep(checkpoint);
        }
        Ok(())
    }

    /// The same for a place where the next prompt may go on otherwise: it outlives those that are kept on the way.
    ///
    /// # Errors
    /// As [`Self::keep_checkpoint`].
    pub(crate) fn pin_checkpoint(&mut self, len: usize) -> Result<(), DecodeError> {
        self.checkpoints.pin(len);
        self.keep_checkpoint(len)
    }

    /// Cuts the sequence back to its last checkpoint of at most `len` tokens; returns its length, 0 when there is none. A
    /// model without recurrent states needs none.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub(crate) fn cut_back(&mut self, len: usize) -> Result<usize, DecodeError> {
        let anywhere = Checkpoint { len, values: Vec::new() };
        let has_states = Checkpoint::bytes(&self.shape) > 0;
        let best = if has_states { self.checkpoints.best(len) } else { (len > 0).then_some(&anywhere) };
        let len = match best {
            None => 0,
            Some(checkpoint) => {
                self.backend.restore(SEQUENCE, checkpoint)?;
                checkpoint.len
            }
        };
        self.cut(len);
        Ok(len)
    }

    /// Forgets what is known of the sequence beyond `len` tokens.
    fn cut(&mut self, len: usize) {
        self.checkpoints.forget_after(len);
        if let Some(drafting) = &mut self.drafting {
            drafting.truncate(len);
        }
    }

    /// The logits of the last step that was asked for them, `[rows, n_vocab]`.
    pub(crate) fn logits(&self) -> &[f32] {
        &self.output.logits
    }

    /// The `i`-th row of [`Self::logits`].
    pub(crate) fn logits_row(&self, i: usize) -> &[f32] {
        self.output.row(i)
    }
}

/// What belongs to the first `n` of `n_rows` rows.
fn head(values: &[f32], n: usize, n_rows: usize) -> &[f32] {
    &values[..values.len() / n_rows * n]
}
