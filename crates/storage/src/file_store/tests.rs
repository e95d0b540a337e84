//! Faults that a scripted backend injects, and what the store makes of them.

use std::collections::VecDeque;
use std::io::ErrorKind;

use forerun_arena::{Arena, SlotIdx};

use super::*;
use crate::Limits;
use crate::catalog::tests::catalog_of;

/// What a scripted backend does with the next read.
#[derive(Clone, Copy)]
enum Act {
    /// Reads at most this many bytes.
    Read(u64),
    Fail(ErrorKind),
}

/// Fills slots with the low byte of each file offset, unless its script says otherwise.
struct Scripted {
    script: VecDeque<Act>,
    queue: VecDeque<Read>,
}

impl ReadBackend for Scripted {
    fn limits(&self) -> Limits {
        Limits { depth: 2 }
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        if self.queue.len() == 2 {
            return Err(read);
        }
        self.queue.push_back(read);
        Ok(())
    }

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Completed>) {
        let Some(read) = self.queue.pop_front() else { return };
        let mut left = match self.script.pop_front() {
            Some(Act::Fail(kind)) => {
                return done.push(Completed { tag: read.tag, lease: read.lease, result: Err(kind.into()) });
            }
            Some(Act::Read(n)) => n,
            None => u64::MAX,
        };
        done.push(read.perform(|_, buffer, offset_bytes| {
            let n = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= n as u64;
            for (i, byte) in buffer[..n].iter_mut().enumerate() {
                *byte = (offset_bytes + i as u64).to_le_bytes()[0];
            }
            Ok(n)
        }));
    }
}

struct Outcome {
    result: Result<Filled, StoreError>,
    stats: StoreStats,
}

fn fetch(script: &[Act]) -> Outcome {
    let (mut store, arena) = store(script);
    let key = ExpertKey::new(0, 1);
    store.begin(key, arena.try_write(SlotIdx(0)).unwrap()).unwrap();
    let mut done = Vec::new();
    store.wait(Nanos::MAX, &mut done);
    let fetched = done.pop().unwrap();
    assert!(done.is_empty() && fetched.key == key && store.in_flight.is_empty());
    assert_eq!(
        fetched.result.is_err(),
        arena.try_write(SlotIdx(0)).is_some(),
        "only a failed fetch frees its slot"
    );
    Outcome { result: fetched.result, stats: store.stats() }
}

fn store(script: &[Act]) -> (FileStore, Arena) {
    let catalog = Arc::new(catalog_of());
    let arena = Arena::new(4, catalog.slot_bytes()).unwrap();
    let backend = Scripted { script: script.iter().copied().collect(), queue: VecDeque::new() };
    (FileStore::new(catalog, FileSet::new(Vec::new()), Box::new(backend)), arena)
}

#[track_caller]
fn arrives(script: &[Act], n_reads: u64) -> StoreStats {
    let outcome = fetch(script);
    let filled = outcome.result.unwrap();
    for segment in catalog_of().segments(ExpertKey::new(0, 1)).unwrap() {
        for i in 0..segment.len_bytes {
            let expected = (segment.offset_bytes + u64::from(i)).to_le_bytes()[0];
            assert_eq!(filled.lease.bytes()[(segment.slot_offset_bytes + i) as usize], expected);
        }
    }
    assert_eq!(outcome.stats.n_reads, n_reads);
    assert_eq!(outcome.stats.read_bytes, filled.read_bytes);
    outcome.stats
}

#[test]
fn a_whole_read_is_one_read() {
    assert_eq!(arrives(&[], 1).n_retries, 0);
}

#[test]
fn short_reads_are_resumed_where_they_ended() {
    for first in [1, 3, 2559, 2560, 2561, 6000] {
        assert_eq!(arrives(&[Act::Read(first)], 2).n_resumed, 1);
    }
    assert_eq!(arrives(&[Act::Read(1); 50], 51).n_resumed, 50);
}

#[test]
fn passing_errors_are_repeated_up_to_the_bound() {
    let eio = Act::Fail(ErrorKind::Other);
    assert_eq!(arrives(&[eio, Act::Read(5), eio, eio], 5).n_retries, 3);
    let outcome = fetch(&[Act::Read(7), eio, eio, eio, eio]);
    assert_eq!((outcome.stats.n_retries, outcome.stats.n_failed), (u64::from(RETRIES_MAX), 1));
    let first = catalog_of().segments(ExpertKey::new(0, 1)).unwrap()[0];
    let Err(StoreError::Io { offset_bytes, .. }) = outcome.result else { panic!("an error names its place") };
    assert_eq!(offset_bytes, first.offset_bytes + 7);
}

#[test]
fn interruptions_do_not_count_as_failures_but_end() {
    let interrupted = Act::Fail(ErrorKind::Interrupted);
    arrives(&[interrupted; 100], 101);
    let outcome = fetch(&[interrupted; INTERRUPTIONS_MAX as usize + 1]);
    assert!(matches!(outcome.result, Err(StoreError::Io { .. })));
}

#[test]
fn a_lasting_error_is_not_repeated() {
    let outcome = fetch(&[Act::Fail(ErrorKind::NotFound)]);
    assert_eq!((outcome.stats.n_reads, outcome.stats.n_failed), (1, 1));
    assert!(matches!(outcome.result, Err(StoreError::Io { .. })));
}

#[test]
fn the_end_of_the_file_is_an_error_that_names_the_place() {
    let outcome = fetch(&[Act::Read(9), Act::Read(0)]);
    let first = catalog_of().segments(ExpertKey::new(0, 1)).unwrap()[0];
    let Err(StoreError::Truncated { offset_bytes, end_bytes, .. }) = outcome.result else {
        panic!("truncated")
    };
    assert_eq!(offset_bytes, first.offset_bytes + 9);
    assert_eq!(end_bytes, first.offset_bytes + u64::from(first.len_bytes));
}

#[test]
fn refusals_give_the_slot_back() {
    let (mut store, arena) = store(&[]);
    let slot = |i| arena.try_write(SlotIdx(i)).unwrap();
    let refused = store.begin(ExpertKey::new(9, 0), slot(0)).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::Never(StoreError::UnknownExpert { .. })));
    let small = Arena::new(1, 16).unwrap().try_write(SlotIdx(0)).unwrap();
    let refused_small = store.begin(ExpertKey::new(0, 0), small).unwrap_err();
    assert!(matches!(refused_small.reason, RefusedReason::Never(StoreError::SlotTooSmall { .. })));
    store.begin(ExpertKey::new(0, 0), refused.lease).unwrap();
    store.begin(ExpertKey::new(0, 0), slot(1)).unwrap();
    let refused = store.begin(ExpertKey::new(0, 1), slot(2)).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::QueueFull));
    let mut done = Vec::new();
    while done.len() < 2 {
        store.wait(Nanos::MAX, &mut done);
    }
    store.wait(Nanos::MAX, &mut done);
    assert_eq!(done.len(), 2);
}

#[test]
fn what_remains_of_a_record_begins_where_the_reading_ended() {
    let segment = |offset_bytes, len_bytes, slot_offset_bytes| Segment {
        file: 0,
        offset_bytes,
        len_bytes,
        slot_offset_bytes,
    };
    let record = [segment(100, 10, 0), segment(500, 20, 64)];
    assert_eq!(remaining(&record, 0), record);
    assert_eq!(remaining(&record, 4), [segment(104, 6, 4), record[1]]);
    assert_eq!(remaining(&record, 10), [record[1]]);
    assert_eq!(remaining(&record, 29), [segment(519, 1, 83)]);
    assert_eq!(remaining(&record, 30), []);
}
