//! What the toy remembers of its sequences, and of the step under way.

use std::collections::BTreeSet;

use forerun_compute::{Checkpoint, ComputeError, Part};
use forerun_model::ExpertId;

/// Values of the toy's residual stream.
pub(super) const WIDTH: usize = 8;

pub(super) type Vector = [f32; WIDTH];

/// What a sequence has accepted.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) n_tokens: usize,
    /// Depends on every token.
    pub(super) hash: u64,
    /// The recurrent state of each layer.
    pub(super) states: Vec<Vector>,
}

impl History {
    /// What `checkpoint` says, if it is one of such a model: the bits of the hash, and the states.
    pub(super) fn of(checkpoint: &Checkpoint, n_layers: u16) -> Option<Self> {
        let [high, low, states @ ..] = &checkpoint.values[..] else { return None };
        (states.len() == usize::from(n_layers) * WIDTH).then(|| Self {
            n_tokens: checkpoint.len,
            hash: u64::from(high.to_bits()) << 32 | u64::from(low.to_bits()),
            states: states.as_chunks().0.to_vec(),
        })
    }
}

/// One row of the step.
#[derive(Clone, Debug)]
pub(super) struct RowState {
    pub(super) wants_logits: bool,
    pub(super) x: Vector,
    /// The sequence after this row.
    pub(super) after: History,
    /// The open layer's results, by rank, and their weights.
    pub(super) results: Vec<Option<Vector>>,
}

/// How far the step has come; the calls have one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No step.
    Idle,
    /// The next layer to mix.
    Layer(u16),
    /// The layer whose experts run.
    Experts(u16),
    /// Logits were made.
    Finished,
}

/// A part of a step.
#[derive(Clone, Debug)]
pub(super) struct PartState {
    pub(super) part: Part,
    /// Its first row.
    pub(super) first: usize,
    /// The recurrent states before its first row.
    pub(super) states: Vec<Vector>,
    pub(super) is_accepted: bool,
}

/// A step under way, or put aside.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) phase: Phase,
    pub(super) parts: Vec<PartState>,
    pub(super) rows: Vec<RowState>,
    pub(super) missing: BTreeSet<ExpertId>,
    pub(super) shared_ran: bool,
}

impl Lane {
    pub(super) fn new() -> Self {
        let (parts, rows, missing) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { phase: Phase::Idle, parts, rows, missing, shared_ran: false }
    }

    pub(super) fn holds(&self, sequence: usize) -> bool {
        self.phase != Phase::Idle
            && self.parts.iter().any(|part| part.part.sequence.0 == sequence && !part.is_accepted)
    }

    /// Refuses where giving up the rows of `sequence` would take those of others.
    pub(super) fn check_let_go(&self, sequence: usize) -> Result<(), ComputeError> {
        let other = self.parts.iter().position(|part| part.part.sequence.0 != sequence);
        match other {
            Some(part) if self.holds(sequence) && self.phase != Phase::Finished => {
                Err(ComputeError::Part { part, rule: "another sequence's rows share the step under way" })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn let_go(&mut self, sequence: usize) {
        if self.phase == Phase::Finished {
            let own = self.parts.iter_mut().filter(|part| part.part.sequence.0 == sequence);
            own.for_each(|part| part.is_accepted = true);
        } else if self.holds(sequence) {
            self.phase = Phase::Idle;
        }
    }
}
