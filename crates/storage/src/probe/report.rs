//! What a probe found, and what follows from it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::device::Device;
use crate::MergeLimits;

/// Of the probe's procedure and of the report's fields: results of another version are measured anew.
pub const VERSION: u32 = 2;

/// Deepest queue that is tried.
pub const DEPTH_MAX: usize = 8;

/// Longest gap that is ever worth reading; the store has memory for a few of them.
pub const GAP_BYTES_MAX: u32 = 256 << 10;

/// Longest read of several records that is ever worth it: a longer one makes its first record wait for the last.
pub const MERGED_BYTES_MAX: u32 = 8 << 20;

/// What reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Linux's io_uring.
    Uring,
    /// Positioned reads on threads.
    Pread,
}

/// Whether the system's page cache takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Past it.
    Direct,
    /// Through it, the pages not in it.
    Cached,
}

/// How fast one way of reading was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// What read.
    pub method: Method,
    /// Whether the page cache took part.
    pub access: Access,
    /// Reads at once.
    pub depth: usize,
    /// Bytes of each read.
    pub read_bytes: u64,
    /// Reads that were measured.
    pub n_reads: u64,
    /// The better of the rounds.
    pub bytes_per_second: u64,
}

/// A way of reading that wasn't measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What should have read.
    pub method: Method,
    /// Whether the page cache would have taken part.
    pub access: Access,
    /// Why not.
    pub reason: String,
}

/// One thing that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What was to be decided.
    pub what: String,
    /// What it became.
    pub choice: String,
    /// Why.
    pub reason: String,
}

/// How to read from this disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// What reads.
    pub method: Method,
    /// Whether the page cache takes part.
    pub access: Access,
    /// Reads at once.
    pub depth: usize,
    /// Most that this way gave at any depth; `None` when nothing could be measured.
    pub bytes_per_second: Option<u64>,
    /// Bytes that could be read in the time that one more request costs.
    pub gap_bytes_max: u32,
    /// A read of this length has 95 % of full speed; not yet raised to two records.
    pub full_speed_bytes: u32,
    /// Each decision, and why.
    pub reasons: Vec<Reason>,
}

impl Choice {
    /// What is to be read together, for records of `record_bytes`.
    pub fn merge(&self, record_bytes: u64) -> MergeLimits {
        let records = u32::try_from(record_bytes.saturating_mul(2)).unwrap_or(u32::MAX);
        let merged_bytes_max = self.full_speed_bytes.max(records);
        MergeLimits { gap_bytes_max: self.gap_bytes_max, merged_bytes_max }
    }
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// [`VERSION`] of the probe.
    pub version: u32,
    /// The disk.
    pub device: Device,
    /// Bytes that one expert's longest range has.
    pub record_bytes: u64,
    /// What direct reads must be multiples of; `None` when there are none.
    pub align_bytes: Option<u32>,
    /// What was measured, with records.
    pub rates: Vec<Rate>,
    /// Short reads at the chosen depth, which tell what a request costs.
    pub small: Option<Rate>,
    /// What wasn't measured.
    pub missing: Vec<Missing>,
    /// What follows.
    pub choice: Choice,
    /// How long it took.
    pub took_ms: f64,
}

impl ProbeReport {
    /// Whether it can have come from a probe of this version: a file may hold anything.
    pub(super) fn is_sane(&self) -> bool {
        let choice = &self.choice;
        self.version == VERSION
            && (1..=DEPTH_MAX).contains(&choice.depth)
            && choice.bytes_per_second != Some(0)
            && choice.gap_bytes_max <= GAP_BYTES_MAX
            && choice.full_speed_bytes <= MERGED_BYTES_MAX
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Uring => "uring",
            Self::Pread => "pread",
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Cached => "cached",
        })
    }
}
