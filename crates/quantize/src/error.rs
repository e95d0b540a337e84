//! What can go wrong on the way to a smaller file.

mod auto;
mod imatrix;
mod recipe;

pub use auto::AutoError;
pub use imatrix::{ImatrixError, MomentsProblem};
pub use recipe::{EncodeError, PlanError, RecipeError};

/// Why a file isn't made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The importance matrix.
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
    /// A recipe that can't be read.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A recipe that can't be followed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Types that can't be chosen by measurement.
    #[error(transparent)]
    Auto(#[from] AutoError),
    /// Values that can't be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}
