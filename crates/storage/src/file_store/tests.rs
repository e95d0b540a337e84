//! Faults that a scripted backend injects, and what the store makes of them.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Mutex;

use forerun_arena::{Arena, SlotIdx};

use super::*;
use crate::Limits;
use crate::backend::copy_into;
use crate::backend::queue::Waiting;
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
    queue: Waiting,
    limits: Limits,
    /// Every read that began, as `offset+len>slots`, with a `?` for a guess.
    log: Arc<Mutex<Vec<String>>>,
}

/// What every byte of the file is, by its offset.
fn byte_at(offset_bytes: u64) -> u8 {
    let [low, high, ..] = offset_bytes.to_le_bytes();
    low ^ high.wrapping_mul(37)
}

impl ReadBackend for Scripted {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        read.assert_aligned(self.limits.align_bytes);
        if self.queue.len() == self.limits.depth {
            return Err(read);
        }
        self.queue.push(read);
        Ok(())
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        self.queue.withdraw(tag)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        let Some(mut read) = (until > Nanos(0)).then(|| self.queue.pop()).flatten() else { return };
        let mut slots: Vec<u32> = read.windows.iter().map(|window| window.slot().0).collect();
        slots.dedup();
        let mark = if read.priority == Priority::Guess { "?" } else { "" };
        let text = format!("{}+{}>{slots:?}{mark}", read.offset_bytes, read.len_bytes());
        self.log.lock().unwrap().push(text);
        let left = match self.script.pop_front() {
            Some(Act::Fail(kind)) => return done.push(Completed { read, result: Err(kind.into()) }),
            Some(Act::Read(n)) => n,
            None => u64::MAX,
        };
        let result = read.perform(|_, buffers, offset_bytes| {
            let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
            let n = len.min(usize::try_from(left).unwrap_or(usize::MAX));
            let bytes: Vec<u8> = (offset_bytes..).take(n).map(byte_at).collect();
            Ok(copy_into(buffers, &bytes))
        });
        done.push(Completed { read, result });
    }
}

const DEEP: Limits = Limits { depth: 64, align_bytes: 1 };
const DIRECT: Limits = Limits { depth: 64, align_bytes: 512 };

struct Rig {
    store: FileStore,
    arena: Arena,
    log: Arc<Mutex<Vec<String>>>,
    done: Vec<Fetched>,
}

impl Rig {
    fn new(limits: Limits, script: &[Act]) -> Self {
        let catalog = Arc::new(catalog_of());
        let arena = Arena::new(8, catalog.slot_bytes(limits.align_bytes)).unwrap();
        let (script, log) = (script.iter().copied().collect(), Arc::default());
        let backend = Scripted { script, queue: Waiting::default(), limits, log: Arc::clone(&log) };
        let store = FileStore::new(catalog, FileSet::new(Vec::new()), Box::new(backend));
        Self { store, arena, log, done: Vec::new() }
    }

    fn lease(&self, slot: u32) -> WriteLease {
        self.arena.try_write(SlotIdx(slot)).unwrap()
    }

    /// Begins experts of layer 0 in slots of their own number.
    fn begin(&mut self, experts: &[u16], priority: Priority) {
        for &expert in experts {
            let lease = self.lease(expert.into());
            self.store.begin(ExpertKey::new(0, expert), lease, priority).unwrap();
        }
    }

    /// Waits until nothing is in flight; returns the experts in the order in which they came.
    fn finish(&mut self) -> Vec<u16> {
        let from = self.done.len();
        loop {
            let before = self.done.len();
            self.store.wait(Nanos::MAX, &mut self.done);
            if self.done.len() == before {
                break;
            }
        }
        for fetched in &self.done[from..] {
            if let Ok(filled) = &fetched.result {
                check_bytes(fetched.key, filled);
            }
        }
        assert!(self.store.in_flight.is_empty() && self.store.fetches.is_empty());
        self.done[from..].iter().map(|fetched| fetched.key.expert.0).collect()
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().join(" ")
    }
}

/// Every byte of the expert is the file's.
fn check_bytes(key: ExpertKey, filled: &Filled) {
    let Filled { lease, parts, .. } = filled;
    let record = catalog_of().record(key).unwrap();
    for (part, at) in record.parts.iter().zip([parts.gate, parts.up, parts.down]) {
        let bytes = &lease.bytes()[at as usize..][..part.len_bytes as usize];
        let expected = (part.offset_bytes..).map(byte_at);
        assert!(bytes.iter().copied().eq(expected.take(bytes.len())), "wrong bytes of {key} at {part:?}");
    }
}

struct Outcome {
    result: Result<Filled, StoreError>,
    stats: StoreStats,
}

