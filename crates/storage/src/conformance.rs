//! What every read backend must do. A backend's own test is one line: it calls [`check`].

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};

use bytes::Bytes;
use forerun_arena::{Arena, SlotIdx, WriteLease};
use forerun_model::Nanos;

use crate::{Completed, Read, ReadBackend, Segment, Tag};

/// Bytes of a slot in these checks.
const SLOT_BYTES: usize = 8192;

/// How often a read in flight is looked at; a fast backend finishes it meanwhile, a simulated one never.
const LOOKS: usize = 1000;

/// What a slot holds before a read, to see what the read left alone.
const UNTOUCHED: u8 = 0xEE;

/// Checks a backend that `make` makes over files of the given contents.
///
/// # Panics
/// When the backend doesn't do what [`ReadBackend`] demands; the message says what.
pub fn check<B: ReadBackend>(mut make: impl FnMut(&[Bytes]) -> B) {
    let files = [pattern(1, 100_003), pattern(2, 70_001), Bytes::new()];
    let mut rig = || Rig { backend: make(&files), files: files.to_vec() };
    rig().bytes_land_where_they_should();
    rig().the_end_of_a_file_is_a_short_read();
    rig().an_unknown_file_is_an_error();
    rig().a_full_queue_gives_the_read_back();
    rig().many_reads_all_come_back_once();
    rig().looking_neither_loses_nor_doubles_a_read();
    rig().waiting_for_nothing_returns();
    rig().a_segment_past_its_slot_panics();
    rig().dropping_frees_the_slots();
}

struct Rig<B> {
    backend: B,
    files: Vec<Bytes>,
}

impl<B: ReadBackend> Rig<B> {
    fn bytes_land_where_they_should(&mut self) {
        let whole = [segment(0, 0, 8192, 0)];
        let odd = [segment(1, 4097, 1, 3), segment(0, 99_999, 4, 8188), segment(1, 1, 4095, 17)];
        let touching = [segment(0, 511, 513, 0), segment(0, 1024, 2, 513), segment(0, 512, 512, 515)];
        let last_byte = [segment(1, 70_000, 1, 0), segment(0, 100_002, 1, 1)];
        let with_empty = [segment(0, 7, 9, 0), segment(1, 50, 0, 9), segment(0, 300, 10, 9)];
        for segments in [&whole[..], &odd, &touching, &last_byte, &with_empty, &[]] {
            let (mut lease, result) = self.one(segments);
            let asked: u64 = segments.iter().map(|segment| u64::from(segment.len_bytes)).sum();
            assert_eq!(result.expect("a read inside the files succeeds"), asked, "{segments:?}");
            assert!(lease.bytes_mut()[..] == self.expected(segments)[..], "wrong bytes for {segments:?}");
        }
    }

    fn the_end_of_a_file_is_a_short_read(&mut self) {
        for (segments, expected) in [
            (vec![segment(0, 100_000, 10, 0)], 3),
            (vec![segment(0, 100_003, 10, 0)], 0),
            (vec![segment(0, 1 << 40, 10, 0)], 0),
            (vec![segment(2, 0, 1, 0)], 0),
            (vec![segment(0, 10, 20, 0), segment(1, 70_000, 5, 100), segment(0, 0, 9, 200)], 21),
        ] {
            let (_, result) = self.one(&segments);
            assert_eq!(result.expect("the end of a file is no error"), expected, "{segments:?}");
        }
    }

    fn an_unknown_file_is_an_error(&mut self) {
        let (_, result) = self.one(&[segment(3, 0, 1, 0)]);
        assert!(result.is_err(), "file 3 of 3 was read");
    }

    fn a_full_queue_gives_the_read_back(&mut self) {
        let depth = self.backend.limits().depth;
        assert!(depth > 0, "a backend of depth 0 can't read");
        let arena = arena(depth + 1);
        for i in 0..depth {
            self.backend.submit(numbered(&arena, i)).expect("the queue has room up to its depth");
        }
        let refused = self.backend.submit(numbered(&arena, depth)).expect_err("the queue is full");
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
        let mut free: Vec<WriteLease> = (0..depth).map(|i| blank(&arena, i)).collect();
        while over.len() < n_reads {
            while begun < n_reads
                && let Some(lease) = free.pop()
            {
                let read = Read { tag: Tag(begun as u64), segments: vec![small(begun)], lease };
                self.backend.submit(read).expect("fewer reads than the depth are in flight");
                begun += 1;
            }
            let before = over.len();
            let mut done = Vec::new();
            self.backend.wait(Nanos::MAX, &mut done);
            for mut completed in done {
                let idx = usize::try_from(completed.tag.0).expect("a tag of ours");
                assert_eq!(completed.result.expect("a read inside the files succeeds"), 100);
                let expected = self.expected(&[small(idx)]);
                assert!(completed.lease.bytes_mut()[..100] == expected[..100], "wrong bytes for read {idx}");
                assert!(over.insert(idx, ()).is_none(), "read {idx} came back twice");
                free.push(completed.lease);
            }
            assert!(over.len() > before, "reads are in flight, and none came back");
        }
    }

