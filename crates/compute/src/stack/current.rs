//! The step under way: whose rows it has, and how far it has come.

use crate::ComputeError;
use crate::backend::{Row, Step};
use crate::sequence::Sequence;

/// A part of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) sequence: usize,
    pub(super) past: usize,
    /// Its first row in the step.
    pub(super) first: usize,
    pub(super) n_rows: usize,
    pub(super) may_reject: bool,
    is_accepted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No step.
    #[default]
    Idle,
    /// Layers run.
    Begun,
    /// Logits were made.
    Finished,
}

/// The step under way, if there is one; kept between steps for its memory.
#[derive(Debug, Default)]
pub(super) struct Current {
    parts: Vec<Placed>,
    n_rows: usize,
    /// Results of experts that `close_layer` still waits for.
    pub(super) missing: usize,
    phase: Phase,
}

/// What bounds a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) rows_max: usize,
    pub(super) log_rows: usize,
    pub(super) context: usize,
    pub(super) n_vocab: usize,
}

impl Current {
    pub(super) fn with_capacity(n_sequences: usize) -> Self {
        Self { parts: Vec::with_capacity(n_sequences), ..Self::default() }
    }

    /// Parts of the step under way.
    ///
    /// # Panics
    /// When there is no step: the caller broke the order of calls.
    pub(super) fn parts(&self) -> &[Placed] {
        assert!(self.phase != Phase::Idle, "begin() comes first");
        &self.parts
    }

    /// Rows of the step under way.
    ///
    /// # Panics
    /// As [`Self::parts`].
    pub(super) fn n_rows(&self) -> usize {
        assert!(self.phase != Phase::Idle, "begin() comes first");
        self.n_rows
    }

    /// The part that the row belongs to.
    pub(super) fn part_of(&self, row: usize) -> &Placed {
        &self.parts[self.parts.partition_point(|part| part.first <= row) - 1]
    }

    /// Whether `sequence` is in the step under way and not accepted.
    pub(super) fn holds(&self, sequence: usize) -> bool {
        let waits = |part: &Placed| part.sequence == sequence && !part.is_accepted;
        self.phase != Phase::Idle && self.parts.iter().any(waits)
    }

    /// Whether [`Self::let_go`] takes nobody else's rows.
    pub(super) fn check_let_go(&self, sequence: usize) -> Result<(), ComputeError> {
        if self.phase == Phase::Finished || !self.holds(sequence) {
            return Ok(());
        }
        let other = self.parts.iter().position(|part| part.sequence != sequence);
        other.map_or(Ok(()), |part| {
            Err(ComputeError::Part { part, rule: "another sequence's rows share the step under way" })
        })
    }

    /// Gives up the rows of `sequence`: with them a step under way, but those of a finished step alone.
    pub(super) fn let_go(&mut self, sequence: usize) {
        if self.phase == Phase::Finished {
            let own = self.parts.iter_mut().filter(|part| part.sequence == sequence);
            own.for_each(|part| part.is_accepted = true);
        } else if self.holds(sequence) {
            self.abandon();
        }
    }

    /// Whether its layers run.
    pub(super) fn is_under_way(&self) -> bool {
        self.phase == Phase::Begun
    }

    /// Forgets the step.
    pub(super) fn abandon(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Begins `step`, which was checked.
    pub(super) fn begin(&mut self, step: &Step<'_>) {
        self.parts.clear();
        let mut first = 0;
        for part in step.parts {
            self.parts.push(Placed {
                sequence: part.sequence.0,
                past: part.past,
                first,
                n_rows: part.n_rows,
                may_reject: part.may_reject,
                is_accepted: false,
            });
            first += part.n_rows;
        }
        self.n_rows = first;
        self.missing = 0;
        self.phase = Phase::Begun;
    }

    /// The logits are there.
    pub(super) fn finish(&mut self) {
        self.phase = Phase::Finished;
    }

    /// Takes the first `n_rows` rows of a part; returns where they are.
    pub(super) fn accept(&mut self, part: usize, n_rows: usize) -> Result<Placed, ComputeError> {
        let refuse = |rows, rule| Err(ComputeError::Accept { accepted: n_rows, rows, rule });
        if self.phase == Phase::Idle {
            return refuse(0, "a step must have been finished");
        }
        let is_finished = self.phase == Phase::Finished;
        let Some(placed) = self.parts.get_mut(part) else { return refuse(0, "the step has fewer parts") };
        let rows = placed.n_rows;
        if placed.is_accepted {
            return refuse(rows, "a part is accepted once");
        }
        if n_rows > rows {
            return refuse(rows, "no more rows than the part has");
        }
        if n_rows > 0 && !is_finished {
            return refuse(rows, "the step must have been finished");
        }
        if n_rows < rows && n_rows > 0 && !placed.may_reject {
            return refuse(rows, "a part can be accepted only of a step that may be rejected");
        }
        placed.is_accepted = true;
        Ok(*placed)
    }
}

/// Whether `step` can begin over `sequences`.
pub(super) fn check(step: &Step<'_>, sequences: &[Sequence], bounds: Bounds) -> Result<(), ComputeError> {
    let (rows, rows_max) = (step.rows.len(), bounds.rows_max);
    let counted: usize = step.parts.iter().map(|part| part.n_rows).sum();
    if rows == 0 || rows > rows_max {
        return Err(ComputeError::Rows { rows, rows_max });
    }
    if counted != rows {
        return Err(ComputeError::Rows { rows, rows_max: counted });
    }
    for (i, part) in step.parts.iter().enumerate() {
        let n_sequences = sequences.len();
        let sequence = sequences.get(part.sequence.0);
        let sequence = sequence.ok_or(ComputeError::Sequence { sequence: part.sequence.0, n_sequences })?;
        let rows_max = if part.may_reject { rows_max.min(bounds.log_rows) } else { rows_max };
        if part.n_rows == 0 || part.n_rows > rows_max {
            return Err(ComputeError::Rows { rows: part.n_rows, rows_max });
        }
        if step.parts[..i].iter().any(|other| other.sequence == part.sequence) {
            return Err(ComputeError::Part { part: i, rule: "its sequence is in a part before it" });
        }
        if part.past != 0 && part.past != sequence.len {
            return Err(ComputeError::Past { past: part.past, held: sequence.len });
        }
        if part.past + part.n_rows > bounds.context {
            let (past, rows, context) = (part.past, part.n_rows, bounds.context);
            return Err(ComputeError::ContextFull { past, rows, context });
        }
    }
    let n_vocab = bounds.n_vocab;
    match step.rows.iter().find(|row: &&Row| row.token.idx() >= n_vocab) {
        Some(row) => Err(ComputeError::Token { token: row.token.0, n_vocab }),
        None => Ok(()),
    }
}
