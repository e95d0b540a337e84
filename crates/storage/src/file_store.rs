//! The store over any backend: turns keys into ranges, resumes short reads, repeats failed ones, seals full slots.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use forerun_arena::WriteLease;
use forerun_model::{ExpertKey, Nanos};

use crate::{Catalog, Completed, ExpertStore, Fetched, FileSet, Filled, Read, ReadBackend, Refused};
use crate::{RefusedReason, Segment, StoreError, StoreStats, Tag};

/// How often a fetch is repeated after errors that may pass.
pub const RETRIES_MAX: u32 = 3;

/// How often a fetch is repeated after the system interrupted it, which is no failure but must end some time.
pub const INTERRUPTIONS_MAX: u32 = 1000;

/// Reads experts from a model's files.
///
/// A short read is resumed where it ended; each one gains a byte at least, so a record's length bounds them.
pub struct FileStore {
    catalog: Arc<Catalog>,
    files: FileSet,
    backend: Box<dyn ReadBackend>,
    in_flight: HashMap<Tag, Fetch>,
    next_tag: u64,
    /// Kept for its memory.
    completed: Vec<Completed>,
    stats: StoreStats,
}

/// A fetch that isn't over.
struct Fetch {
    key: ExpertKey,
    /// The whole record.
    segments: Vec<Segment>,
    done_bytes: u64,
    n_retries: u32,
    n_interruptions: u32,
}

/// What to do with a read that came back.
enum Verdict {
    Finish,
    Resume,
    Repeat,
    Fail(StoreError),
}

impl FileStore {
    /// A store of `catalog`'s experts, which reads `files` through `backend`.
    pub fn new(catalog: Arc<Catalog>, files: FileSet, backend: Box<dyn ReadBackend>) -> Self {
        let (in_flight, completed) = (HashMap::new(), Vec::new());
        Self { catalog, files, backend, in_flight, next_tag: 0, completed, stats: StoreStats::default() }
    }

    /// Whether `key` can be read into `lease`.
    fn plan(&self, key: ExpertKey, lease: &mut WriteLease) -> Result<Vec<Segment>, StoreError> {
        let Some(segments) = self.catalog.segments(key) else {
            let (n_layers, n_experts) = (self.catalog.n_layers(), self.catalog.n_experts());
            return Err(StoreError::UnknownExpert { key, n_layers, n_experts });
        };
        let end = |segment: &Segment| u64::from(segment.slot_offset_bytes) + u64::from(segment.len_bytes);
        let need_bytes = segments.iter().map(end).max().unwrap_or(0);
        let slot_bytes = lease.bytes_mut().len() as u64;
        if need_bytes > slot_bytes {
            return Err(StoreError::SlotTooSmall { key, need_bytes, slot_bytes });
        }
        Ok(segments)
    }

    fn submit(&mut self, tag: Tag, segments: Vec<Segment>, lease: WriteLease) {
        self.stats.n_reads += 1;
        let taken = self.backend.submit(Read { tag, segments, lease });
        assert!(taken.is_ok(), "a backend refused a read although fewer than its depth are in flight");
    }

    /// Decides about a read that came back, and acts; gives the fetch back when it is over.
    fn settle(&mut self, Completed { tag, lease, result }: Completed) -> Option<Fetched> {
        let mut fetch =
            self.in_flight.remove(&tag).expect("a backend returns reads that were submitted, once");
        self.stats.read_bytes += *result.as_ref().unwrap_or(&0);
        let verdict = fetch.judge(result, &self.files);
        let result = match verdict {
            Verdict::Finish => Ok(self.filled(&fetch, lease)),
            Verdict::Fail(error) => {
                self.stats.n_failed += 1;
                // The slot is free before anybody learns of the failure.
                drop(lease);
                Err(error)
            }
            Verdict::Resume | Verdict::Repeat => {
                let resumed = matches!(verdict, Verdict::Resume);
                *(if resumed { &mut self.stats.n_resumed } else { &mut self.stats.n_retries }) += 1;
                self.submit(tag, remaining(&fetch.segments, fetch.done_bytes), lease);
                self.in_flight.insert(tag, fetch);
                return None;
            }
        };
        Some(Fetched { key: fetch.key, result })
    }

