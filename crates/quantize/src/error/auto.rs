//! What can keep types from being chosen by measurement.

use forerun_storage::OpenError;

use super::PlanError;

/// Why types can't be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutoError {
    /// Fewer bytes than the smallest file has.
    #[error(
        "the file can't have {target_bytes} bytes or fewer: with the smallest types it has {smallest_bytes}"
    )]
    Target {
        /// What was asked for.
        target_bytes: u64,
        /// The size with the smallest types.
        smallest_bytes: u64,
    },
    /// Experts that no reader takes for those of one layer.
    #[error(
        "{tensor} has another type or size than {other}: the experts of a layer share both, part by part"
    )]
    Unlike {
        /// The tensor of an expert.
        tensor: String,
        /// That of the first.
        other: String,
    },
    /// Weights that are no numbers.
    #[error("{tensor} holds values that are no numbers, so its error can't be measured")]
    Values {
        /// The tensor.
        tensor: String,
    },
    /// Weights that can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An importance matrix of another model.
    #[error(transparent)]
    Plan(#[from] PlanError),
}
