//! The store over any backend: turns keys into reads, resumes short ones, repeats failed ones, checks and seals full
//! slots.
//!
//! A *fetch* brings one expert. Its record is up to three ranges of the files; ranges of several fetches that lie side
//! by side become one *read*. So a fetch may need several reads and a read may serve several fetches: the windows of a
//! slot, of which each read holds some, are what joins them again.

mod in_flight;
mod plan;
mod port;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use forerun_arena::WriteLease;
use forerun_model::{ExpertKey, LayerId, Nanos};

use crate::placement::Placement;
use crate::{
    Catalog, Completed, ExpertStore, Fetched, FileSet, Filled, Lent, Mapped, MergeLimits, Priority, Read,
};
use crate::{ReadBackend, Refused, RefusedReason, StoreError, StoreStats, Tag, Withdrawn};
use in_flight::{Advance, InFlight, Piece};
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

    /// Decides about a read that came back, and acts.
    fn settle(&mut self, Completed { mut read, result }: Completed) {
        let mut state =
            self.in_flight.remove(&read.tag).expect("a backend returns reads that were submitted, once");
        self.stats.n_reads += 1;
        self.stats.n_merged += u64::from(state.takes_count());
        match result {
            Ok(n_bytes) => {
                assert!(n_bytes <= read.len_bytes(), "a backend read more than it was asked for");
                self.stats.read_bytes += n_bytes;
                let advance = state.advance(&mut read, n_bytes, self.port.limits().align_bytes);
                for piece in state.take_whole() {
                    self.end_piece(piece);
                }
                match advance {
                    Advance::Whole => {}
                    Advance::Nothing if state.is_stuck(n_bytes) => {
                        let at = read.offset_bytes + n_bytes;
                        self.fail(read, state, |fetch, piece, files| piece.truncated(fetch.key, at, files));
                    }
                    Advance::Part | Advance::Nothing => {
                        self.stats.n_resumed += 1;
                        self.submit(read, state);
                    }
                }
            }
            Err(source) => self.judge(read, state, source),
        }
    }

    /// Repeats a read that failed, or gives it up.
    fn judge(&mut self, read: Read, mut state: InFlight, source: io::Error) {
        let is_interruption = matches!(source.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
        let repeat = if is_interruption {
            state.n_interruptions += 1;
            state.n_interruptions <= INTERRUPTIONS_MAX
        } else {
            state.n_retries += 1;
            StoreError::may_pass(&source) && state.n_retries <= RETRIES_MAX
        };
        if repeat && (is_interruption || state.pieces.len() == 1) {
            self.stats.n_retries += 1;
            self.submit(read, state);
        } else if state.pieces.len() > 1 {
            let mut next_id = self.next_id;
            let reads = state.apart(read, || {
                next_id += 1;
                Tag(next_id)
            });
            self.next_id = next_id;
            for (read, state) in reads {
                self.stats.n_retries += 1;
                self.submit(read, state);
            }
        } else {
            let (kind, text, at) = (source.kind(), source.to_string(), read.offset_bytes);
            let mut source = Some(source);
            self.fail(read, state, |fetch, piece, files| StoreError::Io {
                key: fetch.key,
                path: files.path(piece.placed.range.file),
                offset_bytes: at,
                source: source.take().unwrap_or_else(|| io::Error::new(kind, text.clone())),
            });
        }
    }

    /// Gives up what is left of a read.
    fn fail(
        &mut self,
        read: Read,
        state: InFlight,
        mut error: impl FnMut(&Fetch, &Piece, &FileSet) -> StoreError,
    ) {
        for piece in state.into_pieces(read.windows) {
            let fetch = self.fetches.get_mut(&piece.fetch).expect("a piece's fetch isn't over");
            if fetch.error.is_none() {
                fetch.error = Some(error(fetch, &piece, &self.files));
            }
            self.end_piece(piece);
        }
    }

    /// Takes a piece's windows back; ends the fetch with its last piece.
    fn end_piece(&mut self, piece: Piece) {
        let fetch = self.fetches.get_mut(&piece.fetch).expect("a piece's fetch isn't over");
        for window in piece.done {
            if let Some(lease) = window.join() {
                fetch.lease = Some(lease);
            }
        }
        fetch.n_pieces -= 1;
        if fetch.n_pieces > 0 {
            return;
        }
        let id = piece.fetch;
        let mut fetch = self.fetches.remove(&id).expect("it was there a moment ago");
        let lease = fetch.lease.take().expect("all windows of the slot were joined");
        match fetch.error.take() {
            Some(error) => self.end(fetch.key, Err(error)),
            None => self.check(id, fetch, lease),
        }
    }

    /// Looks at a full slot, and hands it out or reads it again.
    fn check(&mut self, id: FetchId, mut fetch: Fetch, mut lease: WriteLease) {
        let (mut last, ranges) = (None, fetch.placement.ranges.iter());
        // Asked of each file once: they mostly are one.
        let files = ranges.map(|placed| placed.range.file).filter(|file| last.replace(*file) != Some(*file));
        let mut opened = files.filter_map(|file| self.files.files().get(usize::from(file)));
        let changed = opened.find(|file| file.is_changed());
        let record = self.catalog.record(fetch.key).expect("the key was in the catalog when it was begun");
        let checksum = record.whole.zip(record.crc32c);
        if let (Some(file), None) = (changed, checksum) {
            let error = StoreError::Changed { key: fetch.key, path: file.path.clone() };
            return self.end(fetch.key, Err(error));
        }
        let wanted = checksum.filter(|_| changed.is_some() || self.config.verify == Verify::Always);
        if let Some((whole, expected)) = wanted {
            // A packed record is placed as a whole, so it begins where its one range does.
            let start = fetch.placement.ranges[0];
            let before = whole.offset_bytes - start.range.offset_bytes;
            let skip = usize::try_from(before).expect("less than a block") + start.slot_offset_bytes as usize;
            let found = crc32c::crc32c(&lease.bytes_mut()[skip..skip + whole.len_bytes as usize]);
            if found != expected && fetch.n_repeats < RETRIES_MAX {
                self.stats.n_corrupt += 1;
                fetch.n_repeats += 1;
                fetch.lease = Some(lease);
                self.fetches.insert(id, fetch);
                return self.start_alone(id);
            }
            if found != expected {
                let (key, offset_bytes) = (fetch.key, whole.offset_bytes);
                let path = self.files.path(whole.file);
                return self.end(key, Err(StoreError::Corrupt { key, path, offset_bytes, found, expected }));
            }
        }
        let Placement { parts, .. } = fetch.placement;
        let read_bytes = fetch.placement.read_bytes();
        self.end(fetch.key, Ok(Filled { lease: lease.seal(), parts, read_bytes }));
    }

    fn end(&mut self, key: ExpertKey, result: Result<Filled, StoreError>) {
        self.stats.n_failed += u64::from(result.is_err());
        self.done.push(Fetched { key, result });
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every store")]
impl ExpertStore for FileStore {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused> {
        if self.port.n_reads() + self.n_batch_reads >= self.port.limits().depth {
            return Err(Refused { lease: slot, reason: RefusedReason::QueueFull });
        }
        let placement = match self.place(key, &slot) {
            Ok(placement) => placement,
            Err(error) => return Err(Refused { lease: slot, reason: RefusedReason::Never(error) }),
        };
        self.n_batch_reads += placement.ranges.len();
        let id = self.next_id();
        let lease = Some(slot);
        let fetch = Fetch { key, priority, placement, lease, n_pieces: 0, n_repeats: 0, error: None };
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
        self.stats.n_withdrawn += (withdrawn.len() - before) as u64;
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
