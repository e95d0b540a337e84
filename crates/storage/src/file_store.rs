//! The store over any backend: turns keys into reads, resumes short ones, repeats failed ones, checks and seals full
//! slots.
//!
//! A *fetch* brings one expert. Its record is up to three ranges of the files; ranges of several fetches that lie side
//! by side become one *read*. So a fetch may need several reads and a read may serve several fetches: the windows of a
//! slot, of which each read holds some, are what joins them again.

mod in_flight;
mod plan;
mod port;
mod settle;
mod withdraw;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use forerun_arena::WriteLease;
use forerun_model::{ExpertKey, LayerId, Nanos};

use crate::placement::Placement;
use crate::{Catalog, Completed, ExpertStore, Fetched, FileSet, Lent, Mapped, MergeLimits, Priority, Read};
use crate::{ReadBackend, Refused, RefusedReason, StoreError, StoreStats, Tag, Withdrawn};
use in_flight::InFlight;
use plan::Gaps;
use port::Port;

/// How often a read is repeated after errors that may pass, and a record whose checksum is wrong.
pub const RETRIES_MAX: u32 = 3;

/// How often a read is repeated after the system interrupted it, which is no failure but must end some time.
pub const INTERRUPTIONS_MAX: u32 = 1000;

/// Whether what was read is compared with its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Only when the file was written to since it was opened.
    #[default]
    Suspicious,
    /// Always, where the file has checksums.
    Always,
}

/// How a [`FileStore`] reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreConfig {
    /// What is read together.
    pub merge: MergeLimits,
    /// What is checked.
    pub verify: Verify,
    /// Longest read for a guess, so that a demand waits no longer than for such a one, and a wrong guess can be given up
    /// half-way. Rounded to whole blocks, and longer for guesses that would fill the queue. `None` reads guesses as
    /// demands are read, and what was begun of them to its end.
    pub bite_bytes: Option<u32>,
}

impl StoreConfig {
    /// Bytes that such a store takes for itself.
    pub fn bytes(&self) -> u64 {
        Gaps::bytes(self.merge)
    }
}

/// Names a fetch that isn't over.
type FetchId = u64;

/// Reads experts from a model's files.
///
/// A short read is resumed where it ended; each one but [`INTERRUPTIONS_MAX`] gains a byte at least, so a record's
/// length bounds them.
pub struct FileStore {
    catalog: Arc<Catalog>,
    files: FileSet,
    port: Port,
    /// What is lent instead of read.
    mapped: Option<Mapped>,
    config: StoreConfig,
    gaps: Gaps,
    /// Begun, not started; in the order of beginning.
    batch: Vec<FetchId>,
    /// Reads that the batch needs at most.
    n_batch_reads: usize,
    fetches: BTreeMap<FetchId, Fetch>,
    in_flight: HashMap<Tag, InFlight>,
    next_id: u64,
    /// Kept for its memory.
    completed: Vec<Completed>,
    /// Over, and not yet handed out.
    done: Vec<Fetched>,
    stats: StoreStats,
}

/// A fetch that isn't over.
struct Fetch {
    key: ExpertKey,
    priority: Priority,
    placement: Placement,
    /// The slot, before the reading begins and after it ended.
    lease: Option<WriteLease>,
    /// Pieces that aren't over.
    n_pieces: usize,
    n_repeats: u32,
    error: Option<StoreError>,
    /// Bytes of it that arrived, of pieces that are over.
    read_bytes: u64,
    /// It was taken back, but some of its pieces are at the disk: it ends with the last of them.
    given_up: bool,
}

impl FileStore {
    /// A store of `catalog`'s experts, which reads `files` through `backend`.
    pub fn new(catalog: Arc<Catalog>, files: FileSet, backend: Box<dyn ReadBackend>) -> Self {
        Self::with_config(catalog, files, backend, StoreConfig::default())
    }

    /// A store that reads as `config` says.
    pub fn with_config(
        catalog: Arc<Catalog>,
        files: FileSet,
        backend: Box<dyn ReadBackend>,
        config: StoreConfig,
    ) -> Self {
        Self {
            catalog,
            files,
            port: Port::new(backend),
            mapped: None,
            config,
            gaps: Gaps::new(config.merge),
            batch: Vec::new(),
            n_batch_reads: 0,
            fetches: BTreeMap::new(),
            in_flight: HashMap::new(),
            next_id: 0,
            completed: Vec::new(),
            done: Vec::new(),
            stats: StoreStats::default(),
        }
    }

