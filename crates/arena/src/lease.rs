//! The right to bytes: those of a slot, which has one writer or many readers, never both; or shared ones that nobody
//! writes.

#![expect(unsafe_code, reason = "a lease is the proof that its bytes may be touched")]

use std::ops::Range;
use std::{fmt, io};

use bytes::Bytes;

use crate::memory::{Arena, Memory, SlotIdx};
use crate::sync::Arc;

/// The one right to fill a slot. Dropping it frees the slot, whose bytes then mean nothing.
pub struct WriteLease {
    memory: Option<Arc<Memory>>,
    slot: SlotIdx,
}

impl WriteLease {
    pub(crate) fn new(memory: Arc<Memory>, slot: SlotIdx) -> Self {
        Self { memory: Some(memory), slot }
    }

    /// The slot that this lease holds.
    pub fn slot(&self) -> SlotIdx {
        self.slot
    }

    /// The bytes to fill; what they were before is unspecified.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: a write lease exists once per slot and excludes readers; `&mut self` excludes a second borrow.
        unsafe { self.memory().bytes_mut(self.slot) }
    }

    /// Bytes of the slot.
    #[expect(clippy::len_without_is_empty, reason = "a slot is never empty")]
    pub fn len(&self) -> usize {
        self.memory().slot_bytes()
    }

    /// The bytes of a part of the slot, for the one window that holds it.
    ///
    /// # Safety
    /// `part` lies inside the slot, and the caller excludes every other access to it for all of `'_`.
    #[expect(clippy::mut_from_ref, reason = "the window is the exclusive right, not the borrow of the lease")]
    pub(crate) unsafe fn part_mut(&self, part: Range<usize>) -> &mut [u8] {
        // SAFETY: this lease is the slot's one, so only its windows reach the bytes; the caller answers for `part`.
        unsafe { self.memory().part_mut(self.slot, part) }
    }

    /// Gives the slot's memory back to the system, where it takes it; the next write makes it resident again.
    ///
    /// # Errors
    /// What the system says.
    pub fn release_pages(&mut self) -> io::Result<()> {
        // SAFETY: a write lease exists once per slot and excludes readers; `&mut self` excludes a borrow of the bytes.
        unsafe { self.memory().release_pages(self.slot) }
    }

    /// Ends the writing: from here on the bytes don't change until every lease is gone.
    pub fn seal(mut self) -> ReadLease {
        // A lease has its memory until it is sealed or dropped; neither has happened, since `self` is here.
        let memory = self.memory.take().unwrap_or_else(|| unreachable!("sealed twice"));
        memory.seal(self.slot);
        ReadLease(Held::Slot { memory, slot: self.slot })
    }

    fn memory(&self) -> &Memory {
        self.memory.as_deref().expect("a lease has its memory until it is sealed or dropped")
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.drop_writer(self.slot);
        }
    }
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteLease({})", self.slot.0)
    }
}

/// A right to read an expert's bytes. Cheap to clone, without an allocation; a slot is free when the last one of it is
/// dropped.
pub struct ReadLease(Held);

/// What a [`ReadLease`] keeps.
enum Held {
    /// Counted in the slot's state word.
    Slot { memory: Arc<Memory>, slot: SlotIdx },
    /// Bytes that lie elsewhere, such as a mapping of a file.
    Shared(Bytes),
}

impl ReadLease {
    /// The slot that this lease holds; `None` when its bytes lie in none.
    pub fn slot(&self) -> Option<SlotIdx> {
        match &self.0 {
            Held::Slot { slot, .. } => Some(*slot),
            Held::Shared(_) => None,
        }
    }

    /// The arena of the slot, for devices that are shown all of its memory at once; `None` when the bytes lie in none.
    pub fn arena(&self) -> Option<Arena> {
        match &self.0 {
            Held::Slot { memory, .. } => Some(Arena::of(memory)),
            Held::Shared(_) => None,
        }
    }

    /// The bytes of the slot, which don't change while any lease lives, or the shared ones. Those of a mapped file
    /// change when another program writes the file: who lends them must say so before what was computed from them counts.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: this lease is counted in the slot's state word, so no write lease exists.
            Held::Slot { memory, slot } => unsafe { memory.bytes(*slot) },
            Held::Shared(bytes) => bytes,
        }
    }

    /// Whether this is the only lease of a slot.
    pub fn is_last(&self) -> bool {
        match &self.0 {
            Held::Slot { memory, slot } => memory.n_readers(*slot) == 1,
            Held::Shared(_) => false,
        }
    }
}

