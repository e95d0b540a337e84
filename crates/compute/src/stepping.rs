//! The step under way: whose rows it has, how far it has come, and what may be done with it. The same for every backend.

use crate::ComputeError;
use crate::backend::{Row, Step};

/// A part of the step.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The sequence's index.
    pub sequence: usize,
    /// Tokens that the sequence held before.
    pub past: usize,
    /// Its first row in the step.
    pub first: usize,
    /// Its rows.
    pub n_rows: usize,
    /// Whether fewer than all of them may be accepted.
    pub may_reject: bool,
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
pub struct Current {
    parts: Vec<Placed>,
    n_rows: usize,
    /// Results of experts that `close_layer` still waits for.
    pub missing: usize,
    phase: Phase,
}

/// What bounds a step.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most rows of a step.
    pub rows_max: usize,
    /// Most rows of a part of which fewer may be accepted.
    pub log_rows: usize,
    /// Tokens that a sequence has room for.
    pub context: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Sequences.
    pub n_sequences: usize,
}

impl Current {
    /// No step, with room for one of `n_sequences` parts.
    pub fn with_capacity(n_sequences: usize) -> Self {
        Self { parts: Vec::with_capacity(n_sequences), ..Self::default() }
    }

    /// Parts of the step under way.
    ///
    /// # Panics
    /// When there is no step: the caller broke the order of calls.
    pub fn parts(&self) -> &[Placed] {
        assert!(self.phase != Phase::Idle, "begin() comes first");
        &self.parts
    }

    /// Rows of the step under way.
    ///
    /// # Panics
    /// As [`Self::parts`].
    pub fn n_rows(&self) -> usize {
        assert!(self.phase != Phase::Idle, "begin() comes first");
        self.n_rows
    }

    /// The part that the row belongs to.
    pub fn part_of(&self, row: usize) -> &Placed {
        &self.parts[self.parts.partition_point(|part| part.first <= row) - 1]
    }

    /// Whether `sequence` is in the step under way and not accepted.
    pub fn holds(&self, sequence: usize) -> bool {
        let waits = |part: &Placed| part.sequence == sequence && !part.is_accepted;
        self.phase != Phase::Idle && self.parts.iter().any(waits)
    }

    /// Whether [`Self::let_go`] takes nobody else's rows.
    ///
    /// # Errors
    /// [`ComputeError::Part`] when it would.
    pub fn check_let_go(&self, sequence: usize) -> Result<(), ComputeError> {
        if self.phase == Phase::Finished || !self.holds(sequence) {
            return Ok(());
        }
        let other = self.parts.iter().position(|part| part.sequence != sequence);
        other.map_or(Ok(()), |part| {
            Err(ComputeError::Part { part, rule: "another sequence's rows share the step under way" })
        })
    }

    /// Gives up the rows of `sequence`: with them a step under way, but those of a finished step alone.
    pub fn let_go(&mut self, sequence: usize) {
        if self.phase == Phase::Finished {
            let own = self.parts.iter_mut().filter(|part| part.sequence == sequence);
            own.for_each(|part| part.is_accepted = true);
        } else if self.holds(sequence) {
            self.abandon();
        }
    }

    /// Whether its layers run.
    pub fn is_under_way(&self) -> bool {
        self.phase == Phase::Begun
    }

    /// Forgets the step.
    pub fn abandon(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Begins `step`, which was checked.
    pub fn begin(&mut self, step: &Step<'_>) {
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
    pub fn finish(&mut self) {
        self.phase = Phase::Finished;
    }

    /// Takes the first `n_rows` rows of a part; returns where they are.
    ///
    /// # Errors
    /// [`ComputeError::Accept`] when they can't be, as [`Backend::accept`](crate::Backend::accept) says.
    pub fn accept(&mut self, part: usize, n_rows: usize) -> Result<Placed, ComputeError> {
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

/// Whether `step` can begin while `aside` is put aside; `held` says how many tokens a sequence holds.
///
/// # Errors
/// [`ComputeError`] as [`Backend::begin`](crate::Backend::begin) says.
pub fn check(
    step: &Step<'_>,
    bounds: Bounds,
    held: impl Fn(usize) -> usize,
    aside: &Current,
) -> Result<(), ComputeError> {
    let (rows, rows_max) = (step.rows.len(), bounds.rows_max);
    let counted: usize = step.parts.iter().map(|part| part.n_rows).sum();
    if rows == 0 || rows > rows_max {
        return Err(ComputeError::Rows { rows, rows_max });
    }
    if counted != rows {
        return Err(ComputeError::Counted { rows, counted });
    }
    for (i, part) in step.parts.iter().enumerate() {
        let (sequence, n_sequences) = (part.sequence.0, bounds.n_sequences);
        if sequence >= n_sequences {
            return Err(ComputeError::Sequence { sequence, n_sequences });
        }
        let rows_max = if part.may_reject { rows_max.min(bounds.log_rows) } else { rows_max };
        if part.n_rows == 0 || part.n_rows > rows_max {
            return Err(ComputeError::Rows { rows: part.n_rows, rows_max });
        }
        if step.parts[..i].iter().any(|other| other.sequence == part.sequence) {
            return Err(ComputeError::Part { part: i, rule: "its sequence is in a part before it" });
        }
        let held = held(sequence);
        if part.past != 0 && part.past != held {
            return Err(ComputeError::Past { past: part.past, held });
        }
        if part.past + part.n_rows > bounds.context {
            let (past, rows, context) = (part.past, part.n_rows, bounds.context);
            return Err(ComputeError::ContextFull { past, rows, context });
        }
    }
    let n_vocab = bounds.n_vocab;
    if let Some(row) = step.rows.iter().find(|row: &&Row| row.token.idx() >= n_vocab) {
        return Err(ComputeError::Token { token: row.token.0, n_vocab });
    }
    match step.parts.iter().position(|part| aside.holds(part.sequence.0)) {
        Some(part) => Err(ComputeError::Part { part, rule: "its sequence is in the step put aside" }),
        None => Ok(()),
    }
}
