//! When two results of a backend count as the same.

use std::fmt::Display;

use super::difference;

/// When two results count as the same.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tolerance {
    /// Bit for bit.
    Bits,
    /// No value is off by more.
    Within(f32),
}

impl Tolerance {
    /// Both are the same.
    #[track_caller]
    pub(crate) fn same(self, found: &[f32], want: &[f32], what: impl Display) {
        assert_eq!(found.len(), want.len(), "{what}: other sizes");
        assert!(self.holds(found, want), "{what}: off by {}", difference(found, want));
    }

    /// The two are told apart, so that [`Self::same`] says something.
    #[track_caller]
    pub(crate) fn differ(self, found: &[f32], other: &[f32], what: impl Display) {
        assert!(!self.holds(found, other), "{what}: no difference");
    }

    fn holds(self, found: &[f32], want: &[f32]) -> bool {
        let mut pairs = found.iter().zip(want);
        match self {
            Self::Bits => pairs.all(|(a, b)| a.to_bits() == b.to_bits()),
            // What isn't a number is off by more.
            Self::Within(bound) => pairs.all(|(a, b)| (a - b).abs() <= bound),
        }
    }
}
