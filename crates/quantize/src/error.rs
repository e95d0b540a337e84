//! What can go wrong on the way to a smaller file.

/// Why a file isn't made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
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
