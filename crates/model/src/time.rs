//! Time as the layers see it: a number that a clock hands out.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Instant;

/// A point in time or a span, in nanoseconds; points count from the clock's own start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than every point that a clock reaches: "wait as long as it takes".
    pub const MAX: Self = Self(u64::MAX);

    /// A span of whole microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// A span of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// So many times the span, rounded down; nothing for a negative factor.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "such casts saturate")]
    #[expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 24 bits")]
    pub fn times(self, factor: f32) -> Self {
        Self((self.0 as f32 * factor) as u64)
    }

    /// The span in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "a report needs no more than 53 bits")]
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.as_millis_f64())
    }
}

/// Where time comes from; a simulation hands in its own.
pub trait Clock: Send + Sync {
    /// The time now; never goes back.
    fn now(&self) -> Nanos;
}

/// The machine's monotonic clock, counted from the moment this value was made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that reads zero now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
