//! What a sequence holds leaves the stack, and comes back.

use std::io::{Read, Write};
use std::ops::Range;

use super::Stack;
use crate::products::Products;
use crate::sequence::Checkpoint;
use crate::{ComputeError, SequenceIdx};

impl<P: Products> Stack<P> {
    /// As [`Backend::save_rows`](crate::Backend::save_rows).
    pub(super) fn write_rows(
        &self,
        SequenceIdx(sequence): SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError> {
        let n_sequences = self.sequences.len();
        let held = self.sequences.get(sequence).ok_or(ComputeError::Sequence { sequence, n_sequences })?;
        if rows.start > rows.end || rows.end > held.len {
            return Err(ComputeError::SavedRows { first: rows.start, end: rows.end, held: held.len });
        }
        held.save_rows(rows, out).map_err(|source| ComputeError::SavedBytes { source })
    }

    /// As [`Backend::load`](crate::Backend::load).
    pub(super) fn read_rows(
        &mut self,
        SequenceIdx(sequence): SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError> {
        let (n_sequences, context) = (self.sequences.len(), self.config.context);
        let held =
            self.sequences.get_mut(sequence).ok_or(ComputeError::Sequence { sequence, n_sequences })?;
        let (found, need) = (checkpoint.values.len(), held.n_state_values());
        if found != need {
            return Err(ComputeError::SavedState { found, need });
        }
        if checkpoint.len > context {
            return Err(ComputeError::ContextFull { past: checkpoint.len, rows: 0, context });
        }
        // Both are asked before either changes.
        self.step.check_let_go(sequence)?;
        self.aside.step.check_let_go(sequence)?;
        self.step.let_go(sequence);
        self.aside.step.let_go(sequence);
        held.load(checkpoint, rows).map_err(|source| ComputeError::SavedBytes { source })
    }
}
