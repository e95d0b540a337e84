//! A slice that several threads write, each its own part.

#![expect(unsafe_code, reason = "threads write parts of one slice")]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// A slice of which every thread of a call takes its own part.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a, T> {
    first: *mut T,
    len: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: the values are only reached through `part` and `whole`, whose callers promise that nothing overlaps.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as for `Send`; `whole` hands out shared references, so the values must allow those too.
unsafe impl<T: Send + Sync> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// All of `slice`.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), len: slice.len(), lent: PhantomData }
    }

    /// The values of `range`, for one thread.
    ///
    /// # Safety
    /// Nothing else that [`Self::part`] or [`Self::whole`] gave and that overlaps the range lives at the same time.
    ///
    /// # Panics
    /// When the range is beyond the slice.
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a range inside the slice");
        // SAFETY: in bounds of a slice that is lent to this value for `'a`; the caller excludes every other access.
        unsafe { slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }

    /// All values, to be read by every thread.
    ///
    /// # Safety
    /// Nothing that [`Self::part`] gave lives at the same time.
    pub unsafe fn whole(&self) -> &'a [T] {
        // SAFETY: the slice is lent to this value for `'a`; the caller excludes every writer.
        unsafe { slice::from_raw_parts(self.first, self.len) }
    }
}
