//! Disjoint parts of one slot, filled at once by different reads.

#![expect(unsafe_code, reason = "a window is the proof that its part of a slot may be written")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::lease::WriteLease;
use crate::memory::SlotIdx;

/// The right to fill a part of a slot. The slot's other parts may be filled by others at the same time.
///
/// The slot is free again when all of its windows were dropped; [`Window::join`] turns them back into the lease that
/// they were made of.
pub struct Window {
    /// Shared by all windows of the slot.
    whole: Arc<WriteLease>,
    start: usize,
    end: usize,
}

impl WriteLease {
    /// Splits the lease into windows onto `parts` of the slot, in that order. What no part covers can't be written
    /// until the windows are joined.
    ///
    /// # Panics
    /// When there are no parts, or they aren't ascending and apart, or one ends past the slot.
    pub fn split(self, parts: impl IntoIterator<Item = Range<usize>>) -> Vec<Window> {
        let len = self.len();
        let whole = Arc::new(self);
        let mut at = 0;
        let windows: Vec<Window> = parts
            .into_iter()
            .map(|Range { start, end }| {
                assert!(
                    at <= start && start <= end && end <= len,
                    "{start}..{end} after {at}, slot of {len}"
                );
                at = end;
                Window { whole: Arc::clone(&whole), start, end }
            })
            .collect();
        assert!(!windows.is_empty(), "a lease split into no windows would be lost");
        windows
    }

    /// Turns the lease into the one window onto `part` of the slot.
    ///
    /// # Panics
    /// When the part isn't one of the slot.
    pub fn window(self, part: Range<usize>) -> Window {
        self.split(std::iter::once(part)).remove(0)
    }
}

impl Window {
    /// The slot that this is a part of.
    pub fn slot(&self) -> SlotIdx {
        self.whole.slot()
    }

    /// Where the part begins in its slot.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Bytes of the part.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether nothing is left of it.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The bytes to fill; what they were before is unspecified.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the lease in `whole` excludes readers and other writers of the slot, and lives as long as `self`. All
        // other access to the slot goes through windows of the same split, which are apart from this one: `split`
        // checked it, and a window only shrinks. `&mut self` excludes a second borrow of this part.
        unsafe { self.whole.part_mut(self.start..self.end) }
    }

    /// Gives up the first `n` bytes, which nobody can write until the windows are joined.
    ///
    /// # Panics
    /// When it has fewer.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "{n} of {} bytes", self.len());
        self.start += n;
    }

    /// Ends this window. The last one of a slot to be joined brings the lease back.
    pub fn join(self) -> Option<WriteLease> {
        Arc::into_inner(self.whole)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({}: {}..{})", self.slot().0, self.start, self.end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Arena, SlotIdx};

    #[test]
    fn windows_are_filled_at_once_and_become_the_lease_again() {
        let arena = Arena::new(1, 16).unwrap();
        let windows = arena.try_write(SlotIdx(0)).unwrap().split([0..4, 4..9, 12..16]);
        let threads = windows.into_iter().zip(1..).map(|(mut window, fill)| {
            std::thread::spawn(move || {
                window.bytes_mut().fill(fill);
                window
            })
        });
        let windows: Vec<_> = threads.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect();
        assert!(arena.try_write(SlotIdx(0)).is_none());
        let leases: Vec<_> = windows.into_iter().filter_map(super::Window::join).collect();
        let [lease] = <[_; 1]>::try_from(leases).unwrap();
        assert_eq!(lease.seal().bytes()[..16], [1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0, 0, 3, 3, 3, 3]);
    }

    #[test]
    fn dropped_windows_free_the_slot() {
        let arena = Arena::new(1, 16).unwrap();
        let mut windows = arena.try_write(SlotIdx(0)).unwrap().split([0..4, 4..9]);
        assert!(windows.pop().unwrap().join().is_none());
        assert!(arena.try_write(SlotIdx(0)).is_none());
        drop(windows);
        assert!(arena.try_write(SlotIdx(0)).is_some());
    }

    #[test]
    fn a_window_shrinks_from_its_front() {
        let mut window = Arena::new(1, 16).unwrap().try_write(SlotIdx(0)).unwrap().window(2..8);
        window.advance(2);
        window.bytes_mut().fill(9);
        assert_eq!((window.start(), window.len()), (4, 4));
        let lease = window.join().unwrap().seal();
        assert_eq!(lease.bytes()[..9], [0, 0, 0, 0, 9, 9, 9, 9, 0]);
    }

    #[test]
    fn parts_that_overlap_or_leave_the_slot_are_refused() {
        for parts in [vec![(0, 4), (3, 5)], vec![(0, 4097)], vec![(3, 5), (0, 1)], vec![]] {
            let lease = Arena::new(1, 16).unwrap().try_write(SlotIdx(0)).unwrap();
            let ranges = parts.iter().map(|&(start, end)| start..end);
            let split = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lease.split(ranges)));
            assert!(split.is_err(), "{parts:?}");
        }
    }
}
