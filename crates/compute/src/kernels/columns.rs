//! Results of a product: some columns of rows that lie one after another.

#![expect(unsafe_code, reason = "threads write columns of the same rows, each its own")]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// Columns of a row-major matrix, to be written by one thread.
#[derive(Debug)]
pub struct Columns<'a> {
    /// The first value of the first row.
    first: *mut f32,
    n_rows: usize,
    /// Values from one row to the next.
    stride: usize,
    width: usize,
    lent: PhantomData<&'a mut [f32]>,
}

impl<'a> Columns<'a> {
    /// All columns of rows of `width` values.
    ///
    /// # Panics
    /// When `out` isn't whole rows.
    pub fn all(out: &'a mut [f32], width: usize) -> Self {
        let n_rows = out.len() / width.max(1);
        assert_eq!(n_rows * width, out.len(), "whole rows of {width}");
        Self { first: out.as_mut_ptr(), n_rows, stride: width, width, lent: PhantomData }
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The columns of row `i`.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        // SAFETY: row `i` begins `i * stride` values after the first and has `width` of its own; whoever made this value
        // gave it these columns alone for `'a`, and `&mut self` excludes a second borrow through it.
        unsafe { slice::from_raw_parts_mut(self.first.add(i * self.stride), self.width) }
    }
}

/// Rows of results that several threads fill, each its own columns.
#[derive(Clone, Copy, Debug)]
pub struct SharedColumns<'a> {
    first: *mut f32,
    n_rows: usize,
    width: usize,
    lent: PhantomData<&'a mut [f32]>,
}

// SAFETY: the values are only reached through `part`, whose callers promise that parts which live at once don't overlap.
unsafe impl Send for SharedColumns<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedColumns<'_> {}

impl<'a> SharedColumns<'a> {
    /// All columns of rows of `width` values.
    ///
    /// # Panics
    /// When `out` isn't whole rows.
    pub fn new(out: &'a mut [f32], width: usize) -> Self {
        let Columns { first, n_rows, .. } = Columns::all(out, width);
        Self { first, n_rows, width, lent: PhantomData }
    }

    /// Columns per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Values of all rows, by their place in row-major order.
    ///
    /// # Safety
    /// Nobody writes them as long as the slice lives.
    ///
    /// # Panics
    /// When the range is beyond the rows.
    pub unsafe fn values(&self, range: Range<usize>) -> &'a [f32] {
        assert!(range.start <= range.end && range.end <= self.n_rows * self.width, "a range of the rows");
        // SAFETY: in bounds of the rows, which are lent for `'a`; the caller excludes writers.
        unsafe { slice::from_raw_parts(self.first.add(range.start), range.len()) }
    }

    /// Some columns of every row.
    ///
    /// # Safety
    /// No other part that overlaps these columns, and no reference to them, lives at the same time.
    ///
    /// # Panics
    /// When the range is beyond the width.
    pub unsafe fn part(&self, columns: Range<usize>) -> Columns<'a> {
        assert!(columns.start <= columns.end && columns.end <= self.width, "columns inside a row");
        // In bounds: an empty matrix has no rows, and others have `width` values in the first one.
        let first = self.first.wrapping_add(columns.start);
        Columns { first, n_rows: self.n_rows, stride: self.width, width: columns.len(), lent: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_columns_of_every_row() {
        let mut out = [0.0; 6];
        let shared = SharedColumns::new(&mut out, 3);
        // SAFETY: the two parts don't overlap.
        let (mut left, mut right) = unsafe { (shared.part(0..1), shared.part(1..3)) };
        for i in 0..2 {
            left.row(i).fill(1.0);
            right.row(i).copy_from_slice(&[2.0, 3.0]);
        }
        assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    #[should_panic(expected = "row 1 of 1")]
    fn there_is_no_row_beyond() {
        Columns::all(&mut [0.0; 2], 2).row(1);
    }
}