/// A lease of bytes that lie in no slot.
impl From<Bytes> for ReadLease {
    fn from(bytes: Bytes) -> Self {
        Self(Held::Shared(bytes))
    }
}

impl Clone for ReadLease {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Held::Slot { memory, slot } => {
                memory.add_reader(*slot);
                Held::Slot { memory: Arc::clone(memory), slot: *slot }
            }
            Held::Shared(bytes) => Held::Shared(bytes.clone()),
        })
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        if let Held::Slot { memory, slot } = &self.0 {
            memory.drop_reader(*slot);
        }
    }
}

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Held::Slot { slot, .. } => write!(f, "ReadLease({})", slot.0),
            Held::Shared(bytes) => write!(f, "ReadLease({} shared bytes)", bytes.len()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Arena, SlotIdx};

    #[test]
    fn a_slot_has_one_writer_or_many_readers() {
        let arena = Arena::new(1, 16).unwrap();
        let slot = SlotIdx(0);
        let writer = arena.try_write(slot).unwrap();
        assert!(arena.try_write(slot).is_none());
        let reader = writer.seal();
        assert!(reader.is_last() && arena.try_write(slot).is_none());
        let second = reader.clone();
        assert!(!reader.is_last());
        drop(reader);
        assert!(arena.try_write(slot).is_none());
        drop(second);
        assert!(arena.try_write(slot).is_some());
    }

    #[test]
    fn a_dropped_writer_frees_its_slot() {
        let arena = Arena::new(1, 16).unwrap();
        drop(arena.try_write(SlotIdx(0)));
        assert!(arena.try_write(SlotIdx(0)).is_some());
    }

    #[test]
    fn shared_bytes_lie_where_they_lay() {
        let bytes = bytes::Bytes::from_static(b"weights");
        let lease = crate::ReadLease::from(bytes.clone());
        let clone = lease.clone();
        assert_eq!((clone.bytes().as_ptr(), clone.slot(), clone.is_last()), (bytes.as_ptr(), None, false));
        assert!(clone.arena().is_none());
    }

    #[test]
    fn leases_outlive_the_arena() {
        let mut writer = Arena::new(1, 16).unwrap().try_write(SlotIdx(0)).unwrap();
        writer.bytes_mut()[0] = 7;
        let reader = std::thread::spawn(move || writer.seal()).join().unwrap();
        assert_eq!(reader.bytes()[0], 7);
        assert_eq!(reader.arena().map(|arena| (arena.n_slots(), arena.slot_bytes())), Some((1, 4096)));
    }
}

#[cfg(all(test, loom))]
mod model {
    use crate::{Arena, SlotIdx};

    /// A writer that reuses a slot after a reader on another thread let go never races with that reader.
    #[test]
    fn reuse_waits_for_the_last_reader() {
        loom::model(|| {
            let arena = Arena::new(1, 16).unwrap();
            let mut writer = arena.try_write(SlotIdx(0)).unwrap();
            writer.bytes_mut()[0] = 1;
            let reader = writer.seal();
            let other = reader.clone();
            let thread = loom::thread::spawn(move || assert_eq!(other.bytes()[0], 1));
            assert_eq!(reader.bytes()[0], 1);
            drop(reader);
            if let Some(mut writer) = arena.try_write(SlotIdx(0)) {
                writer.bytes_mut()[0] = 2;
            }
            thread.join().unwrap();
            assert!(arena.try_write(SlotIdx(0)).is_some());
        });
    }

    /// A writer that gave up on another thread is done with the bytes when the next one gets them.
    #[test]
    fn reuse_waits_for_the_writer_that_gave_up() {
        loom::model(|| {
            let arena = Arena::new(1, 16).unwrap();
            let mut writer = arena.try_write(SlotIdx(0)).unwrap();
            let thread = loom::thread::spawn(move || writer.bytes_mut()[0] = 1);
            if let Some(mut writer) = arena.try_write(SlotIdx(0)) {
                writer.bytes_mut()[0] = 2;
            }
            thread.join().unwrap();
        });
    }
}
