//! What every read backend must do. A backend's own test is one line: it calls [`check`].

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use forerun_arena::{Arena, SlotIdx, Window, WriteLease};
use forerun_model::Nanos;

use crate::{Completed, Priority, Read, ReadBackend, Tag};

/// Bytes of a slot in these checks: eight of the largest blocks.
const SLOT_BYTES: usize = 8 * 4096;

/// How often a read in flight is looked at; a fast backend finishes it meanwhile, a simulated one never.
const LOOKS: usize = 1000;

/// What a slot holds before a read, to see what the read left alone.
const UNTOUCHED: u8 = 0xEE;

/// Checks a backend that `make` makes over files of the given contents.
///
/// # Panics
/// When the backend doesn't do what [`ReadBackend`] demands; the message says what.
pub fn check<B: ReadBackend>(mut make: impl FnMut(&[Bytes]) -> B) {
    let files = [pattern(1, 200_003), pattern(2, 170_001), Bytes::new()];
    let mut rig = || {
        let backend = make(&files);
        let unit = backend.limits().align_bytes;
        assert!(unit.is_power_of_two() && unit <= 4096, "{unit} is no block");
        Rig { backend, files: files.to_vec(), unit: unit as usize }
    };
    rig().bytes_land_where_they_should();
    rig().the_end_of_a_file_is_a_short_read();
    rig().an_unknown_file_is_an_error();
    rig().a_full_queue_gives_the_read_back();
    rig().many_reads_all_come_back_once();
    rig().a_withdrawn_read_never_comes_back();
    rig().looking_neither_loses_nor_doubles_a_read();
    rig().waiting_for_nothing_returns();
    rig().dropping_frees_the_slots();
}

struct Rig<B> {
    backend: B,
    files: Vec<Bytes>,
    /// What offsets and windows are multiples of.
    unit: usize,
}

/// A read of one file into parts of slots: `(slot, part)`.
type Plan = (u16, u64, Vec<(usize, Range<usize>)>);

impl<B: ReadBackend> Rig<B> {
    fn bytes_land_where_they_should(&mut self) {
        let u = self.unit;
        let mut plans: Vec<Plan> = vec![
            (0, 0, vec![(0, 0..8 * u)]),
            (1, 3 * u as u64, vec![(0, 2 * u..3 * u)]),
            (0, u as u64, vec![(1, 0..2 * u), (0, 5 * u..6 * u), (2, u..4 * u)]),
            (1, 7 * u as u64, vec![(0, 0..u), (0, 3 * u..8 * u)]),
            (1, 7 * u as u64, vec![(0, 0..u), (1, u..u), (2, 3 * u..8 * u)]),
            (0, 9 * u as u64, vec![]),
        ];
        if u == 1 {
            plans.push((1, 4097, vec![(0, 3..4), (1, 8187..8192)]));
            plans.push((0, 200_002, vec![(0, 0..1)]));
            plans.push((0, 511, vec![(0, 1..514), (1, 0..20_001)]));
        }
        for plan in plans {
            let asked: usize = plan.2.iter().map(|(_, part)| part.len()).sum();
            let (slots, result) = self.one(&plan);
            assert_eq!(result.expect("a read inside the files succeeds"), asked as u64, "{plan:?}");
            for (slot, lease) in slots {
                assert!(lease.seal().bytes() == self.expected(&plan, slot), "wrong bytes for {plan:?}");
            }
        }
    }

    fn the_end_of_a_file_is_a_short_read(&mut self) {
        let u = self.unit;
        let last = 200_003 / u * u;
        for plan in [
            (0, last as u64, vec![(0, 0..4 * u)]),
            (0, (last - u) as u64, vec![(0, 0..u), (1, 0..u), (2, 2 * u..4 * u)]),
            (0, (last + u) as u64, vec![(0, 0..u)]),
            (0, 1 << 40, vec![(0, 0..u)]),
            (2, 0, vec![(0, 0..u)]),
        ] {
            let asked: usize = plan.2.iter().map(|(_, part)| part.len()).sum();
            let there = (self.files[usize::from(plan.0)].len() as u64).saturating_sub(plan.1);
            let (_, result) = self.one(&plan);
            assert_eq!(result.expect("the end of a file is no error"), there.min(asked as u64), "{plan:?}");
        }
    }

    fn an_unknown_file_is_an_error(&mut self) {
        let unit = self.unit;
        let (_, result) = self.one(&(3, 0, vec![(0, 0..unit)]));
        assert!(result.is_err(), "file 3 of 3 was read");
    }

