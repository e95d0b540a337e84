//! Time, order and ends of files.

use forerun_arena::{Arena, SlotIdx};
use forerun_storage::Priority;

use super::*;

fn read(arena: &Arena, slot: u32, offset_bytes: u64) -> Read {
    let windows = vec![arena.try_write(SlotIdx(slot)).unwrap().window(3..11)];
    Read { tag: Tag(slot.into()), priority: Priority::Demand, file: 0, offset_bytes, windows }
}

fn flash(profile: FlashProfile, faults: Faults) -> (SimFlash, VirtualClock, Arena) {
    let (file, clock) = (Bytes::from((0..64).collect::<Vec<u8>>()), VirtualClock::new());
    let flash = SimFlash::new(vec![file], profile, faults, 1, clock.clone());
    (flash, clock, Arena::new(8, 64).unwrap())
}

#[test]
fn waiting_jumps_to_the_completion_and_no_further() {
    let profile = FlashProfile { bytes_per_second: 8_000_000, ..FlashProfile::calm() };
    let (mut flash, clock, arena) = flash(profile, Faults::none());
    flash.submit(read(&arena, 0, 16)).unwrap();
    let mut done = Vec::new();
    flash.wait(Nanos(0), &mut done);
    assert!(done.is_empty() && clock.now() == Nanos(0), "a look takes no time");
    flash.wait(Nanos::from_micros(80), &mut done);
    assert!(done.is_empty() && clock.now() == Nanos::from_micros(80));
    flash.wait(Nanos::MAX, &mut done);
    assert_eq!(clock.now(), Nanos::from_micros(81));
    let mut completed = done.pop().unwrap();
    assert_eq!(completed.result.unwrap(), 8);
    assert_eq!(completed.read.windows[0].bytes_mut(), [16, 17, 18, 19, 20, 21, 22, 23]);
    flash.wait(Nanos::MAX, &mut done);
    assert!(
        done.is_empty() && clock.now() == Nanos::from_micros(81),
        "nothing in flight, nothing to wait for"
    );
}

#[test]
fn a_full_queue_gives_the_read_back() {
    let (mut flash, _, arena) = flash(FlashProfile::calm(), Faults::none());
    flash.submit(read(&arena, 0, 0)).unwrap();
    assert_eq!(flash.submit(read(&arena, 1, 0)).unwrap_err().tag, Tag(1));
}

#[test]
fn jitter_changes_the_order() {
    let profile = FlashProfile { jitter: Nanos::from_millis(1), depth: 8, ..FlashProfile::calm() };
    let (mut flash, _, arena) = flash(profile, Faults::none());
    for slot in 0..8 {
        flash.submit(read(&arena, slot, 0)).unwrap();
    }
    let mut done = Vec::new();
    while done.len() < 8 {
        flash.wait(Nanos::MAX, &mut done);
    }
    assert!(!done.is_sorted_by_key(|completed| completed.read.tag));
}

#[test]
fn a_demand_passes_guesses_that_have_not_begun() {
    let profile = FlashProfile { depth: 8, ..FlashProfile::calm() };
    let (mut flash, _, arena) = flash(profile, Faults::none());
    for slot in 0..3 {
        let mut read = read(&arena, slot, 0);
        read.priority = Priority::Guess;
        flash.submit(read).unwrap();
    }
    flash.submit(read(&arena, 3, 0)).unwrap();
    assert!(flash.withdraw(Tag(0)).is_none(), "its transfer has begun");
    assert_eq!(flash.withdraw(Tag(2)).unwrap().tag, Tag(2));
    let mut done = Vec::new();
    while done.len() < 3 {
        flash.wait(Nanos::MAX, &mut done);
    }
    let order: Vec<u64> = done.iter().map(|completed| completed.read.tag.0).collect();
    assert_eq!(order, [0, 3, 1]);
}

#[test]
fn a_truncated_file_gives_what_is_left() {
    let (mut flash, _, arena) = flash(FlashProfile::calm(), Faults::truncated(20));
    flash.submit(read(&arena, 0, 16)).unwrap();
    let mut done = Vec::new();
    flash.wait(Nanos::MAX, &mut done);
    assert_eq!(done[0].result.as_ref().unwrap(), &4);
    assert_eq!(flash.handle().log().n_truncated, 1);
}
