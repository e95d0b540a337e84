//! What a caller says of guessing, and what is said back.

use forerun_model::Nanos;

/// Which guesses are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Those that save more time than they cost, within the budget of wasted bytes, and only while passes with guesses
    /// are faster than passes without.
    #[default]
    Paying,
    /// All, as they come: for tests, and to show what that costs.
    Open,
}

/// How far a scheduler trusts its predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookaheadConfig {
    /// Most guesses of one layer that are read; 0 for none.
    pub width_max: usize,
    /// Bytes that may be read in vain, in thousandths of those that routers asked for, over the last 64 passes.
    pub extra_permille: u32,
    /// Which guesses are read.
    pub gate: Gate,
    /// Time that a busy disk takes for one expert, from a probe; what happens corrects it.
    pub read: Option<Nanos>,
    /// Most time for which a guess holds up demands once it is given up; `None`: it is read to its end.
    pub hold: Option<Nanos>,
}

impl Default for LookaheadConfig {
    fn default() -> Self {
        Self { width_max: 8, extra_permille: 100, gate: Gate::Paying, read: None, hold: None }
    }
}

impl LookaheadConfig {
    /// Everything that is guessed is read.
    pub fn open() -> Self {
        Self { width_max: usize::MAX, gate: Gate::Open, ..Self::default() }
    }
}

/// A decision that changed while the model ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What was decided.
    pub choice: String,
    /// Why.
    pub reason: String,
}
