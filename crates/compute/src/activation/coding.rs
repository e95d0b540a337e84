//! Rounding of f32 activations to 8 bits, group by group.

#![expect(unsafe_code, reason = "threads code groups of the same rows, each its own")]

use std::ops::Range;

use super::rows::Coded;
use super::{Form, NARROW, Operand, Q8Row, Rows, SUM_LEN};
use crate::kernels::{Isa, Loop};
use crate::workers::SharedSlice;

/// Values and codes of all rows, in groups that lie one after another, for several threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coding<'a> {
    form: Form,
    n_cols: usize,
    n: usize,
    values: SharedSlice<'a, f32>,
    codes: SharedSlice<'a, i8>,
    scales: SharedSlice<'a, f32>,
    sums: SharedSlice<'a, i16>,
}

impl<'a> Coding<'a> {
    /// Rows of `n_cols` values, with room for the codes of them all, unless `form` is f32.
    pub(super) fn new(
        form: Form,
        n_cols: usize,
        values: &'a mut [f32],
        coded: Option<&'a mut Coded>,
    ) -> Self {
        let (codes, scales, sums) = match coded {
            Some(Coded { codes, scales, sums }) => (&mut codes[..], &mut scales[..], &mut sums[..]),
            None => (&mut [][..], &mut [][..], &mut [][..]),
        };
        Self {
            form,
            n_cols,
            n: values.len(),
            values: SharedSlice::new(values),
            codes: SharedSlice::new(codes),
            scales: SharedSlice::new(scales),
            sums: SharedSlice::new(sums),
        }
    }

    /// Values of a group; those of f32 rows are handed out in small groups, the last of which may be shorter.
    fn group(&self) -> usize {
        self.form.group().map_or(NARROW, |(group, _)| group)
    }

    /// Groups of all rows.
    pub(crate) fn n_groups(&self) -> usize {
        self.n.div_ceil(self.group())
    }

    /// Where the values of some groups lie among all values.
    pub(crate) fn range(&self, groups: Range<usize>) -> Range<usize> {
        (groups.start * self.group()).min(self.n)..(groups.end * self.group()).min(self.n)
    }

    /// The values of some groups.
    ///
    /// # Safety
    /// No other thread touches these groups, and what an earlier call gave of them is gone.
    pub(crate) unsafe fn values(&self, groups: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.values.part(self.range(groups)) }
    }

    /// Codes some groups from their values; does nothing for f32.
    ///
    /// # Safety
    /// No other thread touches these groups, and nobody writes their values.
    pub(crate) unsafe fn code(&self, groups: Range<usize>, isa: Isa) {
        let Some((group, n_sums)) = self.form.group() else { return };
        // SAFETY: the caller's promise of the groups' values, and so of their codes, scales and sums.
        unsafe {
            isa.run(Code {
                group,
                values: self.values.part(self.range(groups.clone())),
                codes: self.codes.part(self.range(groups.clone())),
                scales: self.scales.part(groups.clone()),
                sums: self.sums.part(groups.start * n_sums..groups.end * n_sums),
            });
        }
    }

    /// All rows, coded.
    ///
    /// # Safety
    /// Every group was coded, and nobody writes one as long as the operand lives.
    pub(crate) unsafe fn operand(&self) -> Operand<'a> {
        let (n_cols, form) = (self.n_cols, self.form);
        // SAFETY: the caller's promise.
        let (values, coded) = unsafe {
            match form {
                Form::F32 => (self.values.whole(), Q8Row::default()),
                Form::Q8Wide | Form::Q8Narrow => {
                    let (codes, scales, sums) = (self.codes.whole(), self.scales.whole(), self.sums.whole());
                    (&[][..], Q8Row { codes, scales, sums })
                }
            }
        };
        Operand { n_cols, form, rows: Rows::All, values, coded }
    }
}

/// Codes groups of values.
struct Code<'a> {
    group: usize,
    values: &'a [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    /// Of every [`SUM_LEN`] codes; empty when they aren't wanted.
    sums: &'a mut [i16],
}

impl Loop for Code<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let groups = self.values.chunks_exact(self.group).zip(self.codes.chunks_exact_mut(self.group));
        for ((x, codes), scale) in groups.zip(self.scales) {
            *scale = quantise(x, codes);
        }
        for (sum, codes) in self.sums.iter_mut().zip(self.codes.as_chunks::<SUM_LEN>().0) {
            *sum = codes.iter().map(|&q| i16::from(q)).sum();
        }
    }
}

/// Codes one group and returns its scale. A group whose largest value is too small to divide by is all zero. A group
/// with a value that isn't finite has a scale that isn't a number, so that every product with it isn't either and the
/// damage is seen at the end.
#[inline(always)]
fn quantise(x: &[f32], codes: &mut [i8]) -> f32 {
    // Without its sign a float's bits grow with it, infinities and what is no number above all others.
    let largest = x.iter().fold(0, |m, v| v.to_bits().wrapping_shl(1).max(m));
    let largest = f32::from_bits(largest >> 1);
    if !largest.is_finite() {
        codes.fill(0);
        return f32::NAN;
    }
    let inverse = 127.0 / largest;
    if !inverse.is_finite() || inverse == 0.0 {
        codes.fill(0);
        return 0.0;
    }
    for (code, &v) in codes.iter_mut().zip(x) {
        *code = round_to_i8(v * inverse);
    }
    largest / 127.0
}

/// Rounds to nearest, ties to even, for values in -127.5..127.5.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the value is in i8's range, as quantise scales it")]
fn round_to_i8(v: f32) -> i8 {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the significand.
    let shifted = v + 12_582_912.0;
    (shifted.to_bits().wrapping_sub(0x4B40_0000)).cast_signed() as i8
}

/// Writes the values that the 8-bit form of `x` stands for over `x`.
#[cfg(test)]
pub(crate) fn round_trip(x: &mut [f32], form: Form) {
    let Some((group, _)) = form.group() else { return };
    let mut codes = [0_i8; 256];
    for x in x.chunks_exact_mut(group) {
        let scale = quantise(x, &mut codes[..group]);
        for (x, &code) in x.iter_mut().zip(&codes) {
            *x = f32::from(code) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn codes_round_to_nearest_even(v in -127.0_f32..=127.0) {
            prop_assert_eq!(f32::from(round_to_i8(v)), v.round_ties_even());
        }

        #[test]
        fn a_group_is_within_half_a_step(x in prop::collection::vec(-1e3_f32..1e3, 256)) {
            let mut y = x.clone();
            round_trip(&mut y, Form::Q8Wide);
            let step = x.iter().fold(0.0_f32, |m, v| m.max(v.abs())) / 127.0;
            for (x, y) in x.iter().zip(&y) {
                prop_assert!((x - y).abs() <= step * 0.501, "{} {} {}", x, y, step);
            }
        }
    }

    #[test]
    fn tiny_groups_are_zero() {
        for fill in [0.0, f32::MIN_POSITIVE / 4.0] {
            let mut codes = [1; 32];
            assert_eq!(quantise(&[fill; 32], &mut codes), 0.0, "{fill}");
            assert_eq!(codes, [0; 32]);
        }
    }

    #[test]
    fn numbers_that_are_none_are_passed_on() {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut x = [1.0; 32];
            x[17] = bad;
            assert!(quantise(&x, &mut [1; 32]).is_nan(), "{bad}");
        }
    }
}