    fn a_full_queue_gives_the_read_back(&mut self) {
        let depth = self.backend.limits().depth;
        assert!(depth > 0, "a backend of depth 0 can't read");
        let arena = arena(depth + 1);
        for i in 0..depth {
            let read = self.numbered(&arena, i);
            self.backend.submit(read).expect("the queue has room up to its depth");
        }
        let read = self.numbered(&arena, depth);
        let refused = self.backend.submit(read).expect_err("the queue is full");
        assert_eq!(refused.tag, Tag(depth as u64), "another read came back");
        let mut done = Vec::new();
        self.backend.wait(Nanos::MAX, &mut done);
        assert!(!done.is_empty(), "reads are in flight, and none came back");
        self.backend.submit(refused).expect("a completed read frees its place");
    }

    fn many_reads_all_come_back_once(&mut self) {
        let depth = self.backend.limits().depth;
        let arena = arena(depth);
        let n_reads = 3 * depth + 1;
        let (mut begun, mut over) = (0, BTreeMap::new());
        let mut free: Vec<usize> = (0..depth).collect();
        while over.len() < n_reads {
            while begun < n_reads
                && let Some(slot) = free.pop()
            {
                let mut read = self.numbered(&arena, slot);
                (read.tag, read.offset_bytes) = (Tag(begun as u64), self.offset(begun));
                self.backend.submit(read).expect("fewer reads than the depth are in flight");
                begun += 1;
            }
            let before = over.len();
            let mut done = Vec::new();
            self.backend.wait(Nanos::MAX, &mut done);
            for completed in done {
                let (idx, slot) = self.check_numbered(completed);
                assert!(over.insert(idx, ()).is_none(), "read {idx} came back twice");
                free.push(slot);
            }
            assert!(over.len() > before, "reads are in flight, and none came back");
        }
    }

    fn a_withdrawn_read_never_comes_back(&mut self) {
        let depth = self.backend.limits().depth;
        let arena = arena(depth);
        for i in 0..depth {
            let mut read = self.numbered(&arena, i);
            read.priority = if i % 2 == 0 { Priority::Demand } else { Priority::Guess };
            self.backend.submit(read).expect("the queue has room up to its depth");
        }
        assert!(self.backend.withdraw(Tag(1 << 40)).is_none(), "a read that was never submitted came back");
        let mut left: Vec<bool> = vec![true; depth];
        for i in (0..depth).rev() {
            if let Some(read) = self.backend.withdraw(Tag(i as u64)) {
                assert_eq!(read.tag, Tag(i as u64), "another read came back");
                assert_eq!(read.len_bytes(), self.unit as u64, "a read came back with other windows");
                left[i] = false;
                assert!(self.backend.withdraw(Tag(i as u64)).is_none(), "a read came back twice");
            }
        }
        while left.contains(&true) {
            let mut done = Vec::new();
            self.backend.wait(Nanos::MAX, &mut done);
            assert!(!done.is_empty(), "reads are in flight, and none came back");
            for completed in done {
                let (idx, _) = self.check_numbered(completed);
                assert!(left[idx], "read {idx} was withdrawn or came back before");
                left[idx] = false;
            }
        }
        let mut done = Vec::new();
        self.backend.wait(Nanos::MAX, &mut done);
        assert!(done.is_empty(), "a withdrawn read came back");
    }

    fn looking_neither_loses_nor_doubles_a_read(&mut self) {
        let read = self.numbered(&arena(1), 0);
        self.backend.submit(read).expect("an idle backend takes a read");
        let mut done = Vec::new();
        for _ in 0..LOOKS {
            self.backend.wait(Nanos(0), &mut done);
        }
        if done.is_empty() {
            self.backend.wait(Nanos::MAX, &mut done);
        }
        self.backend.wait(Nanos(0), &mut done);
        self.backend.wait(Nanos::MAX, &mut done);
        assert_eq!(done.len(), 1, "one read was submitted, and so many came back");
        assert_eq!(self.check_numbered(done.remove(0)).0, 0);
    }

    fn waiting_for_nothing_returns(&mut self) {
        let mut done = Vec::new();
        self.backend.wait(Nanos::MAX, &mut done);
        self.backend.wait(Nanos(0), &mut done);
        assert!(done.is_empty(), "nothing was submitted");
        let unit = self.unit;
        let (_, result) = self.one(&(0, 0, vec![(0, 0..unit)]));
        assert!(matches!(result, Ok(n) if n == unit as u64));
        self.backend.wait(Nanos::MAX, &mut done);
        assert!(done.is_empty(), "the only read had come back already");
    }

