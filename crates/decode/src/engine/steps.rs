//! Runs steps: plain ones, which are accepted whole, and those that verify a draft, of which a part may be. A step has
//! tokens of one sequence or of several.

use std::iter::once;
use std::mem;

use forerun_compute::{Checkpoint, Part, Row, SequenceIdx, Step};
use forerun_model::{Position, TokenId};

use super::{Engine, Logits};
use crate::DecodeError;
use crate::draft::Seen;
use crate::telemetry::Decision;

/// Consecutive text tokens of one sequence that are to be read in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) sequence: SequenceIdx,
    /// Tokens that the sequence holds already.
    pub(crate) past: usize,
    pub(crate) tokens: &'a [TokenId],
    pub(crate) wish: Logits,
    /// Whether fewer than all may be accepted.
    pub(crate) may_reject: bool,
}

/// Where a share is in its step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Its index.
    pub(crate) part: usize,
    /// The index of its first logits among those of the step.
    pub(crate) first_logits: usize,
}

/// A step under way, or put aside.
#[derive(Debug, Default)]
pub(super) struct Pass {
    rows: Vec<Row>,
    parts: Vec<Part>,
    next_layer: usize,
    /// Whether it was put aside and isn't over.
    pub(super) is_waiting: bool,
}

impl Engine {
    /// Runs one step over consecutive text tokens that follow `past` ones and accepts them. The logits that are wanted
    /// are then [`Self::logits`].
    ///
    /// # Errors
    /// [`DecodeError`]; what was accepted before stays as it was, and the step can be tried again.
    pub(crate) fn step(
        &mut self,
        sequence: SequenceIdx,
        past: usize,
        tokens: &[TokenId],
        wish: Logits,
    ) -> Result<(), DecodeError> {
        self.run(once(Share { sequence, past, tokens, wish, may_reject: false }))?;
        self.accept(0, past, tokens)
    }

