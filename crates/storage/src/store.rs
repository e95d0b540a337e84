//! Keys in, filled slots out: the seam between storage and scheduler.

use forerun_arena::{ReadLease, WriteLease};
use forerun_model::{ExpertKey, Nanos, PartOffsets};

use crate::StoreError;

/// A key that the store didn't take, with the lease that came with it.
#[derive(Debug)]
pub struct Refused {
    /// The slot, untouched.
    pub lease: WriteLease,
    /// Why.
    pub reason: RefusedReason,
}

/// Why [`ExpertStore::begin`] didn't take a key.
#[derive(Debug)]
pub enum RefusedReason {
    /// The queue is full: try again after the next completion.
    QueueFull,
    /// The key can never be read into this slot: don't try again.
    Never(StoreError),
}

/// A fetch that is over.
#[derive(Debug)]
pub struct Fetched {
    /// What was asked for.
    pub key: ExpertKey,
    /// The expert's bytes, or why they can't be had after all retries. A failed fetch's slot is free again.
    pub result: Result<Filled, StoreError>,
}

/// A slot that holds an expert.
#[derive(Clone, Debug)]
pub struct Filled {
    /// The bytes.
    pub lease: ReadLease,
    /// Where gate, up and down begin.
    pub parts: PartOffsets,
    /// Bytes that were read from the file for it.
    pub read_bytes: u64,
}

/// Keys in, filled slots out. Never blocks except in [`ExpertStore::wait`]; owns a lease from `begin` until it
/// comes back.
pub trait ExpertStore: Send {
    /// Starts to fill `slot` with `key`.
    ///
    /// # Errors
    /// [`Refused`] gives the lease back: the queue is full (try later), or the key is unknown or the slot too small
    /// (don't).
    fn begin(&mut self, key: ExpertKey, slot: WriteLease) -> Result<(), Refused>;

    /// Moves finished fetches into `done`. Sleeps until there is one, or the clock passes `until`, or nothing is in
    /// flight.
    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>);

    /// What this store has done so far.
    fn stats(&self) -> StoreStats;
}

/// Counts since the store was made; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Reads handed to the system: one per fetch, plus one per resumed or repeated read.
    pub n_reads: u64,
    /// Bytes that arrived.
    pub read_bytes: u64,
    /// Reads that resumed where a short one ended.
    pub n_resumed: u64,
    /// Reads that repeated one which failed.
    pub n_retries: u64,
    /// Fetches that failed for good.
    pub n_failed: u64,
}
