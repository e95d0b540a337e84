//! What a flash may do wrong: errors, stalls, short reads, flipped bits.

use forerun_model::Nanos;

/// How often each fault happens, in permille of reads; each kind can be switched on alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A read that fails with an error of the device and succeeds when it is repeated.
    pub eio_permille: u32,
    /// A read that is interrupted by a signal, or finds the system busy, in turn.
    pub interrupted_permille: u32,
    /// A read that ends early, with at least one byte.
    pub short_permille: u32,
    /// A read that takes [`Faults::stall`] longer than the others.
    pub stall_permille: u32,
    /// How much longer.
    pub stall: Nanos,
    /// A read that fails, and fails again however often it is repeated. Not survivable.
    pub dead_permille: u32,
    /// A read that succeeds with one wrong bit. Not survivable without checksums.
    pub flip_permille: u32,
    /// Every file ends here. Not survivable.
    pub truncate_bytes: Option<u64>,
}

impl Faults {
    /// Most errors, interruptions and short reads in a row that a survivable kind brings to one read: a store that
    /// repeats more often than this survives.
    pub const IN_A_ROW_MAX: u32 = 2;

    /// A flash without fault.
    pub fn none() -> Self {
        Self::default()
    }

    /// Every kind that an engine must survive without a trace in its output.
    pub fn survivable() -> Self {
        Self {
            eio_permille: 60,
            interrupted_permille: 60,
            short_permille: 150,
            stall_permille: 40,
            stall: Nanos::from_millis(20),
            ..Self::none()
        }
    }

    /// A device that fails for good, for so many of 1,000 reads.
    pub fn dead(permille: u32) -> Self {
        Self { dead_permille: permille, ..Self::none() }
    }

    /// A device that flips a bit in so many of 1,000 reads, and says nothing.
    pub fn flips(permille: u32) -> Self {
        Self { flip_permille: permille, ..Self::none() }
    }

    /// Files that were cut to `len_bytes`.
    pub fn truncated(len_bytes: u64) -> Self {
        Self { truncate_bytes: Some(len_bytes), ..Self::none() }
    }
}
