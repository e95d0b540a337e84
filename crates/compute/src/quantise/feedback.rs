//! Rounding that knows how columns go together: what one column's rounding adds to the output, the columns after it take off.
//!
//! A row's error `e` costs `e H e^T`, where `H` is the mean of `x x^T` over the inputs `x`. With `H = (I + A) D (I + A)^T`,
//! `A` strictly upper and `D` diagonal, that is `sum_k D_k (e_k + sum_{i<k} e_i A_ik)^2`: columns are rounded one after the
//! other, and column `k` is made to stand for its value plus `sum_{i<k} e_i A_ik`, with `e` value less what it became (LDLQ;
//! Chee et al., "QuIP", 2023, section 3.1, where it is also shown to be what GPTQ does). Scales and offsets are those that
//! [`quantise`](super::quantise) finds without it.
//!
//! `H` is known for what a layer's experts share. An expert sees its own part of it, of which only the diagonal is known:
//! its moments are taken to be `g_i H_ij g_j`, with the `g` that give this diagonal. That leaves `D` and `A` for one
//! factorisation to find, as `A` becomes `g_i A_ik / g_k`.

use crate::moments::{self, triangle};

/// What the products of two unlike columns count: less than all, as an expert's columns don't go together quite as the
/// layer's do, and so that no `D` is next to nothing.
const ALIKE: f64 = 0.99;
/// The part of the columns' mean `g^2` that each has at least: an expert that few tokens reached knows of some columns
/// nothing, and these mustn't be made to pay for all others.
const GAIN_MIN: f64 = 1.0 / 64.0;
/// The part of its square that a column has left when those after it are known; less is no sum of products.
const LEFT_MIN: f64 = 1e-3;
/// Columns whose sums are taken side by side.
pub(super) const STRIP: usize = 8;

/// The factors of a matrix's second moments, block by block of columns.
#[derive(Clone, Debug)]
pub struct Feedback {
    blocks: Vec<Block>,
    /// The moments' diagonal.
    squares: Vec<f32>,
}

/// The factors of one block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// `A`, in strips of columns: each has `[STRIP]` for every row up to its own last.
    pub(super) strips: Vec<[f32; STRIP]>,
    /// `D`.
    left: Vec<f64>,
}

impl Feedback {
    /// Factors [`moments`], given for `n_cols` columns. `None` where they are no moments: of another length, not finite, or
    /// such as no sum of products can be; rounding without them is right then.
    pub fn new(n_cols: usize, moments: &[f32]) -> Option<Self> {
        if moments.len() != moments::len(n_cols) || !moments.iter().all(|value| value.is_finite()) {
            return None;
        }
        let block = |(_, at)| Block::new(&moments[at]);
        let blocks = moments::blocks(n_cols).map(block).collect::<Option<Vec<_>>>()?;
        Some(Self { blocks, squares: moments::squares(n_cols, moments) })
    }

    /// The columns.
    pub fn n_cols(&self) -> usize {
        self.squares.len()
    }

    /// The same for a matrix whose inputs have the mean squares `importance`.
    ///
    /// # Panics
    /// Unless there are as many as columns.
    pub fn of(&self, importance: &[f32]) -> Carry<'_> {
        assert_eq!(importance.len(), self.n_cols(), "a mean square for every column");
        let ratio = |(mean, square): (&f32, &f32)| {
            let ratio = f64::from(*mean) / f64::from(*square);
            if ratio > 0.0 && ratio.is_finite() { ratio } else { 0.0 }
        };
        let ratios: Vec<f64> = importance.iter().zip(&self.squares).map(ratio).collect();
        #[expect(clippy::cast_precision_loss, reason = "columns of a matrix")]
        let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
        let gain = |(ratio, square): (f64, &f32)| {
            let is_seen = *square > 0.0 && mean > 0.0;
            if is_seen { (ratio / mean).max(GAIN_MIN).sqrt() } else { 0.0 }
        };
        let gains: Vec<f64> = ratios.into_iter().zip(&self.squares).map(gain).collect();
        Carry { feedback: self, gains, mean }
    }
}

/// A [`Feedback`] as one matrix has it.
#[derive(Clone, Debug)]
pub struct Carry<'a> {
    feedback: &'a Feedback,
    /// `g` of each column, in units of their root mean square; 0 where nothing was ever seen of it.
    gains: Vec<f64>,
    /// Their mean square.
    mean: f64,
}

impl Carry<'_> {
    /// The columns.
    pub fn n_cols(&self) -> usize {
        self.feedback.n_cols()
    }

    /// What `errors` of a row's columns cost: `e H e^T`, with nothing known of columns of different blocks.
    ///
    /// # Panics
    /// Unless there are as many as columns.
    pub fn cost(&self, errors: &[f32]) -> f64 {
        assert_eq!(errors.len(), self.n_cols(), "an error for every column");
        let scaled: Vec<f64> = errors.iter().zip(&self.gains).map(|(e, g)| f64::from(*e) * g).collect();
        let parts = moments::blocks(errors.len()).zip(&self.feedback.blocks);
        parts.map(|((cols, _), block)| block.cost(&scaled[cols])).sum::<f64>() * self.mean
    }

    /// The blocks, each with its columns' `g` and `1 / g`, which is 0 of 0.
    pub(super) fn blocks(&self) -> Vec<(&Block, Vec<[f32; 2]>)> {
        #[expect(clippy::cast_possible_truncation, reason = "factors near 1")]
        let both = |gain: &f64| [*gain as f32, if *gain > 0.0 { gain.recip() as f32 } else { 0.0 }];
        let parts = moments::blocks(self.n_cols()).zip(&self.feedback.blocks);
        parts.map(|((cols, _), block)| (block, self.gains[cols].iter().map(both).collect())).collect()
    }
}

