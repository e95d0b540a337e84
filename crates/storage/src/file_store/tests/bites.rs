//! Guesses that are read in bites, and given up half-way. A record is three ranges of 2560 bytes.

use super::*;

const GUESS: ExpertKey = ExpertKey::new(0, 1);
/// Bytes of a range.
const RANGE: u64 = 2560;
const BITE: u32 = 640;
/// Bites of a record: four of each range.
const N_BITES: usize = 12;

fn biting(script: &[Act]) -> Rig {
    let mut rig = Rig::biting(DEEP, BITE, 1, script);
    rig.begin(&[1], Priority::Guess);
    rig
}

/// Takes back every guess.
fn withdraw(rig: &mut Rig) -> Vec<(ExpertKey, u64)> {
    let mut withdrawn = Vec::new();
    rig.store.withdraw_guesses(None, &mut withdrawn);
    let over = withdrawn.into_iter().map(|Withdrawn { key, lease, read_bytes }| {
        assert_eq!(u16::try_from(lease.slot().0).unwrap(), key.expert.0, "its own slot");
        (key, read_bytes)
    });
    over.collect()
}

/// The last fetch that came back was given up, after so many bytes.
#[track_caller]
fn assert_given_up(rig: &Rig, bytes: u64) {
    let Fetched { key, result: Err(StoreError::GivenUp { key: named, read_bytes }) } =
        rig.done.last().unwrap()
    else {
        panic!("given up")
    };
    assert_eq!((*key, *named, *read_bytes), (GUESS, GUESS, bytes));
    assert!(rig.arena.try_write(SlotIdx(1)).is_some(), "its slot is free");
    let stats = rig.store.stats();
    assert_eq!((stats.n_given_up, stats.n_failed, stats.n_withdrawn), (1, 0, 0));
}

#[test]
fn a_guess_is_read_in_bites_and_a_demand_in_ranges() {
    let mut rig = biting(&[]);
    assert_eq!(rig.finish(), [1]);
    let stats = rig.store.stats();
    assert_eq!((stats.n_reads, stats.read_bytes), (N_BITES as u64, 3 * RANGE));
    assert_eq!(rig.done[0].result.as_ref().unwrap().read_bytes, 3 * RANGE);
    let start = catalog_of().record(GUESS).unwrap().parts[0].offset_bytes;
    let log = rig.log();
    for (read, at) in log.split(' ').zip([0, 640, 1280, 1920]) {
        assert_eq!(read, format!("{}+640>[1]?", start + at));
    }
    rig.begin(&[2], Priority::Demand);
    rig.finish();
    assert_eq!(rig.store.stats().n_reads, N_BITES as u64 + 3);
}

#[test]
fn bites_are_not_merged_with_neighbours() {
    for limits in [DEEP, DIRECT] {
        let mut rig = Rig::biting(limits, 1024, 0, &[]);
        rig.begin(&[0, 1, 2], Priority::Guess);
        assert_eq!(rig.finish().len(), 3);
        let stats = rig.store.stats();
        assert!(stats.n_merged == 0 && stats.n_reads >= 27, "{stats:?}");
    }
}

#[test]
fn a_demand_passes_a_guess_half_way() {
    let mut rig = biting(&[]);
    rig.end_reads(3);
    rig.begin(&[5], Priority::Demand);
    assert_eq!(rig.finish(), [5, 1]);
    assert_eq!(rig.store.stats().n_reads, N_BITES as u64 + 3);
}

#[test]
fn the_rest_of_a_promoted_guess_is_a_demand_and_nothing_is_read_twice() {
    let mut rig = biting(&[]);
    rig.begin(&[4], Priority::Guess);
    rig.end_reads(2);
    rig.store.promote(ExpertKey::new(0, 4));
    assert!(withdraw(&mut rig).is_empty(), "the other one is on the wire in part");
    assert_eq!(rig.finish(), [1, 4]);
    assert!(rig.done[1].result.is_ok());
    assert_given_up_at(&rig, 0, 3 * u64::from(BITE));
    let mut rig = biting(&[Act::Read(7)]);
    rig.begin(&[4], Priority::Guess);
    rig.end_reads(N_BITES + 3);
    rig.store.promote(ExpertKey::new(0, 4));
    rig.store.promote(GUESS);
    assert!(withdraw(&mut rig).is_empty(), "demands stay");
    rig.finish();
    assert!(rig.done.iter().all(|fetched| fetched.result.is_ok()));
    assert_eq!(rig.store.stats().read_bytes, 6 * RANGE);
}

#[track_caller]
fn assert_given_up_at(rig: &Rig, at: usize, bytes: u64) {
    let Err(StoreError::GivenUp { read_bytes, .. }) = rig.done[at].result else { panic!("given up") };
    assert_eq!(read_bytes, bytes);
}

