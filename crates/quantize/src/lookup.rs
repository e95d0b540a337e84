//! Which entry of an importance matrix tells of which matrix of a model, whatever names and forms each of them uses.
//!
//! Routed experts are named in three ways: stacked (`ffn_gate_exps`), gate and up fused (`ffn_gate_up_exps`), or one tensor
//! each (`ffn_gate.7`). Gate and up see the same inputs, so what is known of one is known of the other.

use forerun_model::names;
use forerun_storage::TensorInfo;
use forerun_storage::expert_name::{ExpertTensor, Holds, PARTS};

use crate::error::PlanError;
use crate::imatrix::sharing;
use crate::{Imatrix, Importance};

/// An importance matrix, asked about a model's tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup<'a> {
    pub(crate) imatrix: &'a Imatrix,
    /// Routed experts of a layer of the model.
    pub(crate) n_experts: usize,
}

/// What is known of the inputs of one matrix.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    name_idx: usize,
    importance: &'a Importance,
    /// The matrix among those of the entry.
    matrix: usize,
    /// Matrices that the entry should have.
    n_matrices: usize,
}

/// What an importance matrix says of one of a model's matrices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Known {
    /// It has no entry.
    Absent,
    /// It has an entry without data that can be used.
    Unseen,
    /// Mean squares of the columns' inputs.
    Seen(Vec<f32>),
}

impl<'a> Lookup<'a> {
    /// What is known of the inputs of `matrix` of `tensor`.
    ///
    /// # Errors
    /// [`PlanError::ImportanceShape`] when the entry is one of a model of other sizes.
    pub(crate) fn know(self, tensor: &TensorInfo, matrix: usize) -> Result<Known, PlanError> {
        Ok(self.know_counted(tensor, matrix)?.0)
    }

    /// The same, with how many tokens that was learned from.
    ///
    /// # Errors
    /// As [`Lookup::know`].
    pub(crate) fn know_counted(self, tensor: &TensorInfo, matrix: usize) -> Result<(Known, f32), PlanError> {
        let names = candidates(tensor, matrix);
        let n_cols = usize::try_from(tensor.dims()[0]).unwrap_or(usize::MAX);
        let Some(entry) = self.find(&names, tensor) else { return Ok((Known::Absent, 0.0)) };
        let Entry { name_idx, importance, matrix, n_matrices } = entry;
        let (found_matrices, found_cols) = (importance.n_matrices(), importance.n_cols());
        // The older form counts a layer's experts as one matrix.
        let is_wide = found_matrices == 1 && Some(found_cols) == n_cols.checked_mul(n_matrices);
        let (sums, count) = match (found_matrices, found_cols) {
            (n, cols) if (n, cols) == (n_matrices, n_cols) && matrix < n => {
                (importance.sums(matrix), importance.count(matrix))
            }
            _ if is_wide && matrix < n_matrices => {
                (&importance.sums(0)[matrix * n_cols..(matrix + 1) * n_cols], importance.count(0))
            }
            _ => {
                let (entry, tensor) = (names[name_idx].0.clone(), tensor.name.clone());
                return Err(PlanError::ImportanceShape {
                    entry,
                    found_matrices,
                    found_cols,
                    tensor,
                    n_matrices,
                    n_cols,
                });
            }
        };
        let one = Importance::new(&tensor.name, n_cols, sums.to_vec(), vec![count]);
        let means = one.ok().and_then(|one| one.mean_squares(0));
        Ok((means.map_or(Known::Unseen, Known::Seen), count))
    }

    /// Second moments of the inputs of `tensor`, and the entry that has them; `None` when no entry has any of as many
    /// columns.
    pub(crate) fn moments(self, tensor: &TensorInfo) -> Option<(&'a str, &'a [f32])> {
        let n_cols = usize::try_from(tensor.dims()[0]).ok()?;
        sharing(&tensor.name).iter().find_map(|name| {
            let (name, importance) = self.imatrix.entry(name)?;
            let is_right = importance.n_cols() == n_cols && !importance.moments().is_empty();
            is_right.then(|| (name, importance.moments()))
        })
    }

    fn find(self, names: &[(String, Place)], tensor: &TensorInfo) -> Option<Entry<'a>> {
        names.iter().enumerate().find_map(|(name_idx, (name, place))| {
            let importance = self.imatrix.get(name)?;
            let (matrix, n_matrices) = match *place {
                Place::Own(matrix) => (matrix, n_matrices(tensor)),
                Place::Stacked(expert) => (expert, self.n_experts),
                Place::Single => (0, 1),
            };
            Some(Entry { name_idx, importance, matrix, n_matrices })
        })
    }
}

/// Matrices of a tensor: experts of a stacked one, else one.
pub(crate) fn n_matrices(tensor: &TensorInfo) -> usize {
    let n = tensor.dims().iter().skip(2).product::<u64>();
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Which matrix of an entry is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// That of the tensor's own number, of as many as the tensor has.
    Own(usize),
    /// That of an expert, of as many as a layer has.
    Stacked(usize),
    /// The only one.
    Single,
}

/// Names of entries that tell of `matrix` of `tensor`, the best first.
fn candidates(tensor: &TensorInfo, matrix: usize) -> Vec<(String, Place)> {
    let mut names = vec![(tensor.name.clone(), Place::Own(matrix))];
    let Some(found) = ExpertTensor::parse(&tensor.name) else { return names };
    let (expert, parts): (usize, &[usize]) = match found.holds {
        Holds::Stacked(part) => (matrix, siblings(part)),
        Holds::GateUp => (matrix, siblings(0)),
        Holds::One { part, expert } => (usize::from(expert), siblings(part)),
        Holds::Packed => return names,
    };
    let stacked = |part: &str| names::block(found.layer, &format!("{part}_exps"));
    if parts.len() > 1 {
        names.push((stacked("ffn_gate_up"), Place::Stacked(expert)));
    }
    for &part in parts {
        names.push((stacked(PARTS[part]), Place::Stacked(expert)));
        names.push((names::block_expert(found.layer, PARTS[part], expert), Place::Single));
    }
    names
}

/// The part itself, and the one that sees the same inputs.
fn siblings(part: usize) -> &'static [usize] {
    match part {
        0 => &[0, 1],
        1 => &[1, 0],
        _ => &[2],
    }
}

#[cfg(test)]
mod tests;
