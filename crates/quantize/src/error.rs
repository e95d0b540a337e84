//! What can go wrong on the way to a smaller file.

mod imatrix;

pub use imatrix::ImatrixError;

/// Why a file isn't made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The importance matrix.
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
}
