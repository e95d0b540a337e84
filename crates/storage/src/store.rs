//! Keys in, filled slots out: the seam between storage and scheduler.

use forerun_arena::{ReadLease, WriteLease};
use forerun_model::{ExpertKey, LayerId, Nanos, PartOffsets};

use crate::{Priority, StoreError};

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
    /// The expert's bytes, or why they can't be had after all retries. The slot of a fetch that failed, or was given up,
    /// is free again.
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

/// An expert that can be used where it lies, without a slot.
#[derive(Clone, Debug)]
pub struct Lent {
    /// Bytes that hold the expert, and perhaps others, such as a mapping of a whole file.
    pub lease: ReadLease,
    /// Where gate, up and down begin in them.
    pub parts: PartOffsets,
}

/// A guess that was taken back, and of which nothing is being read.
#[derive(Debug)]
pub struct Withdrawn {
    /// What was guessed.
    pub key: ExpertKey,
    /// The slot, whose bytes mean nothing.
    pub lease: WriteLease,
    /// Bytes that were read for it in vain.
    pub read_bytes: u64,
}

/// Keys in, filled slots out. Never blocks except in [`ExpertStore::wait`]; owns a lease from `begin` until it
/// comes back.
pub trait ExpertStore: Send {
    /// Takes on to fill `slot` with `key`. Keys that are begun together are read together where they lie side by side,
    /// so the reading begins with the next [`Self::start`] or [`Self::wait`]. A guess may be read in pieces instead, so
    /// that a demand passes it half-way.
    ///
    /// A key is begun again only after its last fetch came back, for [`Fetched`] tells fetches apart by their keys: one
    /// that was given up is waited for first.
    ///
    /// # Errors
    /// [`Refused`] gives the lease back: the queue is full (try later), or the key is unknown or the slot too small
    /// (don't).
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused>;

    /// Starts to read what was begun: demands first, each in the order of the file.
    fn start(&mut self);

    /// Makes a guess that was begun a demand: what of it isn't being read yet goes before all guesses. Nothing is read
    /// twice for it. A guess that was given up stays so: when it came back, it can be begun anew.
    fn promote(&mut self, key: ExpertKey);

    /// Takes back guesses, those of `layer` or all with `None`, as far as that saves anything. One of which nothing is
    /// being read comes back in `withdrawn`, at once. One that was read in part is *given up*, if the store can: no more
    /// of it is begun, and when the disk is done with it, it comes back from [`Self::wait`] as
    /// [`StoreError::GivenUp`]. One of which all was begun is read to its end, as if it had not been asked for.
    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>);

    /// Moves finished fetches into `done`, with those that failed or were given up. Sleeps until there is one, or the
    /// clock passes `until`, or nothing is in flight.
    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>);

    /// The expert where it lies, if it can be used there: at once, without a slot and without an allocation. Whoever
    /// asks does so before [`Self::begin`], and again for every use, and trusts what was computed from it only after
    /// [`Self::check_lent`].
    fn lend(&mut self, _key: ExpertKey) -> Option<Lent> {
        None
    }

    /// Whether [`Self::lend`] would lend the expert now. Asking changes nothing.
    fn can_lend(&self, _key: ExpertKey) -> bool {
        false
    }

    /// Looks whether all that was lent since the last look is still what it was.
    ///
    /// # Errors
    /// [`StoreError::Changed`]: what was computed from it is not to be used. Nothing is lent from then on.
    fn check_lent(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Lends nothing from now on, and lets go of what lending takes: a caller needs the memory.
    fn stop_lending(&mut self) {}

    /// What this store has done so far.
    fn stats(&self) -> StoreStats;
}

/// Counts since the store was made; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Reads that came back: each is one call of the system, where it reads into several buffers at once.
    pub n_reads: u64,
    /// Those of `n_reads` that were for several experts at once; one that was resumed counts once.
    pub n_merged: u64,
    /// Bytes that arrived, with those between wanted ones.
    pub read_bytes: u64,
    /// Reads that resumed where a short one ended.
    pub n_resumed: u64,
    /// Reads that repeated one which failed.
    pub n_retries: u64,
    /// Records that were read again because their checksum was wrong.
    pub n_corrupt: u64,
    /// Guesses that were taken back before anything was read for them.
    pub n_withdrawn: u64,
    /// Guesses that were taken back when they had been read in part, or were being read.
    pub n_given_up: u64,
    /// Fetches that failed for good.
    pub n_failed: u64,
}