    fn filled(&self, fetch: &Fetch, lease: WriteLease) -> Filled {
        let parts =
            self.catalog.offsets(fetch.key.layer).expect("the key was in the catalog when it was begun");
        Filled { lease: lease.seal(), parts, read_bytes: fetch.done_bytes }
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every store")]
impl ExpertStore for FileStore {
    fn begin(&mut self, key: ExpertKey, mut slot: WriteLease) -> Result<(), Refused> {
        if self.in_flight.len() >= self.backend.limits().depth {
            return Err(Refused { lease: slot, reason: RefusedReason::QueueFull });
        }
        let segments = match self.plan(key, &mut slot) {
            Ok(segments) => segments,
            Err(error) => return Err(Refused { lease: slot, reason: RefusedReason::Never(error) }),
        };
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        self.submit(tag, segments.clone(), slot);
        let fetch = Fetch { key, segments, done_bytes: 0, n_retries: 0, n_interruptions: 0 };
        self.in_flight.insert(tag, fetch);
        Ok(())
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        let before = done.len();
        loop {
            let mut completed = std::mem::take(&mut self.completed);
            self.backend.wait(until, &mut completed);
            // Nothing came back: the clock has passed `until`, or nothing is in flight.
            let idle = completed.is_empty();
            done.extend(completed.drain(..).filter_map(|completed| self.settle(completed)));
            self.completed = completed;
            if idle || done.len() > before {
                return;
            }
        }
    }

    fn stats(&self) -> StoreStats {
        self.stats
    }
}

impl Fetch {
    fn judge(&mut self, result: io::Result<u64>, files: &FileSet) -> Verdict {
        let len_bytes: u64 = self.segments.iter().map(|segment| u64::from(segment.len_bytes)).sum();
        match result {
            Ok(n) => {
                self.done_bytes += n;
                assert!(self.done_bytes <= len_bytes, "a backend read more than it was asked for");
                match (self.done_bytes == len_bytes, n) {
                    (true, _) => Verdict::Finish,
                    (false, 0) => Verdict::Fail(self.truncated(files)),
                    (false, _) => Verdict::Resume,
                }
            }
            Err(source) if source.kind() == io::ErrorKind::Interrupted => {
                self.n_interruptions += 1;
                if self.n_interruptions <= INTERRUPTIONS_MAX {
                    Verdict::Repeat
                } else {
                    self.failed(source, files)
                }
            }
            Err(source) => match self.io_error(source, files) {
                error if error.is_transient() && self.n_retries < RETRIES_MAX => {
                    self.n_retries += 1;
                    Verdict::Repeat
                }
                error => Verdict::Fail(error),
            },
        }
    }

    fn failed(&self, source: io::Error, files: &FileSet) -> Verdict {
        Verdict::Fail(self.io_error(source, files))
    }

    fn io_error(&self, source: io::Error, files: &FileSet) -> StoreError {
        let next = self.next_segment();
        StoreError::Io { key: self.key, path: files.path(next.file), offset_bytes: next.offset_bytes, source }
    }

    fn truncated(&self, files: &FileSet) -> StoreError {
        let next = self.next_segment();
        StoreError::Truncated {
            key: self.key,
            path: files.path(next.file),
            offset_bytes: next.offset_bytes,
            end_bytes: next.offset_bytes + u64::from(next.len_bytes),
        }
    }

    /// What the next read begins with.
    fn next_segment(&self) -> Segment {
        let rest = remaining(&self.segments, self.done_bytes);
        *rest.first().expect("a fetch that isn't over has bytes left")
    }
}

/// What is left of `segments` after their first `done_bytes` bytes.
fn remaining(segments: &[Segment], mut done_bytes: u64) -> Vec<Segment> {
    let mut rest = Vec::with_capacity(segments.len());
    for segment in segments {
        // Below the length, hence 32 bits are enough.
        let skip = u32::try_from(done_bytes).map_or(segment.len_bytes, |done| done.min(segment.len_bytes));
        done_bytes -= u64::from(skip);
        if skip < segment.len_bytes {
            rest.push(Segment {
                file: segment.file,
                offset_bytes: segment.offset_bytes + u64::from(skip),
                len_bytes: segment.len_bytes - skip,
                slot_offset_bytes: segment.slot_offset_bytes + skip,
            });
        }
    }
    rest
}

#[cfg(test)]
mod tests;
