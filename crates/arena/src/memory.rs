//! The memory of all slots, and the word per slot that keeps writer and readers apart.

#![expect(unsafe_code, reason = "slot bytes cross threads; the state word of each slot keeps them apart")]

use std::io;
use std::ops::Range;
use std::ptr;

use memmap2::{MmapMut, MmapOptions};

use crate::ArenaError;
use crate::lease::WriteLease;
use crate::sync::{Access, Arc, AtomicU32, Ordering};

/// Slots begin at multiples of this, which is what direct reads ask for.
pub const SLOT_ALIGN_BYTES: usize = 4096;

/// The first slot begins at a multiple of this, and so many bytes of slots share a page where the system has such.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Index of a slot in its arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIdx(pub u32);

/// The state word of a slot that a [`WriteLease`] holds; other values count the [`ReadLease`]s.
const WRITING: u32 = u32::MAX;

/// Slots of one size, allocated once and never grown. Clones share the memory.
#[derive(Clone)]
pub struct Arena(Arc<Memory>);

impl Arena {
    /// `n_slots` slots of at least `slot_bytes` bytes each (rounded up to [`SLOT_ALIGN_BYTES`]). Pages become
    /// resident when first written, huge ones as a whole: at most all slots are.
    ///
    /// # Errors
    /// [`ArenaError`] when the size is zero or absurd, or the system refuses the memory.
    pub fn new(n_slots: usize, slot_bytes: usize) -> Result<Self, ArenaError> {
        let size = || ArenaError::Size { n_slots, slot_bytes };
        let stride = slot_bytes.checked_next_multiple_of(SLOT_ALIGN_BYTES).ok_or_else(size)?;
        let bytes = stride.checked_mul(n_slots).filter(|&b| b > 0 && b <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(size)?;
        if u32::try_from(n_slots).is_err() {
            return Err(size());
        }
        // Addresses that are never touched cost nothing.
        let spare = if bytes < HUGE_PAGE_BYTES { 0 } else { HUGE_PAGE_BYTES };
        let map = MmapOptions::new().len(bytes.checked_add(spare).ok_or_else(size)?).map_anon();
        let mut map = map.map_err(|source| ArenaError::Refused { bytes, source })?;
        let offset = if spare == 0 { 0 } else { map.as_ptr().align_offset(HUGE_PAGE_BYTES) };
        let base = map[offset..].as_mut_ptr();
        let no_huge_pages = ask_for_huge_pages(&map, offset, bytes).err();
        let states = (0..n_slots).map(|_| AtomicU32::new(0)).collect();
        let accesses = (0..n_slots).map(|_| Access::new()).collect();
        Ok(Self(Arc::new(Memory { base, offset, map, no_huge_pages, stride, states, accesses })))
    }

    /// The arena that a lease's memory is of.
    pub(crate) fn of(memory: &Arc<Memory>) -> Self {
        Self(Arc::clone(memory))
    }

    /// Slots.
    pub fn n_slots(&self) -> usize {
        self.0.states.len()
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.stride
    }

    /// Why the slots aren't in huge pages; `None` when the system was asked for them and takes such wishes.
    pub fn no_huge_pages(&self) -> Option<&str> {
        self.0.no_huge_pages.as_deref()
    }

    /// Makes all pages resident now, on `n_threads` threads, instead of one by one when slots are first filled: reads into
    /// them needn't wait for the system to find and clear memory then. No byte changes, so leases may be out.
    ///
    /// # Errors
    /// When the system can't (Linux can, from 5.14 on) or has not enough memory; slots work all the same.
    pub fn touch(&self, n_threads: usize) -> io::Result<()> {
        let Memory { offset, states, stride, .. } = &*self.0;
        let bytes = states.len() * stride;
        let part = bytes.div_ceil(n_threads.max(1)).next_multiple_of(HUGE_PAGE_BYTES);
        std::thread::scope(|scope| {
            let parts = (0..bytes).step_by(part).map(|start| {
                let end = (start + part).min(bytes);
                let builder = std::thread::Builder::new().name("touch".to_owned());
                builder.spawn_scoped(scope, move || populate(&self.0.map, offset + start, end - start))
            });
            // Each is waited for, whatever became of those before it.
            let ends: Vec<_> = parts.collect();
            ends.into_iter()
                .try_for_each(|end| end?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// The memory of all slots, cut between slots into regions of at most `bytes_max` bytes, in the order of the slots;
    /// no regions when a slot has more.
    ///
    /// For telling a system of memory before it is used, such as a kernel that pins it. The bytes belong to the leases:
    /// only who holds those of a part may have it read or written. Whoever keeps a region keeps a clone of the arena
    /// with it, for the memory is gone with the last one.
    pub fn regions(&self, bytes_max: usize) -> impl Iterator<Item = *mut [u8]> {
        let Memory { base, stride, states, .. } = &*self.0;
        let (bytes, region_bytes) = (states.len() * stride, bytes_max / stride * stride);
        let starts = (0..bytes).step_by(region_bytes.max(1)).take_while(move |_| region_bytes > 0);
        starts.map(move |start| {
            ptr::slice_from_raw_parts_mut(base.wrapping_add(start), region_bytes.min(bytes - start))
        })
    }

    /// The right to fill `slot`; `None` while any lease of it lives.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn try_write(&self, slot: SlotIdx) -> Option<WriteLease> {
        let state = &self.0.states[slot.0 as usize];
        // Acquire: what the last readers did happens before the writing.
        state.compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(WriteLease::new(Arc::clone(&self.0), slot))
    }
}

/// Shared by the arena and all leases.
pub(crate) struct Memory {
    base: *mut u8,
    /// Where the first slot begins in `map`.
    offset: usize,
    no_huge_pages: Option<String>,
    /// Keeps the pages alive; all access to bytes goes through `base`.
    map: MmapMut,
    stride: usize,
    states: Box<[AtomicU32]>,
    /// Tells loom who touches which slot when, since it doesn't see raw memory; nothing otherwise.
    accesses: Box<[Access]>,
}

// SAFETY: `base` points into `map`, which lives as long as `Memory`; the bytes behind it are only reached through
// leases, and the state words let a slot have either one writer or any number of readers.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`: shared access to the bytes is what the state words arbitrate.
unsafe impl Sync for Memory {}

impl Memory {
    /// The bytes of `slot`, for its readers.
    ///
    /// # Safety
    /// The caller holds a read or write lease of `slot` for all of `'_`.
    pub(crate) unsafe fn bytes(&self, slot: SlotIdx) -> &[u8] {
        self.accesses[slot.0 as usize].read();
        // SAFETY: in bounds, since `slot` came from `try_write`, which checked it; initialised, since anonymous
        // pages read as zero; nobody writes while the caller's lease lives.
        unsafe { std::slice::from_raw_parts(self.slot_ptr(slot), self.stride) }
    }

    /// The bytes of `slot`, for its writer.
    ///
    /// # Safety
    /// The caller holds the write lease of `slot` exclusively for all of `'_`.
    #[expect(
        clippy::mut_from_ref,
        reason = "the write lease is the exclusive right, not the borrow of Memory"
    )]
    pub(crate) unsafe fn bytes_mut(&self, slot: SlotIdx) -> &mut [u8] {
        self.accesses[slot.0 as usize].write();
        // SAFETY: in bounds as above; the write lease excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.slot_ptr(slot), self.stride) }
    }

    /// A part of the bytes of `slot`, for the window that holds it.
    ///
    /// # Safety
    /// `part` lies inside the slot, whose write lease exists, and the caller excludes every other access to the part
    /// for all of `'_`.
    #[expect(clippy::mut_from_ref, reason = "the window is the exclusive right, not the borrow of Memory")]
    pub(crate) unsafe fn part_mut(&self, slot: SlotIdx, part: Range<usize>) -> &mut [u8] {
        // Windows write at once, each its own part: to loom, which has one cell a slot, none of them excludes another.
        self.accesses[slot.0 as usize].read();
        // SAFETY: in bounds by the caller's promise; pages are initialised as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.slot_ptr(slot).add(part.start), part.len()) }
    }

    /// Drops the pages of `slot`.
    ///
    /// # Safety
    /// The caller holds the write lease of `slot`, and no reference to its bytes lives.
    pub(crate) unsafe fn release_pages(&self, slot: SlotIdx) -> io::Result<()> {
        self.accesses[slot.0 as usize].write();
        #[cfg(unix)]
        if let Some(pages) =
            whole_pages(slot.0 as usize * self.stride, self.stride, rustix::param::page_size())
        {
            let start = self.offset + pages.start;
            // SAFETY: whole pages inside the slot, so no neighbour loses a byte; the map is as long as all slots. Dropped
            // anonymous pages read as zero, which is as good as any other content of a slot that nobody has sealed; no
            // reference to them lives.
            unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, pages.len())?;
            }
            // Or the system might fill the hole again, to join it with its neighbours.
            #[cfg(target_os = "linux")]
            self.map.advise_range(memmap2::Advice::NoHugePage, start, pages.len())?;
        }
        Ok(())
    }