    /// Runs one step over `shares`, each of another sequence, and leaves it open: the logits that are wanted are there, and
    /// [`Self::accept`] says for each share how many of its rows are kept. One that isn't accepted before the next step is as
    /// if it had not been.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(crate) fn run<'s>(&mut self, shares: impl Iterator<Item = Share<'s>>) -> Result<(), DecodeError> {
        self.begin(shares)?;
        while !self.advance()? {}
        Ok(())
    }

    /// Begins such a step, whose layers are then run one by one.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(crate) fn begin<'s>(&mut self, shares: impl Iterator<Item = Share<'s>>) -> Result<(), DecodeError> {
        self.relieve();
        self.pass.rows.clear();
        self.pass.parts.clear();
        self.pass.next_layer = 0;
        for share in shares {
            let Share { sequence, past, tokens, wish, may_reject } = share;
            let rows_max = self.plan.logit_rows;
            if wish == Logits::All && tokens.len() > rows_max {
                return Err(DecodeError::LogitRows { rows: tokens.len(), rows_max });
            }
            let first = u32::try_from(past).unwrap_or(u32::MAX);
            let last = tokens.len().saturating_sub(1);
            self.pass.rows.extend((first..).zip(tokens).enumerate().map(|(i, (position, &token))| Row {
                token,
                position: Position::text(position),
                wants_logits: wish == Logits::All || (wish == Logits::Last && i == last),
            }));
            self.pass.parts.push(Part { sequence, past, n_rows: tokens.len(), may_reject });
            if past == 0 {
                // The backend forgets what it held when the step begins.
                self.sequence(sequence).epoch += 1;
                self.cut(sequence, 0);
            }
        }
        let step = Step { parts: &self.pass.parts, rows: &self.pass.rows };
        self.steps.begin(&mut *self.backend, &mut self.scheduler, &step)
    }

    /// Runs the next layer of the step; `true` when it was the last and the logits are there.
    ///
    /// # Errors
    /// As [`Self::step`]; the step is over then.
    pub(crate) fn advance(&mut self) -> Result<bool, DecodeError> {
        let Self { steps, backend, scheduler, pass, output, .. } = self;
        steps.layer(&mut **backend, scheduler, pass.next_layer)?;
        pass.next_layer += 1;
        if pass.next_layer < steps.n_layers() {
            return Ok(false);
        }
        steps.finish(&mut **backend, scheduler, output)?;
        Ok(true)
    }

    /// Puts the step under way aside, between two layers, so that another can run.
    pub(crate) fn put_aside(&mut self) {
        self.pass.is_waiting = true;
        self.exchange();
    }

    /// Goes on with the step that was put aside.
    pub(crate) fn take_up(&mut self) {
        self.exchange();
        self.pass.is_waiting = false;
        self.scheduler.begin_pass(self.pass.rows.len());
    }

    fn exchange(&mut self) {
        self.backend.exchange();
        mem::swap(&mut self.pass, &mut self.aside);
    }

    /// Where the share `part` of the step is.
    pub(crate) fn place(&self, part: usize) -> Place {
        let rows = self.rows_before(part);
        let first_logits = self.pass.rows[..rows].iter().filter(|row| row.wants_logits).count();
        Place { part, first_logits }
    }

    fn rows_before(&self, part: usize) -> usize {
        self.pass.parts[..part].iter().map(|part| part.n_rows).sum()
    }

    /// Keeps the first rows of the share `part` of the step, those of `tokens`, and shows them to its drafter.
    ///
    /// # Errors
    /// [`DecodeError`] when there is no such step.
    pub(crate) fn accept(&mut self, part: usize, past: usize, tokens: &[TokenId]) -> Result<(), DecodeError> {
        self.backend.accept(part, tokens.len())?;
        let SequenceIdx(sequence) = self.pass.parts[part].sequence;
        let (before, n_rows) = (self.rows_before(part), self.pass.rows.len().max(1));
        let of = |values| rows_of(values, before..before + tokens.len(), n_rows);
        let (taps, normed) = (of(&self.output.taps), of(&self.output.normed));
        let seen = Seen { first: past, tokens, taps, normed };
        let held = &mut self.sequences[sequence];
        let observed = held.drafting.as_mut().map(|drafting| drafting.observe(&mut self.scheduler, seen));
        let every = held.checkpoints.every();
        if let Some(Err(error)) = observed {
            self.stop_drafting(SequenceIdx(sequence), &error);
        }
        let len = past + tokens.len();
        match every {
            Some(every) if past / every != len / every => self.keep_checkpoint(SequenceIdx(sequence), len),
            _ => Ok(()),
        }
    }

    /// Gives drafting up: an answer needs none.
    pub(super) fn stop_drafting(&mut self, sequence: SequenceIdx, error: &DecodeError) {
        if let Some(drafting) = self.sequence(sequence).drafting.take() {
            let reason = format!("`{}` failed and is off from here on: {error}", drafting.name());
            self.decisions.push(Decision::new("draft", "none", reason));
        }
    }

    /// Remembers how the sequence is now, at `len` tokens, if checkpoints may be kept.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub(crate) fn keep_checkpoint(&mut self, sequence: SequenceIdx, len: usize) -> Result<(), DecodeError> {
        if let Some(mut checkpoint) = self.sequence(sequence).checkpoints.room(len) {
            self.backend.save(sequence, &mut checkpoint)?;
            self.sequence(sequence).checkpoints.keep(checkpoint);
        }
        Ok(())
    }

    /// The same for a place where the next prompt may go on otherwise: it outlives those that are kept on the way.
    ///
    /// # Errors
    /// As [`Self::keep_checkpoint`].
    pub(crate) fn pin_checkpoint(&mut self, sequence: SequenceIdx, len: usize) -> Result<(), DecodeError> {
        self.sequence(sequence).checkpoints.pin(len);
        self.keep_checkpoint(sequence, len)
    }

    /// How far the sequence can be cut back, when it is to hold at most `len` of its tokens: to its last checkpoint, 0 when
    /// there is none. A model without recurrent states needs none.
    pub(crate) fn cut_point(&self, SequenceIdx(sequence): SequenceIdx, len: usize) -> usize {
        if Checkpoint::bytes(&self.shape) == 0 {
            return len;
        }
        self.sequences[sequence].checkpoints.best(len).map_or(0, |checkpoint| checkpoint.len)
    }

    /// Cuts the sequence back to its [cut point](Self::cut_point) for `len` tokens; returns its length.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub(crate) fn cut_back(&mut self, sequence: SequenceIdx, len: usize) -> Result<usize, DecodeError> {
        let kept = self.cut_point(sequence, len);
        if kept > 0 {
            let anywhere = Checkpoint { len: kept, values: Vec::new() };
            let best = self.sequences[sequence.0].checkpoints.best(kept);
            self.backend.restore(sequence, best.filter(|best| best.len == kept).unwrap_or(&anywhere))?;
        }
        self.cut(sequence, kept);
        Ok(kept)
    }

    /// Forgets what is known of the sequence beyond `len` tokens.
    fn cut(&mut self, sequence: SequenceIdx, len: usize) {
        let held = self.sequence(sequence);
        held.checkpoints.forget_after(len);
        if let Some(drafting) = &mut held.drafting {
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

/// What belongs to some of `n_rows` rows.
fn rows_of(values: &[f32], rows: std::ops::Range<usize>, n_rows: usize) -> &[f32] {
    let width = values.len() / n_rows;
    &values[rows.start * width..rows.end * width]
}
