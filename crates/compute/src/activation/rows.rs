//! Rows of activations, coded when a product first asks for a form.

#![expect(unsafe_code, reason = "threads code groups of the same rows, each its own")]

use super::{ActivationRow, Coding, Form, NARROW, Operand, Q8Row, Rows, SUM_LEN, WIDE};
use crate::kernels::Isa;
use crate::workers::Workers;

/// Rows of activations, `[n_rows, n_cols]`, kept in f32 and, once asked for, in 8 bits; the buffers are reused.
#[derive(Debug, Default)]
pub struct Activations {
    n_cols: usize,
    values: Vec<f32>,
    wide: Coded,
    narrow: Coded,
}

/// The 8-bit form of all rows; empty until asked for.
#[derive(Debug, Default)]
pub(super) struct Coded {
    pub(super) codes: Vec<i8>,
    pub(super) scales: Vec<f32>,
    pub(super) sums: Vec<i16>,
}

impl Activations {
    /// Room for `n_rows` rows of up to `n_cols` values in every form, allocated now.
    pub fn with_capacity(n_rows: usize, n_cols: usize) -> Self {
        let mut new = Self::default();
        let n = n_rows * n_cols;
        new.values.reserve_exact(n);
        new.wide.reserve(n, WIDE);
        new.narrow.reserve(n, NARROW);
        new
    }

    /// Bytes that [`Self::with_capacity`] allocates.
    pub fn bytes(n_rows: usize, n_cols: usize) -> usize {
        let n = n_rows * n_cols;
        n * 4 + Coded::bytes(n, WIDE) + Coded::bytes(n, NARROW)
    }

    /// Empties the rows and hands out `n_rows` rows of `n_cols` values to fill; what they hold is unspecified.
    pub fn start(&mut self, n_rows: usize, n_cols: usize) -> &mut [f32] {
        self.n_cols = n_cols;
        self.values.resize(n_rows * n_cols, 0.0);
        self.wide.clear();
        self.narrow.clear();
        &mut self.values
    }

    /// Rows held.
    pub fn n_rows(&self) -> usize {
        self.values.len() / self.n_cols.max(1)
    }

    /// The f32 values of row `row`.
    pub fn values(&self, row: usize) -> &[f32] {
        &self.values[row * self.n_cols..(row + 1) * self.n_cols]
    }

    /// Makes `form` available to [`Self::operand`].
    ///
    /// # Panics
    /// When the rows don't fill whole groups of the form.
    pub fn prepare(&mut self, form: Form, isa: Isa, workers: &Workers) {
        let is_there = match form {
            Form::F32 => true,
            Form::Q8Wide => self.wide.codes.len() == self.values.len(),
            Form::Q8Narrow => self.narrow.codes.len() == self.values.len(),
        };
        if is_there {
            return;
        }
        let work_bytes = self.values.len() * 4;
        let coding = self.coding(form);
        workers.share(work_bytes, |share| {
            // SAFETY: the shares' groups are disjoint, and the values are only read.
            unsafe { coding.code(share.range(coding.n_groups(), 1), isa) };
        });
    }

    /// The rows' values and their codes in `form`, to be written group by group by several threads.
    ///
    /// # Panics
    /// When the rows don't fill whole groups of the form.
    pub(crate) fn coding(&mut self, form: Form) -> Coding<'_> {
        let (n, n_cols) = (self.values.len(), self.n_cols);
        let coded = match form {
            Form::F32 => None,
            Form::Q8Wide => Some(&mut self.wide),
            Form::Q8Narrow => Some(&mut self.narrow),
        };
        Coding::new(form, n_cols, &mut self.values, coded.map(|coded| coded.resize(n, n_cols, form)))
    }

    /// `rows` in `form`, which was [prepared](Self::prepare).
    pub fn operand<'a>(&'a self, form: Form, rows: Rows<'a>) -> Operand<'a> {
        let (values, coded) = match form {
            Form::F32 => (&self.values[..], Q8Row::default()),
            Form::Q8Wide => (&[][..], self.wide.all()),
            Form::Q8Narrow => (&[][..], self.narrow.all()),
        };
        Operand { n_cols: self.n_cols, form, rows, values, coded }
    }

    /// Row `row` in `form`, which was [prepared](Self::prepare).
    pub fn row(&self, row: usize, form: Form) -> ActivationRow<'_> {
        self.operand(form, Rows::All).row(row)
    }
}

impl Coded {
    fn bytes(n: usize, group: usize) -> usize {
        n + n.div_ceil(group) * 4 + if group == WIDE { n.div_ceil(SUM_LEN) * 2 } else { 0 }
    }

    fn reserve(&mut self, n: usize, group: usize) {
        self.codes.reserve_exact(n);
        self.scales.reserve_exact(n.div_ceil(group));
        if group == WIDE {
            self.sums.reserve_exact(n.div_ceil(SUM_LEN));
        }
    }

    fn clear(&mut self) {
        self.codes.clear();
        self.scales.clear();
        self.sums.clear();
    }

    /// Room for the codes of `n` values.
    fn resize(&mut self, n: usize, n_cols: usize, form: Form) -> &mut Self {
        let (group, sums) = form.group().expect("f32 has no codes");
        assert_eq!(n_cols % group, 0, "rows of {n_cols} values fill whole groups of {group}");
        self.codes.resize(n, 0);
        self.scales.resize(n / group, 0.0);
        self.sums.resize(n / group * sums, 0);
        self
    }

    fn all(&self) -> Q8Row<'_> {
        Q8Row { codes: &self.codes, scales: &self.scales, sums: &self.sums }
    }
}