    /// Bytes of one slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.stride
    }

    fn slot_ptr(&self, slot: SlotIdx) -> *mut u8 {
        // SAFETY: `slot` is below `states.len()`, and the map has `states.len() * stride` bytes from `base` on.
        unsafe { self.base.add(slot.0 as usize * self.stride) }
    }

    /// The writer becomes the first reader.
    pub(crate) fn seal(&self, slot: SlotIdx) {
        // Release: the written bytes happen before whatever a reader of another thread does. Whatever moves the lease
        // to that thread orders them too, so no model can tell.
        self.states[slot.0 as usize].store(1, Ordering::Release);
    }

    pub(crate) fn add_reader(&self, slot: SlotIdx) {
        let before = self.states[slot.0 as usize].fetch_add(1, Ordering::Relaxed);
        assert!(before < WRITING - 1, "too many readers of slot {}", slot.0);
    }

    pub(crate) fn drop_reader(&self, slot: SlotIdx) {
        // Release: this reader's reads happen before the next writer's writes.
        self.states[slot.0 as usize].fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn drop_writer(&self, slot: SlotIdx) {
        self.states[slot.0 as usize].store(0, Ordering::Release);
    }

    pub(crate) fn n_readers(&self, slot: SlotIdx) -> u32 {
        self.states[slot.0 as usize].load(Ordering::Acquire)
    }
}

