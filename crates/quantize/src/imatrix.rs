//! How much each column of a model's matrices matters: the mean square of what it is multiplied with.
//!
//! The idea and the names are llama.cpp's (`llama-imatrix`): for each matrix, the sum over a text's tokens of the squared
//! activations of each column, and how many tokens that were. An expert counts the tokens that were routed to it.

use std::collections::BTreeMap;

use crate::QuantizeError;

/// What was seen of one tensor's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// Columns of each matrix.
    n_cols: usize,
    /// Sums of squares, `[n_matrices, n_cols]`.
    sums: Vec<f32>,
    /// Tokens that were seen by each matrix; whole numbers, but for files that other programs wrote.
    counts: Vec<f32>,
}

impl Importance {
    /// What was seen of the tensor `name`: `sums` of squares `[n_matrices, n_cols]`, and `counts` of tokens per matrix.
    ///
    /// # Errors
    /// [`QuantizeError::ImportanceSize`] unless the sizes fit.
    pub fn new(name: &str, n_cols: usize, sums: Vec<f32>, counts: Vec<f32>) -> Result<Self, QuantizeError> {
        if n_cols == 0 || Some(sums.len()) != n_cols.checked_mul(counts.len()) {
            let (name, n_sums, n_matrices) = (name.to_owned(), sums.len(), counts.len());
            return Err(QuantizeError::ImportanceSize { name, n_sums, n_matrices, n_cols });
        }
        Ok(Self { n_cols, sums, counts })
    }

    /// Columns of each matrix.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Matrices: experts of a stacked tensor, else one.
    pub fn n_matrices(&self) -> usize {
        self.counts.len()
    }

    /// Tokens that matrix `matrix` saw.
    pub fn count(&self, matrix: usize) -> f32 {
        self.counts[matrix]
    }

    /// Sums of squares of matrix `matrix`, per column.
    pub fn sums(&self, matrix: usize) -> &[f32] {
        &self.sums[matrix * self.n_cols..(matrix + 1) * self.n_cols]
    }

    /// Mean squares of matrix `matrix`, per column; `None` when it saw no token, or its numbers are no numbers: then
    /// every column counts alike.
    pub fn mean_squares(&self, matrix: usize) -> Option<Vec<f32>> {
        let (count, sums) = (self.counts[matrix], self.sums(matrix));
        let is_known = count > 0.0
            && count.is_finite()
            && sums.iter().all(|sum| sum.is_finite() && *sum >= 0.0)
            && sums.iter().any(|sum| *sum > 0.0);
        is_known.then(|| sums.iter().map(|sum| sum / count).collect())
    }
}

/// The importance of every matrix that a text passed through, by the tensor's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    entries: BTreeMap<String, Importance>,
}

impl Imatrix {
    /// What was seen of the tensor `name`.
    pub fn get(&self, name: &str) -> Option<&Importance> {
        self.entries.get(name)
    }

    /// Adds a tensor, or replaces what was known of it.
    pub fn insert(&mut self, name: String, importance: Importance) {
        self.entries.insert(name, importance);
    }

    /// All tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Importance)> {
        self.entries.iter().map(|(name, importance)| (name.as_str(), importance))
    }
}