impl Block {
    fn new(moments: &[f32]) -> Option<Self> {
        let n = (0..=moments::BLOCK_COLS).find(|n| triangle(*n) == moments.len())?;
        let mut rows: Vec<Vec<f64>> = (0..n)
            .map(|r| moments[triangle(r)..][..=r].iter().map(|value| f64::from(*value)).collect())
            .collect();
        for (r, row) in rows.iter_mut().enumerate() {
            row[..r].iter_mut().for_each(|value| *value *= ALIKE);
        }
        // From the last column on: its line, over what is left of it, is a column of A, and is taken off all before it.
        let mut left = vec![0.0; n];
        for k in (0..n).rev() {
            let (before, line) = rows.split_at_mut(k);
            let line = &mut line[0];
            left[k] = line[k];
            let square = f64::from(moments[triangle(k) + k]);
            if square < 0.0 || left[k] < square * LEFT_MIN {
                return None;
            }
            let inverse = if left[k] > 0.0 { left[k].recip() } else { 0.0 };
            for (i, row) in before.iter_mut().enumerate() {
                let factor = line[i] * inverse;
                row.iter_mut().zip(&*line).for_each(|(value, other)| *value -= factor * other);
            }
            line[..k].iter_mut().for_each(|value| *value *= inverse);
        }
        Some(Self { strips: strips(&rows), left })
    }

    fn cost(&self, errors: &[f64]) -> f64 {
        let mut at = 0;
        let mut cost = 0.0;
        for (strip, left) in self.left.chunks(STRIP).enumerate() {
            let end = (strip + 1) * STRIP;
            let mut sums = [0.0; STRIP];
            for (factors, error) in self.strips[at..].iter().zip(&errors[..end.min(errors.len())]) {
                sums.iter_mut().zip(factors).for_each(|(sum, factor)| *sum += error * f64::from(*factor));
            }
            let own = &errors[strip * STRIP..];
            let costs =
                left.iter().zip(sums).zip(own).map(|((left, sum), own)| left * (own + sum) * (own + sum));
            cost += costs.sum::<f64>();
            at += end;
        }
        cost
    }
}

/// From the lines of the lower triangle, whose line `k` is column `k` of `A`.
#[expect(clippy::cast_possible_truncation, reason = "factors, which are few and of a middling size")]
fn strips(columns: &[Vec<f64>]) -> Vec<[f32; STRIP]> {
    let mut strips = Vec::new();
    for (strip, columns) in columns.chunks(STRIP).enumerate() {
        strips.extend((0..(strip + 1) * STRIP).map(|i| {
            let factor = |j: usize| columns.get(j).filter(|_| i < strip * STRIP + j).map_or(0.0, |of| of[i]);
            std::array::from_fn(|j| factor(j) as f32)
        }));
    }
    strips
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the sum over all pairs, of a block and a bit.
    #[test]
    fn errors_cost_what_the_moments_say() {
        let n_cols = 259;
        let wave = |i: usize, by: f32| (i as f32 * by).sin();
        let mut sums = vec![0.0; moments::len(n_cols)];
        let product = |i: usize, j: usize| {
            let common: f32 = [0.3, 0.7, 1.1].iter().map(|by| wave(i, *by) * wave(j, *by)).sum();
            common + if i == j { 1.0 } else { 0.0 }
        };
        for (cols, at) in moments::blocks(n_cols) {
            for i in 0..cols.len() {
                for j in 0..=i {
                    sums[at.start + triangle(i) + j] = product(cols.start + i, cols.start + j);
                }
            }
        }
        let feedback = Feedback::new(n_cols, &sums).unwrap();
        // Four times the layer's inputs here, a quarter there.
        let gain = |i: usize| if i < 100 { 2.0 } else { 0.5 };
        let means: Vec<f32> = (0..n_cols).map(|i| product(i, i) * gain(i) * gain(i)).collect();
        let errors: Vec<f32> = (0..n_cols).map(|i| wave(i, 2.3)).collect();
        let mut want = 0.0;
        for i in 0..n_cols {
            for j in (0..n_cols).filter(|j| (i < 256) == (*j < 256)) {
                let alike = if i == j { 1.0 } else { ALIKE };
                let both = f64::from(gain(i) * errors[i]) * f64::from(gain(j) * errors[j]);
                want += alike * f64::from(product(i, j)) * both;
            }
        }
        let found = feedback.of(&means).cost(&errors);
        assert!((found / want - 1.0).abs() < 1e-5, "{found}, {want}");
    }
}