/// Asks for huge pages under the slots, which are `bytes` from `offset` on: a product with weights in them looks up fewer
/// addresses. A huge page is resident as a whole, so the end that doesn't fill one is left to small ones.
///
/// # Errors
/// Why there are none, in words.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(map: &MmapMut, offset: usize, bytes: usize) -> Result<(), String> {
    let filled = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if filled == 0 {
        return Err("all slots together are smaller than one".to_owned());
    }
    let refused = |why: io::Error| format!("the system refused them: {why}");
    map.advise_range(memmap2::Advice::HugePage, offset, filled).map_err(refused)?;
    let end = offset + filled;
    // A system that makes huge pages without being asked would make the end larger than it is.
    map.advise_range(memmap2::Advice::NoHugePage, end, map.len() - end).map_err(refused)
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_map: &MmapMut, _offset: usize, _bytes: usize) -> Result<(), String> {
    Err("this system isn't asked for them".to_owned())
}

#[cfg(target_os = "linux")]
fn populate(map: &MmapMut, offset: usize, bytes: usize) -> io::Result<()> {
    map.advise_range(memmap2::Advice::PopulateWrite, offset, bytes)
}

#[cfg(not(target_os = "linux"))]
fn populate(_map: &MmapMut, _offset: usize, _bytes: usize) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this system makes pages resident only when they are used",
    ))
}

