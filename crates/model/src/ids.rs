//! Layer, expert and token ids as types of their own, so that they can't be mixed up.

use std::fmt;

/// Index of a trunk layer, 0-based.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub u16);

/// Index of a routed expert inside its layer, 0-based.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertId(pub u16);

/// Index of a token in the vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u32);

/// Names one expert of the whole model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertKey {
    /// Trunk layer.
    pub layer: LayerId,
    /// Expert in that layer.
    pub expert: ExpertId,
}

impl ExpertKey {
    /// The key of `expert` in `layer`.
    pub const fn new(layer: u16, expert: u16) -> Self {
        Self { layer: LayerId(layer), expert: ExpertId(expert) }
    }
}

impl LayerId {
    /// The id as an index.
    pub const fn idx(self) -> usize {
        self.0 as usize
    }
}

impl ExpertId {
    /// The id as an index.
    pub const fn idx(self) -> usize {
        self.0 as usize
    }
}

impl TokenId {
    /// The id as an index.
    pub const fn idx(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

impl fmt::Display for ExpertId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{}", self.0)
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.layer, self.expert)
    }
}