    fn looking_neither_loses_nor_doubles_a_read(&mut self) {
        let read = Read { tag: Tag(5), segments: vec![small(5)], lease: blank(&arena(1), 0) };
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
        let Completed { tag, mut lease, result } = done.remove(0);
        assert_eq!((tag, result.expect("a read inside the files succeeds")), (Tag(5), 100));
        assert!(lease.bytes_mut()[..] == self.expected(&[small(5)])[..], "wrong bytes after looking");
    }

    fn a_segment_past_its_slot_panics(&mut self) {
        let slot_bytes = u32::try_from(SLOT_BYTES).expect("a small slot");
        for bad in [segment(0, 0, 1, slot_bytes), segment(0, 0, slot_bytes, 1), segment(0, 0, 2, u32::MAX)] {
            let read = Read { tag: Tag(6), segments: vec![small(6), bad], lease: blank(&arena(1), 0) };
            let submitted = panic::catch_unwind(AssertUnwindSafe(|| self.backend.submit(read)));
            assert!(submitted.is_err(), "{bad:?} was taken for a slot of {SLOT_BYTES} bytes");
        }
    }

    fn waiting_for_nothing_returns(&mut self) {
        let mut done = Vec::new();
        self.backend.wait(Nanos::MAX, &mut done);
        self.backend.wait(Nanos(0), &mut done);
        assert!(done.is_empty(), "nothing was submitted");
        let (_, result) = self.one(&[segment(0, 0, 1, 0)]);
        assert!(matches!(result, Ok(1)));
        self.backend.wait(Nanos::MAX, &mut done);
        assert!(done.is_empty(), "the only read had come back already");
    }

    fn dropping_frees_the_slots(mut self) {
        let n = self.backend.limits().depth.min(5);
        let arena = arena(n);
        for i in 0..n {
            self.backend.submit(numbered(&arena, i)).expect("the queue has room up to its depth");
        }
        drop(self.backend);
        for i in 0..n {
            drop(blank(&arena, i));
        }
    }

    /// Submits one read and waits for it.
    fn one(&mut self, segments: &[Segment]) -> (WriteLease, std::io::Result<u64>) {
        let lease = blank(&arena(1), 0);
        let read = Read { tag: Tag(77), segments: segments.to_vec(), lease };
        self.backend.submit(read).expect("an idle backend takes a read");
        let mut done = Vec::new();
        self.backend.wait(Nanos::MAX, &mut done);
        let Completed { tag, lease, result } = done.pop().expect("a read is in flight, and none came back");
        assert!(tag == Tag(77) && done.is_empty(), "something else came back");
        (lease, result)
    }

    /// A slot after `segments` were read into it.
    fn expected(&self, segments: &[Segment]) -> Vec<u8> {
        let mut slot = vec![UNTOUCHED; SLOT_BYTES];
        for segment in segments {
            let from = usize::try_from(segment.offset_bytes).expect("an offset inside the files");
            let (to, len) = (segment.slot_offset_bytes as usize, segment.len_bytes as usize);
            let file = &self.files[usize::from(segment.file)];
            slot[to..to + len].copy_from_slice(&file[from..from + len]);
        }
        slot
    }
}

fn segment(file: u16, offset_bytes: u64, len_bytes: u32, slot_offset_bytes: u32) -> Segment {
    Segment { file, offset_bytes, len_bytes, slot_offset_bytes }
}

/// A range that differs from read to read.
fn small(idx: usize) -> Segment {
    let offset_bytes = (idx as u64 * 937) % 60_000;
    Segment { file: u16::from(idx % 2 == 1), offset_bytes, len_bytes: 100, slot_offset_bytes: 0 }
}

fn numbered(arena: &Arena, idx: usize) -> Read {
    Read { tag: Tag(idx as u64), segments: vec![small(idx)], lease: blank(arena, idx) }
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
