//! Time that moves when told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_model::{Clock, Nanos};

/// A clock that stands still until somebody moves it; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves on to `time`; never back.
    pub fn advance_to(&self, time: Nanos) {
        self.0.fetch_max(time.0, Ordering::Relaxed);
    }

    /// Moves on by `span`.
    pub fn advance(&self, span: Nanos) {
        self.advance_to(self.now() + span);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_for_all_clones_and_never_back() {
        let clock = VirtualClock::new();
        let other = clock.clone();
        clock.advance(Nanos(5));
        other.advance_to(Nanos(3));
        assert_eq!((clock.now(), other.now()), (Nanos(5), Nanos(5)));
    }
}
