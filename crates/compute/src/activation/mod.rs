//! Activations as the kernels take them: f32, or 8-bit integers with a scale per group.
//!
//! Which form goes with a weight type is fixed ([`Form::of`]), so that a result doesn't depend on who computes it.
//! A group of 256 (for Q3_K..Q6_K) or 32 (for Q8_0) values shares `d = max|x| / 127`; codes are `x / d` rounded to
//! nearest, ties to even. Every other type multiplies f32 activations.

mod coding;
mod rows;

use forerun_model::QuantType;

pub(crate) use coding::Coding;
#[cfg(test)]
pub(crate) use coding::round_trip;
pub use rows::Activations;

const WIDE: usize = 256;
const NARROW: usize = 32;
/// Codes per entry of [`Q8Row::sums`].
pub const SUM_LEN: usize = 16;

/// How a weight type wants its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    F32,
    /// 8 bits, a scale per 256 values, and the sums of 16 codes each.
    Q8Wide,
    /// 8 bits, a scale per 32 values.
    Q8Narrow,
}

impl Form {
    /// The form that products with `quant` use.
    pub fn of(quant: QuantType) -> Self {
        match quant {
            QuantType::Q3_K | QuantType::Q4_K | QuantType::Q5_K | QuantType::Q6_K => Self::Q8Wide,
            QuantType::Q8_0 => Self::Q8Narrow,
            _ => Self::F32,
        }
    }

    /// Values with one scale, and how many sums they have; `None` for f32.
    fn group(self) -> Option<(usize, usize)> {
        match self {
            Self::F32 => None,
            Self::Q8Wide => Some((WIDE, WIDE / SUM_LEN)),
            Self::Q8Narrow => Some((NARROW, 0)),
        }
    }
}

/// Which rows of the activations a product takes.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// All of them.
    All,
    /// These, by index.
    Some(&'a [u32]),
}

impl Rows<'_> {
    /// How many rows these are, of `n_rows` in all.
    pub fn len(self, n_rows: usize) -> usize {
        match self {
            Self::All => n_rows,
            Self::Some(rows) => rows.len(),
        }
    }

    /// The index of the `i`-th of them.
    #[inline(always)]
    pub fn get(self, i: usize) -> usize {
        match self {
            Self::All => i,
            Self::Some(rows) => rows[i] as usize,
        }
    }
}

/// One row of 8-bit activations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Q8Row<'a> {
    /// Codes in -127..=127.
    pub codes: &'a [i8],
    /// A scale per group.
    pub scales: &'a [f32],
    /// The sum of every 16 codes; empty for the narrow form.
    pub sums: &'a [i16],
}

/// One row of activations, in the form that the weights want.
#[derive(Clone, Copy, Debug)]
pub enum ActivationRow<'a> {
    /// As they are.
    F32(&'a [f32]),
    /// 8-bit codes.
    Q8(Q8Row<'a>),
}

/// Rows of activations in one form: what a kernel multiplies.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    n_cols: usize,
    form: Form,
    rows: Rows<'a>,
    /// All values, or none when the form isn't f32.
    values: &'a [f32],
    /// All codes, scales and sums, or none when the form is f32.
    coded: Q8Row<'a>,
}

impl<'a> Operand<'a> {
    /// Rows.
    #[expect(clippy::len_without_is_empty, reason = "products of no rows aren't asked for")]
    pub fn len(&self) -> usize {
        self.rows.len(self.values.len().max(self.coded.codes.len()) / self.n_cols.max(1))
    }

    /// Values per row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The form of all rows.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The `i`-th row.
    #[inline(always)]
    pub fn row(&self, i: usize) -> ActivationRow<'a> {
        match self.form {
            Form::F32 => ActivationRow::F32(self.values(i)),
            Form::Q8Wide | Form::Q8Narrow => ActivationRow::Q8(self.codes(i)),
        }
    }

    /// The `i`-th row as it is.
    ///
    /// # Panics
    /// When the form isn't f32.
    #[inline(always)]
    pub fn values(&self, i: usize) -> &'a [f32] {
        row(self.values, self.rows.get(i), self.n_cols)
    }

    /// The `i`-th row in 8 bits.
    ///
    /// # Panics
    /// When the form is f32.
    #[inline(always)]
    pub fn codes(&self, i: usize) -> Q8Row<'a> {
        let (group, sums) = self.form.group().expect("activations in 8 bits");
        let (i, n_groups) = (self.rows.get(i), self.n_cols / group);
        Q8Row {
            codes: row(self.coded.codes, i, self.n_cols),
            scales: row(self.coded.scales, i, n_groups),
            sums: row(self.coded.sums, i, n_groups * sums),
        }
    }
}

#[inline(always)]
fn row<T>(all: &[T], i: usize, len: usize) -> &[T] {
    &all[i * len..(i + 1) * len]
}
