//! Faults that a scripted backend injects, and what the store makes of them.

mod bites;
mod rig;

use std::io::ErrorKind;

use forerun_arena::{Arena, SlotIdx};

use super::*;
use crate::Filled;
use crate::catalog::tests::{catalog_of, catalog_over};
use rig::{Act, DEEP, DIRECT, Rig, Scripted};

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
    let mut rig = Rig::new(crate::Limits { depth: 4, align_bytes: 1 }, &[]);
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
        for limits in [DEEP, DIRECT, crate::Limits { depth: 2, align_bytes: 1 }] {
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

/// A file that was cut inside a block gives the same bytes each time: that is its end, not a read to be resumed.
#[test]
fn a_cut_inside_a_block_is_the_end() {
    let whole = Act::Read(u64::MAX);
    let script: Vec<Act> = [Act::Read(1000), whole, whole].into_iter().chain([Act::Read(100); 20]).collect();
    let mut rig = Rig::new(DIRECT, &script);
    rig.begin(&[1], Priority::Demand);
    assert_eq!(rig.finish(), [1]);
    let first = catalog_of().record(ExpertKey::new(0, 1)).unwrap().parts[0];
    let start = first.offset_bytes / 512 * 512;
    let Err(StoreError::Truncated { offset_bytes, .. }) = &rig.done[0].result else { panic!("truncated") };
    assert_eq!(*offset_bytes, start + 512 + 100, "the first byte that isn't there");
    assert!(rig.store.stats().n_resumed <= u64::from(RETRIES_MAX) + 1, "{:?}", rig.store.stats());
}

/// What was promoted while it was being read stays a demand when it must be read again.
#[test]
fn a_promoted_read_is_repeated_as_a_demand() {
    let mut rig = Rig::new(DEEP, &[Act::Read(5)]);
    rig.store.config.merge = MergeLimits::NONE;
    rig.begin(&[0, 4], Priority::Guess);
    rig.store.start();
    // The first read comes back short, after its expert was named.
    let key = ExpertKey::new(0, 0);
    rig.store.fetches.values_mut().find(|fetch| fetch.key == key).unwrap().priority = Priority::Demand;
    let mut completed = Vec::new();
    rig.store.port.wait(Nanos::MAX, &mut completed);
    rig.store.settle(completed.remove(0));
    rig.finish();
    let order: Vec<String> = rig.log().split(' ').map(str::to_owned).collect();
    assert_eq!(order[..2], ["1001+2560>[0]?", "1006+2555>[0]"], "{order:?}");
}

#[test]
fn an_error_names_the_file_that_failed() {
    let files =
        ["first", "second"].map(|name| crate::DataFile::from_bytes(name.as_ref(), bytes::Bytes::new()));
    let catalog = Arc::new(catalog_over([0, 0, 1]));
    let arena = Arena::new(1, catalog.slot_bytes(1)).unwrap();
    let (whole, dead) = (Act::Read(u64::MAX), Act::Fail(ErrorKind::NotFound));
    let backend = Scripted::new(DEEP, &[whole, whole, dead]);
    let mut store = FileStore::new(catalog, FileSet::new(files.to_vec()), Box::new(backend));
    let lease = arena.try_write(SlotIdx(0)).unwrap();
    store.begin(ExpertKey::new(0, 0), lease, Priority::Demand).unwrap();
    let mut done = Vec::new();
    store.wait(Nanos::MAX, &mut done);
    let Err(StoreError::Io { path, offset_bytes, .. }) = &done[0].result else {
        panic!("an error of the system")
    };
    assert_eq!((path.to_str(), *offset_bytes), (Some("second"), 2_041_001));
}