fn fetch(script: &[Act]) -> Outcome {
    let mut rig = Rig::new(DEEP, script);
    rig.begin(&[1], Priority::Demand);
    assert_eq!(rig.finish(), [1]);
    let result = rig.done.remove(0).result;
    assert_eq!(
        result.is_err(),
        rig.arena.try_write(SlotIdx(1)).is_some(),
        "only a failed fetch frees its slot"
    );
    Outcome { result, stats: rig.store.stats() }
}

#[track_caller]
fn arrives(script: &[Act], n_reads: u64) -> StoreStats {
    let outcome = fetch(script);
    let filled = outcome.result.unwrap();
    assert_eq!(outcome.stats.n_reads, n_reads);
    assert_eq!(outcome.stats.read_bytes, filled.read_bytes);
    outcome.stats
}

#[test]
fn a_whole_record_is_one_read_a_range() {
    assert_eq!(arrives(&[], 3).n_retries, 0);
}

#[test]
fn short_reads_are_resumed_where_they_ended() {
    for first in [1, 3, 2559] {
        assert_eq!(arrives(&[Act::Read(first)], 4).n_resumed, 1);
    }
    assert_eq!(arrives(&[Act::Read(1); 50], 53).n_resumed, 50);
}

#[test]
fn passing_errors_are_repeated_up_to_the_bound() {
    let eio = Act::Fail(ErrorKind::Other);
    assert_eq!(arrives(&[eio, Act::Read(5), eio, eio], 7).n_retries, 3);
    let whole = Act::Read(u64::MAX);
    // The reads take turns: each round has one of each range, and the first keeps failing.
    let outcome = fetch(&[Act::Read(7), whole, whole, eio, eio, eio, eio]);
    assert_eq!((outcome.stats.n_retries, outcome.stats.n_failed), (u64::from(RETRIES_MAX), 1));
    let first = catalog_of().record(ExpertKey::new(0, 1)).unwrap().parts[0];
    let Err(StoreError::Io { offset_bytes, .. }) = outcome.result else { panic!("an error names its place") };
    assert_eq!(offset_bytes, first.offset_bytes + 7);
}

#[test]
fn interruptions_do_not_count_as_failures_but_end() {
    for kind in [ErrorKind::Interrupted, ErrorKind::WouldBlock] {
        arrives(&[Act::Fail(kind); 100], 103);
        let outcome = fetch(&[Act::Fail(kind); 3 * (INTERRUPTIONS_MAX as usize + 1)]);
        assert!(matches!(outcome.result, Err(StoreError::Io { .. })));
    }
}

#[test]
fn a_lasting_error_is_not_repeated() {
    let outcome = fetch(&[Act::Fail(ErrorKind::NotFound)]);
    assert_eq!((outcome.stats.n_reads, outcome.stats.n_failed), (3, 1));
    assert!(matches!(outcome.result, Err(StoreError::Io { .. })));
}

#[test]
fn the_end_of_the_file_is_an_error_that_names_the_place() {
    let whole = Act::Read(u64::MAX);
    let outcome = fetch(&[Act::Read(9), whole, whole, Act::Read(0)]);
    let first = catalog_of().record(ExpertKey::new(0, 1)).unwrap().parts[0];
    let Err(StoreError::Truncated { offset_bytes, end_bytes, .. }) = outcome.result else {
        panic!("truncated")
    };
    assert_eq!(offset_bytes, first.offset_bytes + 9);
    assert_eq!(end_bytes, first.end_bytes());
}

#[test]
fn refusals_give_the_slot_back() {
    let mut rig = Rig::new(Limits { depth: 4, align_bytes: 1 }, &[]);
    let refused = rig.store.begin(ExpertKey::new(9, 0), rig.lease(0), Priority::Demand).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::Never(StoreError::UnknownExpert { .. })));
    let small = Arena::new(1, 16).unwrap().try_write(SlotIdx(0)).unwrap();
    let refused_small = rig.store.begin(ExpertKey::new(0, 0), small, Priority::Demand).unwrap_err();
    assert!(matches!(refused_small.reason, RefusedReason::Never(StoreError::SlotTooSmall { .. })));
    drop(refused);
    rig.begin(&[0, 2], Priority::Demand);
    let refused = rig.store.begin(ExpertKey::new(0, 1), rig.lease(1), Priority::Demand).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::QueueFull));
    assert_eq!(rig.finish().len(), 2);
}

#[test]
fn neighbours_are_read_together() {
    let mut rig = Rig::new(DEEP, &[]);
    rig.begin(&[2, 0, 1], Priority::Demand);
    assert_eq!(rig.finish(), [0, 1, 2]);
    assert_eq!(rig.log(), "1001+7680>[0, 1, 2] 1021001+7680>[0, 1, 2] 2041001+7680>[0, 1, 2]");
    assert_eq!((rig.store.stats().n_reads, rig.store.stats().n_merged), (3, 3));
}

