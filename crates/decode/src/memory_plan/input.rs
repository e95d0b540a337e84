//! What is asked of a memory plan by name.

/// What grammars that answers keep to take; the default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrammarInput {
    /// Bytes of what compiles them, and of one that is compiled.
    pub shared_bytes: u64,
    /// Bytes of one that is followed: each conversation may have one.
    pub live_bytes: u64,
}

/// What drafts take; the default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftInput {
    /// Bytes of the drafter itself: weights, caches, buffers.
    pub bytes: u64,
    /// Values that are tapped of each row of a step.
    pub tapped: usize,
    /// Most rows of a step that verifies a draft.
    pub rows: usize,
}
