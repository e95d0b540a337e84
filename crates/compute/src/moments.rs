//! Second moments of a matrix's inputs: sums over tokens of the products of every two columns of one block of columns.
//!
//! A block is [`BLOCK_COLS`] columns, as many as a block of a K-quant has; the last may have fewer. Moments are symmetric,
//! so of each block there is the lower triangle, row by row: `x_0 x_0`, `x_1 x_0`, `x_1 x_1`, and so on; blocks follow each
//! other.

use std::ops::Range;

use crate::activation::{Activations, Rows};
use crate::kernels::{Isa, Loop};

/// Columns of a block.
pub const BLOCK_COLS: usize = 256;
/// Sums that are added to side by side.
const LANES: usize = 16;
/// Tokens that are added to a sum while it is at hand.
const TOKENS: usize = 8;

/// Moments of inputs of `n_cols` columns: how many numbers that are.
pub fn len(n_cols: usize) -> usize {
    blocks(n_cols).map(|(cols, _)| triangle(cols.len())).sum()
}

/// The columns of each block, and where in the list its moments stand.
pub fn blocks(n_cols: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    (0..n_cols).step_by(BLOCK_COLS).map(move |first| {
        let cols = first..n_cols.min(first + BLOCK_COLS);
        // All blocks before are full.
        let start = first / BLOCK_COLS * triangle(BLOCK_COLS);
        let end = start + triangle(cols.len());
        (cols, start..end)
    })
}

/// Where the moments of a block's row `r` begin, and how many moments the rows before have.
pub fn triangle(r: usize) -> usize {
    r * (r + 1) / 2
}

/// The squares of `moments`, one for each column.
///
/// # Panics
/// Unless there are [`len`] of `n_cols`.
pub fn squares(n_cols: usize, moments: &[f32]) -> Vec<f32> {
    assert_eq!(moments.len(), len(n_cols), "moments of as many columns");
    blocks(n_cols)
        .flat_map(|(cols, at)| (0..cols.len()).map(move |r| moments[at.start + triangle(r) + r]))
        .collect()
}

/// Adds the moments of `rows` of `x`. A sum is f32 and takes the tokens' products in their order, one after the other, so
/// that neither steps nor instruction sets change a bit.
///
/// # Panics
/// Unless `sums` has [`len`] of the rows' length.
pub fn add(isa: Isa, x: &Activations, rows: Rows<'_>, sums: &mut [f32]) {
    let n = rows.len(x.n_rows());
    let values = |i: usize| x.values(rows.get(i));
    let whole = n / TOKENS * TOKENS;
    for first in (0..whole).step_by(TOKENS) {
        isa.run(Add::<TOKENS> { tokens: std::array::from_fn(|i| values(first + i)), sums });
    }
    for i in whole..n {
        isa.run(Add { tokens: [values(i)], sums });
    }
}

struct Add<'a, const T: usize> {
    tokens: [&'a [f32]; T],
    sums: &'a mut [f32],
}

impl<const T: usize> Loop for Add<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { tokens, sums } = self;
        let n_cols = tokens.first().map_or(0, |values| values.len());
        assert_eq!(sums.len(), len(n_cols), "sums for as many columns");
        for (cols, at) in blocks(n_cols) {
            let mut left = &mut sums[at];
            for r in 0..cols.len() {
                let (line, next) = left.split_at_mut(r + 1);
                let factors = tokens.map(|values| values[cols.start + r]);
                let values = tokens.map(|values| values[cols.start..][..=r].as_chunks::<LANES>());
                let (lines, rest) = line.as_chunks_mut::<LANES>();
                for (c, line) in lines.iter_mut().enumerate() {
                    let mut sums = *line;
                    for (factor, values) in factors.iter().zip(&values) {
                        for (sum, value) in sums.iter_mut().zip(&values.0[c]) {
                            *sum += factor * value;
                        }
                    }
                    *line = sums;
                }
                for (j, sum) in rest.iter_mut().enumerate() {
                    for (factor, values) in factors.iter().zip(&values) {
                        *sum += factor * values.1[j];
                    }
                }
                left = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blocks_of_columns_and_of_moments_follow_each_other() {
        assert_eq!([len(0), len(1), len(2), len(256), len(257)], [0, 1, 3, 32896, 32897]);
        assert_eq!(blocks(352).collect::<Vec<_>>(), [(0..256, 0..32896), (256..352, 32896..37552)]);
        let moments: Vec<f32> = (0..6).map(|i: u8| f32::from(i)).collect();
        assert_eq!(squares(3, &moments), [0.0, 2.0, 5.0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn tokens_are_added_in_their_order(n_cols in 1_usize..300, n in 1_usize..20, seed: u32) {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            let rows: Vec<Vec<f32>> = (0..n).map(|_| (0..n_cols).map(|_| next()).collect()).collect();
            let mut want = Vec::new();
            for (cols, _) in blocks(n_cols) {
                for i in cols.clone() {
                    for j in cols.start..=i {
                        want.push(rows.iter().fold(0.0f32, |sum, row| sum + row[i] * row[j]).to_bits());
                    }
                }
            }
            let mut x = Activations::with_capacity(n, n_cols);
            x.start(n, n_cols).copy_from_slice(&rows.concat());
            for isa in Isa::all() {
                let mut sums = vec![0.0; len(n_cols)];
                add(isa, &x, Rows::All, &mut sums);
                let found: Vec<_> = sums.iter().map(|sum| sum.to_bits()).collect();
                prop_assert!(found == want, "{:?}", isa);
            }
        }
    }
}