#[test]
fn a_guess_that_is_being_read_is_given_up_with_the_bite_at_the_disk() {
    let mut rig = biting(&[]);
    rig.end_reads(5);
    assert!(withdraw(&mut rig).is_empty());
    assert!(withdraw(&mut rig).is_empty(), "it is given up once");
    // Too late: it can only be begun anew.
    rig.store.promote(GUESS);
    assert_eq!(rig.finish(), [1]);
    assert_given_up(&rig, 6 * u64::from(BITE));
    assert_eq!(rig.store.stats().read_bytes, 6 * u64::from(BITE));
    rig.begin(&[1], Priority::Demand);
    assert_eq!(rig.finish(), [1]);
    assert!(rig.done[1].result.is_ok());
}

#[test]
fn a_guess_of_which_nothing_is_being_read_comes_back_at_once() {
    for (n_read, script) in [(0, &[][..]), (4, &[]), (4, &[Act::Read(100)])] {
        let mut rig = Rig::biting(DEEP, BITE, 0, script);
        rig.begin(&[1], Priority::Guess);
        rig.end_reads(n_read);
        let read_bytes = rig.store.stats().read_bytes;
        assert_eq!(withdraw(&mut rig), [(GUESS, read_bytes)]);
        assert!(rig.finish().is_empty());
        let stats = rig.store.stats();
        assert_eq!((stats.n_withdrawn, stats.n_given_up), if n_read == 0 { (1, 0) } else { (0, 1) });
        assert_eq!(stats.n_reads, n_read as u64, "no more is read");
    }
}

#[test]
fn a_guess_whose_last_bite_has_begun_is_finished() {
    let mut rig = biting(&[]);
    rig.end_reads(N_BITES - 1);
    assert!(withdraw(&mut rig).is_empty());
    assert_eq!(rig.finish(), [1]);
    assert!(rig.done[0].result.is_ok());
    assert_eq!(rig.store.stats().n_given_up, 0);
}

#[test]
fn guesses_of_other_layers_are_read_on() {
    let mut rig = biting(&[]);
    rig.end_reads(2);
    rig.store.withdraw_guesses(Some(LayerId(1)), &mut Vec::new());
    assert_eq!(rig.finish(), [1]);
    assert!(rig.done[0].result.is_ok());
}

/// Nobody cares what becomes of a bite of a guess that was given up: it is neither repeated nor resumed.
#[test]
fn errors_of_what_was_given_up_are_forgotten() {
    let whole = Act::Read(u64::MAX);
    for (last, bytes) in [
        (Act::Fail(ErrorKind::NotFound), 0),
        (Act::Fail(ErrorKind::Other), 0),
        (Act::Fail(ErrorKind::Interrupted), 0),
        (Act::Read(9), 9),
        (Act::Read(0), 0),
        (whole, u64::from(BITE)),
    ] {
        let mut rig = biting(&[whole, last]);
        rig.end_reads(1);
        assert!(withdraw(&mut rig).is_empty());
        assert_eq!(rig.finish(), [1]);
        assert_given_up(&rig, u64::from(BITE) + bytes);
        assert_eq!(rig.store.stats().n_reads, 2);
    }
    // An error from before, too.
    let mut rig = biting(&[Act::Fail(ErrorKind::NotFound)]);
    rig.end_reads(2);
    assert!(withdraw(&mut rig).is_empty());
    assert_eq!(rig.finish(), [1]);
    assert_given_up(&rig, 2 * u64::from(BITE));
}

#[test]
fn an_error_in_a_bite_names_where_the_range_ends() {
    let mut rig = biting(&[Act::Read(u64::MAX), Act::Read(0)]);
    assert_eq!(rig.finish(), [1]);
    let first = catalog_of().record(GUESS).unwrap().parts[0];
    let Err(StoreError::Truncated { offset_bytes, end_bytes, .. }) = rig.done[0].result else {
        panic!("truncated")
    };
    assert_eq!((offset_bytes, end_bytes), (first.offset_bytes + u64::from(BITE), first.end_bytes()));
}

/// A store whose queue is short makes the bites larger, and always takes one guess.
#[test]
fn a_short_queue_has_larger_bites() {
    for (depth, n_reads) in [(1, 3), (4, 3), (8, 3), (16, 6), (64, 18)] {
        let mut rig = Rig::biting(crate::Limits { depth, align_bytes: 1 }, 1, 0, &[]);
        rig.begin(&[1], Priority::Guess);
        assert_eq!(rig.finish(), [1]);
        assert_eq!(rig.store.stats().n_reads, n_reads, "a queue of {depth}");
    }
}

#[test]
fn guesses_leave_room_for_demands() {
    let mut rig = Rig::biting(crate::Limits { depth: 32, align_bytes: 1 }, BITE, 0, &[]);
    rig.begin(&[0, 1], Priority::Guess);
    let refused = rig.store.begin(ExpertKey::new(0, 2), rig.lease(2), Priority::Guess).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::QueueFull));
    drop(refused);
    rig.begin(&[2], Priority::Demand);
    assert_eq!(rig.finish(), [2, 0, 1]);
}
