//! How often, and after which wait, a failed request is sent again.

use std::time::Duration;

use super::error::PullError;

const WAIT_FIRST: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(30);
const WAIT_FACTOR: u32 = 4;
/// Most failures of one file, however many bytes came between them.
const FAILURES_MAX: u32 = 1000;

/// Counts the failures of one file.
#[derive(Debug)]
pub(crate) struct Tries {
    /// Most tries without a new byte.
    most: u32,
    /// Failures since the last new byte.
    idle: u32,
    all: u32,
    /// Bytes that were reached; what comes again after a restart is no progress.
    best: u64,
}

impl Tries {
    /// At most `most` tries without a new byte.
    pub(crate) fn new(most: u32) -> Self {
        Self { most, idle: 0, all: 0, best: 0 }
    }

    /// How long to wait after a failure with `have` bytes there.
    ///
    /// # Errors
    /// The failure itself if trying again can't help; [`PullError::GivenUp`] if it did not help often enough.
    pub(crate) fn after(&mut self, error: PullError, have: u64) -> Result<Duration, PullError> {
        if !error.is_transient() {
            return Err(error);
        }
        if have > self.best {
            (self.best, self.idle) = (have, 0);
        }
        self.idle += 1;
        self.all += 1;
        if self.idle >= self.most || self.all >= FAILURES_MAX {
            return Err(match self.idle {
                1 if self.most == 1 => error,
                tries => PullError::GivenUp { tries, source: Box::new(error) },
            });
        }
        let wait = WAIT_FIRST.saturating_mul(WAIT_FACTOR.saturating_pow(self.idle - 1)).min(WAIT_MAX);
        Ok(error.retry_after().map_or(wait, |asked| asked.max(wait)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::error::Subject;

    fn subject() -> Subject {
        Subject { repo: "o/n".into(), file: Some("m.gguf".into()) }
    }

    fn dropped() -> PullError {
        PullError::Dropped { subject: subject(), got: 0, expected: 1 }
    }

    fn busy(seconds: u64) -> PullError {
        let retry_after = Some(Duration::from_secs(seconds));
        PullError::Busy { subject: subject(), status: 429, retry_after, has_token: false }
    }

    #[test]
    fn waits_grow_until_bytes_come() {
        let mut tries = Tries::new(8);
        let mut wait = |have| tries.after(dropped(), have).unwrap().as_millis();
        assert_eq!([wait(0), wait(0), wait(0)], [50, 200, 800]);
        assert_eq!([wait(9), wait(9)], [50, 200]);
        assert_eq!([wait(5), wait(9)], [800, 3200], "bytes that come again are no progress");
        assert_eq!([wait(9), wait(9)], [12_800, 30_000]);
    }

    #[test]
    fn tries_are_bounded() {
        let mut tries = Tries::new(2);
        tries.after(dropped(), 0).unwrap();
        assert!(matches!(tries.after(dropped(), 0), Err(PullError::GivenUp { tries: 2, .. })));
        let mut tries = Tries::new(8);
        let n = (1..).take_while(|have| tries.after(dropped(), *have).is_ok()).count();
        assert_eq!(n, 999, "one byte a connection isn't patience for ever");
    }

    #[test]
    fn a_server_may_ask_for_patience_within_bounds() {
        assert_eq!(Tries::new(3).after(busy(7), 0).unwrap(), Duration::from_secs(7));
        let error = Tries::new(3).after(busy(86_400), 0).unwrap_err();
        assert!(error.to_string().contains("status 429") && error.to_string().contains("86400 s"), "{error}");
    }

    #[test]
    fn what_can_not_get_better_is_not_tried_again() {
        let error = PullError::NotFound { subject: subject() };
        assert!(matches!(Tries::new(3).after(error, 0), Err(PullError::NotFound { .. })));
    }
}