    /// The same store, which lends what `mapped` has and reads only the rest.
    #[must_use]
    pub fn lending(self, mapped: Mapped) -> Self {
        Self { mapped: Some(mapped), ..self }
    }

    /// Bytes that a slot of this store must have.
    pub fn slot_bytes(&self) -> usize {
        self.catalog.slot_bytes(self.port.limits().align_bytes)
    }

    /// Where `key` lands, if it can be read into `lease`.
    fn place(&self, key: ExpertKey, lease: &WriteLease) -> Result<Placement, StoreError> {
        let Some(placement) = self.catalog.placement(key, self.port.limits().align_bytes) else {
            let (n_layers, n_experts) = (self.catalog.n_layers(), self.catalog.n_experts());
            return Err(StoreError::UnknownExpert { key, n_layers, n_experts });
        };
        let (need_bytes, slot_bytes) = (placement.slot_bytes() as u64, lease.len() as u64);
        if need_bytes > slot_bytes {
            return Err(StoreError::SlotTooSmall { key, need_bytes, slot_bytes });
        }
        Ok(placement)
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Submits a read, a demand if anybody waits for it.
    fn submit(&mut self, mut read: Read, in_flight: InFlight) {
        let priorities = in_flight.pieces.iter().map(|piece| self.fetches[&piece.fetch].priority);
        read.priority = priorities.min().unwrap_or(read.priority);
        self.in_flight.insert(read.tag, in_flight);
        self.port.submit(read);
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every store")]
impl ExpertStore for FileStore {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused> {
        let n_reads = self.port.n_reads() + self.n_batch_reads;
        if n_reads >= self.port.limits().depth {
            return Err(Refused { lease: slot, reason: RefusedReason::QueueFull });
        }
        let placement = match self.place(key, &slot) {
            Ok(placement) => self.in_bites(placement, priority),
            Err(error) => return Err(Refused { lease: slot, reason: RefusedReason::Never(error) }),
        };
        if self.is_crowded(priority, n_reads, placement.ranges.len()) {
            return Err(Refused { lease: slot, reason: RefusedReason::QueueFull });
        }
        self.n_batch_reads += placement.ranges.len();
        let id = self.next_id();
        let lease = Some(slot);
        let fetch = Fetch {
            key,
            priority,
            placement,
            lease,
            n_pieces: 0,
            n_repeats: 0,
            error: None,
            read_bytes: 0,
            given_up: false,
        };
        self.fetches.insert(id, fetch);
        self.batch.push(id);
        Ok(())
    }

    fn start(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.n_batch_reads = 0;
        self.start_batch(&batch);
        self.batch = batch;
        self.batch.clear();
    }

    fn promote(&mut self, key: ExpertKey) {
        self.promote_fetch(key);
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        let before = withdrawn.len();
        self.withdraw_batched(layer, withdrawn);
        self.withdraw_started(layer, withdrawn);
        let in_part = withdrawn[before..].iter().filter(|withdrawn| withdrawn.read_bytes > 0).count();
        self.stats.n_given_up += in_part as u64;
        self.stats.n_withdrawn += (withdrawn.len() - before - in_part) as u64;
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        self.start();
        while self.done.is_empty() {
            let mut completed = std::mem::take(&mut self.completed);
            self.port.wait(until, &mut completed);
            // Nothing came back: the clock has passed `until`, or nothing is in flight.
            let idle = completed.is_empty();
            for completed in completed.drain(..) {
                self.settle(completed);
            }
            self.completed = completed;
            if idle {
                break;
            }
        }
        done.append(&mut self.done);
    }

    fn lend(&mut self, key: ExpertKey) -> Option<Lent> {
        self.mapped.as_mut()?.lend(&self.catalog, key)
    }

    fn can_lend(&self, key: ExpertKey) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.can_lend(&self.catalog, key))
    }

    fn check_lent(&mut self) -> Result<(), StoreError> {
        self.mapped.as_mut().map_or(Ok(()), Mapped::check)
    }

    fn stop_lending(&mut self) {
        self.mapped = None;
    }

    fn stats(&self) -> StoreStats {
        self.stats
    }
}

#[cfg(test)]
mod tests;
