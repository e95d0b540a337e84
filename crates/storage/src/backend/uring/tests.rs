//! What the conformance suite can't know: pinned slots, what the kernel has while other things happen, and refusals.

use std::ops::Range;
use std::sync::mpsc;

use bytes::Bytes;
use forerun_arena::{SlotIdx, Window, WriteLease};
use forerun_model::SystemClock;

use super::*;
use crate::{Priority, conformance, testing};

/// A block of every disk, so that tests needn't ask which one is there.
pub(super) const BLOCK: usize = 4096;
/// Bytes of the test's file and of its slots.
const N_BLOCKS: usize = 64;
pub(super) const SLOT_BYTES: usize = 16 * BLOCK;

pub(super) fn contents() -> Bytes {
    let bytes = (0..N_BLOCKS * BLOCK).map(|i| (i * 31 + i / BLOCK).to_le_bytes()[0]);
    bytes.collect::<Vec<_>>().into()
}

/// The files opened directly, where that and `io_uring` can be had; else why not, on stderr.
pub(super) fn direct(contents: &[Bytes]) -> Option<DirectFiles> {
    let files = DirectFiles::open(&testing::temporary(contents));
    let files = files.inspect_err(|why| eprintln!("skipped: no direct reads: {why}")).ok()?;
    match Ring::new(files.clone(), 1) {
        Ok(_) => Some(files),
        Err(why @ (UringError::Ring { .. } | UringError::Operation { .. })) => {
            eprintln!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

fn backend(files: DirectFiles, device_depth: usize, depth: usize, pinned: Option<&Arena>) -> UringBackend {
    let config = UringConfig { device_depth, depth };
    UringBackend::new(files, config, pinned, Arc::new(SystemClock::new())).unwrap()
}

/// A thread's half without its thread.
pub(super) fn reader(
    files: DirectFiles,
    n_places: usize,
) -> (Reader, Queue, SyncSender<Completed>, mpsc::Receiver<Completed>) {
    let (sender, done) = mpsc::sync_channel(16);
    let reader = Reader::new(Ring::new(files, n_places).unwrap(), Arc::default()).unwrap();
    (reader, Queue::default(), sender, done)
}

fn lease(arena: &Arena, slot: u32) -> WriteLease {
    arena.try_write(SlotIdx(slot)).expect("nobody holds this slot")
}

/// A part of a slot, in blocks.
pub(super) fn window(arena: &Arena, slot: u32, blocks: Range<usize>) -> Vec<Window> {
    vec![lease(arena, slot).window(blocks.start * BLOCK..blocks.end * BLOCK)]
}

pub(super) fn read(tag: u64, first_block: usize, windows: Vec<Window>) -> Read {
    let (tag, offset_bytes) = (Tag(tag), (first_block * BLOCK) as u64);
    Read { tag, priority: Priority::Demand, file: 0, offset_bytes, windows }
}

#[track_caller]
pub(super) fn check_bytes(completed: &mut Completed) {
    let mut at = usize::try_from(completed.read.offset_bytes).unwrap();
    for window in &mut completed.read.windows {
        let bytes = window.bytes_mut();
        assert!(bytes == &contents()[at..at + bytes.len()], "{:?}", completed.read.tag);
        at += bytes.len();
    }
    assert_eq!(completed.result.as_ref().unwrap(), &completed.read.len_bytes());
}

/// Completions of as many reads, in the order of their tags.
fn wait_for(backend: &mut UringBackend, n: usize) -> Vec<Completed> {
    let mut done = Vec::new();
    while done.len() < n {
        backend.wait(Nanos::MAX, &mut done);
    }
    done.sort_by_key(|completed| completed.read.tag);
    done
}

#[test]
fn uring_conforms() {
    if direct(&[contents()]).is_none() {
        return;
    }
    let elsewhere = Arena::new(3, SLOT_BYTES).unwrap();
    for (depth, device_depth) in [(1, 1), (4, 2), (64, 4)] {
        for pinned in [None, Some(&elsewhere)] {
            conformance::check(|files| backend(direct(files).unwrap(), device_depth, depth, pinned));
        }
    }
}

#[test]
fn reads_into_one_part_of_a_pinned_slot_are_fixed_and_others_are_right_too() {
    let Some(files) = direct(&[contents()]) else { return };
    let (pinned, other) = (Arena::new(4, SLOT_BYTES).unwrap(), Arena::new(1, SLOT_BYTES).unwrap());
    let mut backend = backend(files, 4, 8, Some(&pinned));
    assert!(backend.unpinned().is_none(), "{:?}", backend.unpinned());
    let mut over_two =
        lease(&pinned, 2).split([BLOCK..3 * BLOCK, 7 * BLOCK..7 * BLOCK, 8 * BLOCK..16 * BLOCK]);
    over_two.extend(window(&pinned, 3, 0..5));
    let after_none = lease(&pinned, 1).split([BLOCK..BLOCK, 5 * BLOCK..9 * BLOCK]);
    for read in [
        read(0, 3, window(&pinned, 0, 0..16)),
        read(1, 9, after_none),
        read(2, 0, over_two),
        read(3, 40, window(&other, 0, 0..16)),
    ] {
        backend.submit(read).unwrap();
    }
    wait_for(&mut backend, 4).iter_mut().for_each(check_bytes);
    assert_eq!(backend.n_fixed(), 2);
}

#[test]
fn a_slot_is_found_in_its_registered_buffer() {
    let Some(files) = direct(&[contents()]) else { return };
    let arena = Arena::new(7, SLOT_BYTES).unwrap();
    // Buffers of two slots, and a last one of one.
    let mut ring = Ring::new(files, 7).unwrap();
    ring.pin(&arena, 2 * SLOT_BYTES + BLOCK).unwrap();
    for slot in 0..7 {
        let read = read(slot.into(), slot as usize, window(&arena, slot, slot as usize..16));
        assert!(ring.begin(read).unwrap(), "slot {slot} isn't pinned");
    }
    while ring.n_in_flight() > 0 {
        ring.enter().unwrap();
        while let Some(ring::Event::Read(mut completed)) = ring.next() {
            check_bytes(&mut completed);
        }
    }
}

#[test]
fn a_backend_keeps_pinned_memory_and_leases_keep_theirs() {
    let Some(files) = direct(&[contents()]) else { return };
    let arena = Arena::new(1, SLOT_BYTES).unwrap();
    let mut backend = backend(files, 1, 1, Some(&arena));
    let windows = window(&arena, 0, 0..16);
    drop(arena);
    backend.submit(read(0, 5, windows)).unwrap();
    let mut done = wait_for(&mut backend, 1);
    drop(backend);
    check_bytes(&mut done[0]);
}

#[test]
fn a_read_of_too_many_parts_is_short() {
    let Some(files) = direct(&[contents()]) else { return };
    let (n_parts, unit) = (1500, files.align_bytes() as usize);
    let mut backend = backend(files, 1, 1, None);
    let arena = Arena::new(1, n_parts * unit).unwrap();
    let parts = lease(&arena, 0).split((0..n_parts).map(|i| i * unit..(i + 1) * unit));
    backend.submit(read(0, 0, parts)).unwrap();
    let Completed { read, result } = wait_for(&mut backend, 1).remove(0);
    let n_bytes = usize::try_from(result.unwrap()).unwrap();
    assert_eq!(n_bytes, (1024 * unit).min(contents().len()));
    let lease = read.windows.into_iter().find_map(Window::join).unwrap();
    assert!(lease.seal().bytes()[..n_bytes] == contents()[..n_bytes]);
}

#[test]
fn dropping_waits_for_what_the_kernel_has() {
    let Some(files) = direct(&[contents()]) else { return };
    let arena = Arena::new(4, SLOT_BYTES).unwrap();
    for entered in [false, true] {
        let mut ring = Ring::new(files.clone(), 4).unwrap();
        for slot in 0..4 {
            ring.begin(read(slot.into(), 2, window(&arena, slot, 0..16))).unwrap();
        }
        if entered {
            ring.enter().unwrap();
        }
        assert!(arena.try_write(SlotIdx(0)).is_none());
        drop(ring);
        for slot in 0..4 {
            // Not only free: nothing is on its way into it, for all of it has arrived.
            let mut lease = lease(&arena, slot);
            assert!(lease.bytes_mut() == &contents()[2 * BLOCK..18 * BLOCK], "slot {slot}");
            lease.bytes_mut().fill(0);
        }
    }
}

#[test]
fn demands_begin_first_and_a_guess_is_withdrawn_while_the_kernel_reads() {
    let Some(files) = direct(&[contents()]) else { return };
    let arena = Arena::new(4, SLOT_BYTES).unwrap();
    let (mut reader, queue, sender, done) = reader(files, 2);
    for (slot, priority) in
        [Priority::Guess, Priority::Demand, Priority::Guess, Priority::Demand].iter().enumerate()
    {
        let slot = u32::try_from(slot).unwrap();
        queue.push(Read { priority: *priority, ..read(slot.into(), 1, window(&arena, slot, 0..16)) });
    }
    reader.fill(&queue, &sender);
    assert!(queue.withdraw(Tag(1)).is_none() && queue.withdraw(Tag(3)).is_none(), "demands wait");
    let guess = queue.withdraw(Tag(2)).expect("no place was free for it");
    assert_eq!((guess.tag, guess.windows.len()), (Tag(2), 1));
    let mut over = Vec::new();
    while over.len() < 3 {
        reader.turn(&queue, &sender).unwrap();
        over.extend(done.try_iter());
    }
    over.iter_mut().for_each(check_bytes);
    over.sort_by_key(|completed| completed.read.tag);
    assert_eq!(over.iter().map(|completed| completed.read.tag.0).collect::<Vec<_>>(), [0, 1, 3]);
}

#[test]
fn a_refused_direct_read_goes_through_the_page_cache() {
    let Some(files) = direct(&[contents()]) else { return };
    let arena = Arena::new(1, SLOT_BYTES).unwrap();
    let (mut reader, queue, sender, done) = reader(files.clone(), 1);
    // No disk has blocks of one byte.
    let window = vec![lease(&arena, 0).window(1..BLOCK)];
    queue.push(Read { offset_bytes: 1, ..read(0, 0, window) });
    reader.turn(&queue, &sender).unwrap();
    check_bytes(&mut done.try_recv().unwrap());
    assert!(files.was_refused(), "this file system reads single bytes directly");
}

#[test]
fn a_ring_that_the_kernel_refuses_is_an_error_in_words() {
    let Some(files) = direct(&[contents()]) else { return };
    let config = UringConfig { device_depth: 1 << 20, depth: 1 << 20 };
    let refused = UringBackend::new(files, config, None, Arc::new(SystemClock::new()));
    let error = refused.err().expect("more entries than any kernel takes");
    assert!(matches!(error, UringError::Ring { .. }), "{error:?}");
    assert!(error.to_string().starts_with("the kernel refuses a ring (Invalid argument"), "{error}");
}

/// Names the process that may lower its own limits.
const LIMITED: &str = "FORERUN_TEST_LIMITED";

#[test]
fn too_little_lockable_memory_means_slots_that_are_not_pinned() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let Some(files) = direct(&[contents()]) else { return };
    if std::env::var_os(LIMITED).is_none() {
        // Limits are the process's, so the test goes on in one of its own.
        let name = "backend::uring::tests::too_little_lockable_memory_means_slots_that_are_not_pinned";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(LIMITED, "1")
            .output();
        let child = child.unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{child:?}");
        return;
    }
    // Enough for the rings of all tests that run at once.
    let hard = getrlimit(Resource::Memlock);
    let current = hard.maximum.map_or(8 << 20, |most| most.min(8 << 20));
    let limit = Rlimit { current: Some(current), ..hard };
    setrlimit(Resource::Memlock, limit).unwrap();
    let mut mine = capabilities(None).unwrap();
    // Who may lock memory has no limit.
    mine.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, mine).unwrap();
    let arena = Arena::new(4, 4 << 20).unwrap();
    let mut backend = backend(files, 1, 1, Some(&arena));
    let why = backend.unpinned().expect("16 MiB are more than allowed").to_string();
    assert!(why.starts_with("the kernel refuses to pin 16777216 bytes of slots; raise the limit"), "{why}");
    backend.submit(read(0, 5, window(&arena, 0, 0..16))).unwrap();
    check_bytes(&mut wait_for(&mut backend, 1)[0]);
    assert_eq!(backend.n_fixed(), 0);
}