/// The pages of `page_bytes` that lie inside a range as a whole; systems have larger ones than slots are aligned to.
#[cfg(unix)]
fn whole_pages(start: usize, len: usize, page_bytes: usize) -> Option<Range<usize>> {
    let end = (start + len) / page_bytes * page_bytes;
    let start = start.next_multiple_of(page_bytes);
    (start < end).then_some(start..end)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn only_pages_inside_a_slot_are_given_back() {
        assert_eq!(whole_pages(8192, 8192, 4096), Some(8192..16_384));
        assert_eq!(whole_pages(8192, 40_960, 16_384), Some(16_384..49_152));
        assert_eq!(whole_pages(4096, 12_288, 16_384), None);
        assert_eq!(whole_pages(4096, 65_536, 65_536), None);
    }

    #[test]
    fn a_slot_given_back_leaves_its_neighbours_alone() {
        let arena = Arena::new(3, 4096).unwrap();
        let mut leases: Vec<_> = (0..3).map(|i| arena.try_write(SlotIdx(i)).unwrap()).collect();
        leases.iter_mut().for_each(|lease| lease.bytes_mut().fill(7));
        leases[1].release_pages().unwrap();
        for i in [0, 2] {
            assert!(leases[i].bytes_mut().iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn slots_are_page_aligned_and_apart() {
        let arena = Arena::new(3, 5000).unwrap();
        assert_eq!((arena.n_slots(), arena.slot_bytes()), (3, 8192));
        let mut leases: Vec<_> = (0..3).map(|i| arena.try_write(SlotIdx(i)).unwrap()).collect();
        for (fill, lease) in (1..).zip(&mut leases) {
            assert_eq!(lease.bytes_mut().as_ptr() as usize % SLOT_ALIGN_BYTES, 0);
            lease.bytes_mut().fill(fill);
        }
        for (fill, lease) in (1..).zip(leases) {
            assert!(lease.seal().bytes().iter().all(|&b| b == fill));
        }
    }

    #[test]
    fn slots_begin_where_a_huge_page_can() {
        let small = Arena::new(1, 4096).unwrap();
        assert!(small.no_huge_pages().is_some());
        let large = Arena::new(600, 4096).unwrap();
        let base = large.try_write(SlotIdx(0)).unwrap().bytes_mut().as_ptr();
        assert_eq!(base as usize % HUGE_PAGE_BYTES, 0);
        let mut last = large.try_write(SlotIdx(599)).unwrap();
        last.bytes_mut().fill(1);
        last.release_pages().unwrap();
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn touching_makes_pages_resident_and_changes_nothing() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
        };
        let arena = Arena::new(64, 4 << 20).unwrap();
        let mut lease = arena.try_write(SlotIdx(33)).unwrap();
        lease.bytes_mut().fill(7);
        let before = resident();
        match arena.touch(3) {
            // Other tests may give some back meanwhile, hence half.
            Ok(()) => assert!(resident() > before + ((32 * 4) << 20), "{before} {}", resident()),
            Err(error) => assert_eq!(error.raw_os_error(), Some(22), "an older kernel: {error}"),
        }
        assert!(lease.bytes_mut().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn regions_hold_whole_slots_one_after_the_other() {
        let arena = Arena::new(5, 4096).unwrap();
        let base = arena.try_write(SlotIdx(0)).unwrap().bytes_mut().as_ptr();
        for (bytes_max, expect) in
            [(4095, &[][..]), (4096, &[4096; 5]), (3 * 4096 - 1, &[8192, 8192, 4096]), (1 << 40, &[5 * 4096])]
        {
            let regions: Vec<_> = arena.regions(bytes_max).collect();
            assert_eq!(regions.iter().map(|region| region.len()).collect::<Vec<_>>(), expect);
            let mut at = base;
            for region in regions {
                assert_eq!(region.cast::<u8>().cast_const(), at);
                at = at.wrapping_add(region.len());
            }
        }
    }

    #[test]
    fn absurd_sizes_are_errors() {
        for (n, bytes) in [(0, 1), (1, 0), (usize::MAX, 4096), (2, usize::MAX), (1 << 40, 1 << 40)] {
            assert!(Arena::new(n, bytes).is_err(), "{n} x {bytes}");
        }
    }
}