    fn dropping_frees_the_slots(mut self) {
        let n = self.backend.limits().depth.min(5);
        let arena = arena(n);
        for i in 0..n {
            let read = self.numbered(&arena, i);
            self.backend.submit(read).expect("the queue has room up to its depth");
        }
        drop(self.backend);
        for i in 0..n {
            drop(blank(&arena, i));
        }
    }

    /// Carries out one read over slots of their own.
    fn one(&mut self, plan: &Plan) -> (Vec<(usize, WriteLease)>, io::Result<u64>) {
        let (file, offset_bytes, windows) = plan;
        let arena = arena(3);
        // Of each slot one window is kept out of the read: it brings the slot back even when the read has none of it.
        let mut parts: Vec<Option<Window>> = windows.iter().map(|_| None).collect();
        let mut kept = Vec::new();
        for slot in 0..3 {
            let mine: Vec<usize> = (0..windows.len()).filter(|&i| windows[i].0 == slot).collect();
            let ranges =
                mine.iter().map(|&i| windows[i].1.clone()).chain(std::iter::once(SLOT_BYTES..SLOT_BYTES));
            let mut split = blank(&arena, slot).split(ranges);
            kept.push(split.pop().expect("the last window is the empty one"));
            for (i, window) in mine.into_iter().zip(split) {
                parts[i] = Some(window);
            }
        }
        let windows = parts.into_iter().flatten().collect();
        let read = Read {
            tag: Tag(77),
            priority: Priority::Demand,
            file: *file,
            offset_bytes: *offset_bytes,
            windows,
        };
        self.backend.submit(read).expect("an idle backend takes a read");
        let mut done = Vec::new();
        self.backend.wait(Nanos::MAX, &mut done);
        let Completed { read, result } = done.pop().expect("a read is in flight, and none came back");
        assert!(read.tag == Tag(77) && done.is_empty(), "something else came back");
        assert!((read.file, read.offset_bytes) == (*file, *offset_bytes), "the read was changed");
        let windows = read.windows.into_iter().chain(kept);
        let leases = windows.filter_map(Window::join).map(|lease| (lease.slot().0 as usize, lease));
        (leases.collect(), result)
    }

    /// A slot after `plan` was carried out.
    fn expected(&self, (file, offset_bytes, windows): &Plan, slot: usize) -> Vec<u8> {
        let mut bytes = vec![UNTOUCHED; SLOT_BYTES];
        let mut at = usize::try_from(*offset_bytes).expect("an offset inside the files");
        for (of, part) in windows {
            if *of == slot {
                bytes[part.clone()].copy_from_slice(&self.files[usize::from(*file)][at..at + part.len()]);
            }
            at += part.len();
        }
        bytes
    }

    /// A range that differs from read to read.
    fn offset(&self, idx: usize) -> u64 {
        ((idx * 937) % (160_000 / self.unit) * self.unit) as u64
    }

    /// A read of one unit into the front of slot `idx`.
    fn numbered(&self, arena: &Arena, idx: usize) -> Read {
        let windows = vec![blank(arena, idx).window(0..self.unit)];
        let (tag, offset_bytes) = (Tag(idx as u64), self.offset(idx));
        Read { tag, priority: Priority::Demand, file: 1, offset_bytes, windows }
    }

    /// Checks a completed read of [`Self::numbered`]; returns its number and its slot.
    fn check_numbered(&self, Completed { read, result }: Completed) -> (usize, usize) {
        let idx = usize::try_from(read.tag.0).expect("a tag of ours");
        assert_eq!(result.expect("a read inside the files succeeds"), self.unit as u64);
        let lease = read.windows.into_iter().find_map(Window::join).expect("the window came back");
        let slot = lease.slot().0 as usize;
        let expected = self.expected(&(1, self.offset(idx), vec![(slot, 0..self.unit)]), slot);
        assert!(lease.seal().bytes() == expected, "wrong bytes for read {idx}");
        (idx, slot)
    }
}

fn arena(n_slots: usize) -> Arena {
    Arena::new(n_slots, SLOT_BYTES).expect("a small arena can be allocated")
}

fn blank(arena: &Arena, idx: usize) -> WriteLease {
    let slot = SlotIdx(u32::try_from(idx).expect("a small index"));
    let mut lease = arena.try_write(slot).expect("nobody holds this slot");
    lease.bytes_mut().fill(UNTOUCHED);
    lease
}

/// Bytes without a short period.
fn pattern(seed: u64, len: usize) -> Bytes {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}
