//! What the experts of a layer must have in common, and how many of them a text has reached.

use std::collections::BTreeMap;

use forerun_model::QuantType;
use forerun_storage::expert_name::{ExpertTensor, Holds, PARTS};

use super::Choice;
use crate::error::PlanError;

/// Bits of a value below which encoding without knowing the inputs ruins an expert.
const BITS_MIN: f64 = 3.5;

/// Matrices of a tensor, or of a layer's experts, of which an importance matrix knows nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// The tensor, with a star for the experts that it is one of.
    pub tensor: String,
    /// How many.
    pub n_unseen: usize,
    /// Of how many.
    pub n_matrices: usize,
    /// The type that they get.
    pub quant: QuantType,
}

impl Unseen {
    /// Whether these are more than half, at few bits.
    pub(super) fn is_too_many(&self) -> bool {
        2 * self.n_unseen > self.n_matrices && bits(self.quant) < BITS_MIN
    }

    pub(super) fn refused(&self) -> PlanError {
        let Self { tensor, n_unseen, n_matrices, quant } = self.clone();
        PlanError::Unseen { tensor, n_unseen, n_matrices, quant }
    }
}

/// Bits of a value.
#[expect(clippy::cast_precision_loss, reason = "blocks are small")]
fn bits(quant: QuantType) -> f64 {
    quant.block_bytes() as f64 * 8.0 / quant.block_len() as f64
}

/// Counts matrices by tensor, those of one layer's experts together.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<String, Unseen>);

impl Counts {
    /// Counts one matrix of a tensor. Experts only: other tensors are reached by every token, or have no entry.
    pub(super) fn add(&mut self, choice: &Choice, is_seen: bool) {
        let Some(found) = ExpertTensor::parse(&choice.tensor) else { return };
        let tensor = match found.holds {
            Holds::One { part, .. } => format!("blk.{}.{}.*.weight", found.layer.0, PARTS[part]),
            _ => choice.tensor.clone(),
        };
        let none = Unseen { tensor: tensor.clone(), n_unseen: 0, n_matrices: 0, quant: choice.to };
        let counted = self.0.entry(tensor).or_insert(none);
        counted.n_matrices += 1;
        counted.n_unseen += usize::from(!is_seen);
    }

    /// Those of which some are unseen.
    pub(super) fn unseen(self) -> Vec<Unseen> {
        self.0.into_values().filter(|counted| counted.n_unseen > 0).collect()
    }
}

/// Refuses one type for some experts of a layer and another for others, which no reader of records takes.
pub(super) fn check_types(choices: &[Choice]) -> Result<(), PlanError> {
    let mut types: BTreeMap<(u16, usize), QuantType> = BTreeMap::new();
    for choice in choices {
        let Some(ExpertTensor { layer, holds: Holds::One { part, .. } }) =
            ExpertTensor::parse(&choice.tensor)
        else {
            continue;
        };
        let (found, expected) = (choice.to, *types.entry((layer.0, part)).or_insert(choice.to));
        if found != expected {
            return Err(PlanError::ExpertTypes { tensor: choice.tensor.clone(), found, expected });
        }
    }
    Ok(())
}