#[test]
fn small_gaps_are_read_and_thrown_away() {
    let mut rig = Rig::new(DEEP, &[]);
    rig.begin(&[0, 2], Priority::Demand);
    rig.finish();
    assert_eq!(rig.store.stats().n_reads, 3);
    assert_eq!(rig.store.stats().read_bytes, 3 * 7680);
}

/// Neighbours share a block where records aren't aligned; both get it.
#[test]
fn direct_neighbours_share_blocks() {
    for script in [&[][..], &[Act::Read(512); 40], &[Act::Read(2560), Act::Read(100), Act::Read(3000)]] {
        let mut rig = Rig::new(DIRECT, script);
        rig.begin(&[0, 1, 2], Priority::Demand);
        let mut came = rig.finish();
        came.sort_unstable();
        assert_eq!(came, [0, 1, 2]);
        assert!(rig.done.iter().all(|fetched| fetched.result.is_ok()));
        assert_eq!(rig.store.stats().n_merged, 3);
    }
}

/// A merged read that fails is read apart, so that a bad place costs only the expert that lies there.
#[test]
fn a_merged_read_that_fails_is_read_apart() {
    let (eio, whole) = (Act::Fail(ErrorKind::Other), Act::Read(u64::MAX));
    for limits in [DEEP, DIRECT] {
        for first in [eio, Act::Read(3000)] {
            // The first round brings the other two ranges; then the three pieces of the first, of which one is dead.
            let script = [first, whole, whole, eio, whole, whole, whole, eio, eio, eio, eio];
            let mut rig = Rig::new(limits, &script);
            rig.begin(&[0, 1, 2], Priority::Demand);
            let came = rig.finish();
            assert_eq!(came.len(), 3, "{came:?}");
            let failed = rig.done.iter().filter(|fetched| fetched.result.is_err()).count();
            assert!(failed <= 1, "one bad place cost {failed} experts");
        }
    }
}

#[test]
fn demands_begin_before_guesses() {
    let mut rig = Rig::new(DEEP, &[]);
    rig.begin(&[4], Priority::Guess);
    rig.begin(&[0], Priority::Demand);
    assert_eq!(rig.finish(), [0, 4]);
}

#[test]
fn a_guess_becomes_a_demand_without_a_second_read() {
    let mut rig = Rig::new(DEEP, &[]);
    rig.begin(&[0, 4, 6], Priority::Guess);
    rig.store.start();
    rig.store.promote(ExpertKey::new(0, 4));
    rig.store.promote(ExpertKey::new(0, 7));
    assert_eq!(rig.finish(), [0, 4, 6], "they lie so close that they are one read");
    assert_eq!(rig.store.stats().n_reads, 3);
    let mut rig = Rig::new(DEEP, &[]);
    rig.store.config.merge = MergeLimits::NONE;
    rig.begin(&[0, 4, 6], Priority::Guess);
    rig.store.start();
    rig.store.promote(ExpertKey::new(0, 4));
    assert_eq!(rig.finish(), [4, 0, 6]);
    assert_eq!(rig.store.stats().n_reads, 9);
}

#[test]
fn guesses_that_were_not_begun_are_taken_back() {
    for started in [false, true] {
        for limits in [DEEP, DIRECT, Limits { depth: 2, align_bytes: 1 }] {
            let mut rig = Rig::new(limits, &[]);
            rig.begin(&[0], Priority::Guess);
            if started {
                rig.store.start();
            }
            let mut withdrawn = Vec::new();
            rig.store.withdraw_guesses(Some(LayerId(1)), &mut withdrawn);
            assert!(withdrawn.is_empty(), "another layer's guesses stay");
            rig.store.withdraw_guesses(Some(LayerId(0)), &mut withdrawn);
            assert_eq!(withdrawn.len(), 1);
            assert_eq!((withdrawn[0].key, withdrawn[0].lease.slot()), (ExpertKey::new(0, 0), SlotIdx(0)));
            assert!(rig.finish().is_empty());
            assert_eq!((rig.store.stats().n_reads, rig.store.stats().n_withdrawn), (0, 1));
        }
    }
}

#[test]
fn a_guess_of_which_a_part_has_begun_is_read_to_its_end() {
    let mut rig = Rig::new(DEEP, &[]);
    rig.begin(&[0, 1], Priority::Guess);
    // One of the three reads is over.
    rig.store.start();
    let mut completed = Vec::new();
    rig.store.port.wait(Nanos::MAX, &mut completed);
    rig.store.settle(completed.remove(0));
    let mut withdrawn = Vec::new();
    rig.store.withdraw_guesses(None, &mut withdrawn);
    assert!(withdrawn.is_empty());
    assert_eq!(rig.finish(), [0, 1]);
}
