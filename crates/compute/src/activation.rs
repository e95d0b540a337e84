//! Activations as the kernels take them: f32, or 8-bit integers with a scale per group.
//!
//! Which form goes with a weight type is fixed ([`Form::of`]), so that a result doesn't depend on who computes it.
//! A group of 256 (for Q3_K..Q6_K) or 32 (for Q8_0) values shares `d = max|x| / 127`; codes are `x / d` rounded to
//! nearest, ties to even. Every other type multiplies f32 activations.

use forerun_model::QuantType;

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
}

/// One row of 8-bit activations.
#[derive(Clone, Copy, Debug)]
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
struct Coded {
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
}

const WIDE: usize = 256;
const NARROW: usize = 32;
/// Codes per entry of [`Q8Row::sums`].
pub const SUM_LEN: usize = 16;

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

    /// Empties the rows and hands out `n_rows` zeroed rows of `n_cols` values to fill.
    pub fn start(&mut self, n_rows: usize, n_cols: usize) -> &mut [f32] {
        self.n_cols = n_cols;
        self.values.clear();
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

    /// Makes `form` available to [`Self::row`].
    ///
    /// # Panics
    /// When the rows don't fill whole groups of the form.
    pub fn prepare(&mut self, form: Form) {
        match form {
            Form::F32 => {}
            Form::Q8Wide => self.wide.fill(&self.values, self.n_cols, WIDE),
            Form::Q8Narrow => self.narrow.fill(&self.values, self.n_cols, NARROW),
        }
    }

    /// Row `row` in `form`, which was [prepared](Self::prepare).
    pub fn row(&self, row: usize, form: Form) -> ActivationRow<'_> {
        match form {
            Form::F32 => ActivationRow::F32(self.values(row)),
            Form::Q8Wide => ActivationRow::Q8(self.wide.row(row, self.n_cols, WIDE)),
            Form::Q8Narrow => ActivationRow::Q8(self.narrow.row(row, self.n_cols, NARROW)),
        }
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

    fn fill(&mut self, values: &[f32], n_cols: usize, group: usize) {
        if self.codes.len() == values.len() {
            return;
        }
        assert_eq!(n_cols % group, 0, "rows of {n_cols} values fill whole groups of {group}");
        self.clear();
        self.codes.resize(values.len(), 0);
        for (x, codes) in values.chunks_exact(group).zip(self.codes.chunks_exact_mut(group)) {
            self.scales.push(quantise(x, codes));
        }
        if group == WIDE {
            let sum = |codes: &[i8]| codes.iter().map(|&q| i16::from(q)).sum::<i16>();
            self.sums.extend(self.codes.chunks_exact(SUM_LEN).map(sum));
        }
    }

    fn row(&self, row: usize, n_cols: usize, group: usize) -> Q8Row<'_> {
        let groups = n_cols / group;
        let sums = if group == WIDE { n_cols / SUM_LEN } else { 0 };
        Q8Row {
            codes: &self.codes[row * n_cols..(row + 1) * n_cols],
            scales: &self.scales[row * groups..(row + 1) * groups],
            sums: &self.sums[row * sums..(row + 1) * sums],
        }
    }
}

/// Codes one group and returns its scale. A group whose largest value is too small to divide by is all zero. A group
/// with a value that isn't finite has a scale that isn't a number, so that every product with it isn't either and the
/// damage is seen at the end.
fn quantise(x: &[f32], codes: &mut [i8]) -> f32 {
    // Without an early end, so that the loop has no branch a value.
    let is_damaged = x.iter().fold(false, |damaged, v| damaged | !v.is_finite());
    let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    if is_damaged {
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
#[expect(clippy::cast_possible_truncation, reason = "the value is in i8's range, as quantise scales it")]
fn round_to_i8(v: f32) -> i8 {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the significand.
    let shifted = v + 12_582_912.0;
    (shifted.to_bits().wrapping_sub(0x4B40_0000)).cast_signed() as i8
}

/// Writes the values that the 8-bit form of `x` stands for over `x`.
#[cfg(test)]
pub(crate) fn round_trip(x: &mut [f32], form: Form) {
    let group = match form {
        Form::F32 => return,
        Form::Q8Wide => WIDE,
        Form::Q8Narrow => NARROW,
    };
    let mut codes = [0_i8; WIDE];
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
