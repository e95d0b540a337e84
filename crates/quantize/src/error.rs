//! What can go wrong on the way to a smaller file.

mod recipe;

pub use recipe::{EncodeError, PlanError, RecipeError};

/// Why a file isn't made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A recipe that can't be read.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A recipe that can't be followed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Values that can't be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Sizes of an importance matrix don't fit each other.
    #[error(
        "the importance matrix has {n_sums} sums for `{name}`, which {n_matrices} matrices of {n_cols} columns don't give"
    )]
    ImportanceSize {
        /// The tensor.
        name: String,
        /// Sums that were given.
        n_sums: usize,
        /// Matrices of the tensor.
        n_matrices: usize,
        /// Columns of each.
        n_cols: usize,
    },
}
