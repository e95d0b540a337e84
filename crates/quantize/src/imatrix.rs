//! How much each column of a model's matrices matters: the mean square of what it is multiplied with.
//!
//! The idea, the names and the two file forms are llama.cpp's (`llama-imatrix`): for each matrix, the sum over a text's
//! tokens of the squared activations of each column, and how many tokens that were. An expert counts the tokens that were
//! routed to it.
//!
//! Ours besides: the [second moments](forerun_compute::moments) of inputs that all tokens share, under the first of the
//! tensors that multiply them. Other programs pass over them.

mod dat;
mod names;
mod read;
mod write;

use std::collections::BTreeMap;

use forerun_compute::moments;

use crate::ImatrixError;
use crate::error::MomentsProblem;
pub use names::{fed_by, sharing};
pub use read::Reader;
pub use write::{Entry, write};

/// What was seen of one tensor's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// Columns of each matrix.
    n_cols: usize,
    /// Sums of squares, `[n_matrices, n_cols]`.
    sums: Vec<f32>,
    /// Tokens that were seen by each matrix; whole numbers, but for files that other programs wrote.
    counts: Vec<f32>,
    /// Sums of second moments of the only matrix; empty where there are none.
    moments: Vec<f32>,
}

impl Importance {
    /// What was seen of the tensor `name`: `sums` of squares `[n_matrices, n_cols]`, and `counts` of tokens per matrix.
    ///
    /// # Errors
    /// [`ImatrixError::Size`] unless the sizes fit.
    pub fn new(name: &str, n_cols: usize, sums: Vec<f32>, counts: Vec<f32>) -> Result<Self, ImatrixError> {
        if n_cols == 0 || counts.is_empty() || Some(sums.len()) != n_cols.checked_mul(counts.len()) {
            let (name, n_sums, n_matrices) = (name.to_owned(), sums.len(), counts.len());
            return Err(ImatrixError::Size { name, n_sums, n_matrices, n_cols });
        }
        Ok(Self { n_cols, sums, counts, moments: Vec::new() })
    }

    /// The same with sums of the second moments of its only matrix, as [`forerun_compute::moments`] lays them out; none
    /// where `moments` is empty.
    ///
    /// # Errors
    /// [`ImatrixError::Moments`] names the tensor `name` for moments of another length, and for numbers that no sum of
    /// products can be.
    pub fn with_moments(mut self, name: &str, moments: Vec<f32>) -> Result<Self, ImatrixError> {
        let expected = if self.n_matrices() == 1 { moments::len(self.n_cols) } else { 0 };
        let wrong = |problem| Err(ImatrixError::Moments { name: name.to_owned(), problem });
        if moments.is_empty() {
            return Ok(self);
        }
        if moments.len() != expected {
            return wrong(MomentsProblem::Length { found: moments.len(), expected });
        }
        if let Some(place) = moments.iter().position(|value| !value.is_finite()) {
            return wrong(MomentsProblem::Value { place, value: moments[place] });
        }
        let squares = moments::squares(self.n_cols, &moments);
        if let Some(col) = squares.iter().position(|square| *square < 0.0) {
            return wrong(MomentsProblem::Square { col, value: squares[col] });
        }
        self.moments = moments;
        Ok(self)
    }

    /// Sums of the second moments of the only matrix; empty where none are known.
    pub fn moments(&self) -> &[f32] {
        &self.moments
    }

    /// Columns of each matrix.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Matrices: experts of a stacked tensor, else one. An entry of the older form has one matrix always, whose columns are
    /// those of all experts, one after the other; see [`Self::into_matrices`].
    pub fn n_matrices(&self) -> usize {
        self.counts.len()
    }

    /// Tokens that matrix `matrix` saw.
    ///
    /// # Panics
    /// When there is no such matrix.
    pub fn count(&self, matrix: usize) -> f32 {
        self.counts[matrix]
    }

    /// Sums of squares of matrix `matrix`, per column.
    ///
    /// # Panics
    /// When there is no such matrix.
    pub fn sums(&self, matrix: usize) -> &[f32] {
        &self.sums[matrix * self.n_cols..(matrix + 1) * self.n_cols]
    }

    /// Mean squares of matrix `matrix`, per column; `None` when it saw no token, or its numbers are no numbers: then
    /// every column counts alike.
    ///
    /// # Panics
    /// When there is no such matrix.
    pub fn mean_squares(&self, matrix: usize) -> Option<Vec<f32>> {
        let (count, sums) = (self.counts[matrix], self.sums(matrix));
        let is_known = count > 0.0 && count.is_finite() && sums.iter().all(|sum| *sum >= 0.0);
        let means: Vec<f32> = sums.iter().map(|sum| sum / count).collect();
        // A quotient may pass all bounds where its parts don't.
        let is_usable = means.iter().all(|mean| mean.is_finite()) && means.iter().any(|mean| *mean > 0.0);
        (is_known && is_usable).then_some(means)
    }

    /// The same for a tensor of `n_matrices` matrices: an entry that counts all of them as one, as the older form does, is
    /// parted into them. `None` when it can't be.
    #[must_use]
    pub fn into_matrices(self, n_matrices: usize) -> Option<Self> {
        if self.n_matrices() == n_matrices {
            return Some(self);
        }
        let is_one = self.n_matrices() == 1 && n_matrices > 0 && self.n_cols.is_multiple_of(n_matrices);
        is_one.then(|| Self {
            n_cols: self.n_cols / n_matrices,
            counts: vec![self.counts[0]; n_matrices],
            sums: self.sums,
            moments: Vec::new(),
        })
    }
}

/// Where an importance matrix comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The texts, as their makers named them.
    pub datasets: Vec<String>,
    /// Windows of text.
    pub chunk_count: u32,
    /// Tokens of a window; 0 where the file doesn't say.
    pub chunk_size: u32,
    /// What a file says that isn't whole yet.
    pub partial: Option<Partial>,
}

/// What ties the first windows of a text to the rest of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// What was read and how, so that only the same goes on: see the writer.
    pub source: String,
    /// Windows that are counted.
    pub windows: u64,
}

/// The importance of every matrix that a text passed through, by the tensor's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// Where it comes from.
    pub about: About,
    entries: BTreeMap<String, Importance>,
}

impl Imatrix {
    /// What was seen of the tensor `name`.
    pub fn get(&self, name: &str) -> Option<&Importance> {
        self.entries.get(name)
    }

    /// The same, with the name as it is kept here.
    pub(crate) fn entry(&self, name: &str) -> Option<(&str, &Importance)> {
        self.entries.get_key_value(name).map(|(name, importance)| (name.as_str(), importance))
    }

    /// Adds a tensor, or replaces what was known of it.
    pub fn insert(&mut self, name: String, importance: Importance) {
        self.entries.insert(name, importance);
    }

    /// All tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Importance)> {
        self.entries.iter().map(|(name, importance)| (name.as_str(), importance))
    }

    /// How many tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests;
