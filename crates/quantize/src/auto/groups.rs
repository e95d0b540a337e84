//! Which tensors share a type, which types they may have, and what part of the model they are.

use std::collections::BTreeMap;

use forerun_model::QuantType;
use forerun_model::names::{OUTPUT, TOKEN_EMBD};
use forerun_storage::TensorInfo;
use forerun_storage::expert_name::{ExpertTensor, Holds};

use crate::error::AutoError;
use crate::plan::{Choice, Reason, fallback, layer_of};

/// Types that have fast kernels, the smallest first.
const TYPES: [QuantType; 5] =
    [QuantType::Q3_K, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0];
/// What is left when a target can't be met with those: smaller, but slow to compute with.
const SMALLEST: QuantType = QuantType::Q2_K;

/// The part of a model that a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Tokens to vectors.
    Embedding,
    /// Vectors to tokens.
    Head,
    /// Attention, or a delta-net.
    Mixer,
    /// Routed experts.
    Routed,
    /// The shared expert, or a layer's only one.
    Shared,
    /// None of those.
    Other,
}

/// Tensors that share a type.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Their names.
    pub(super) tensors: Vec<String>,
    /// What they are part of.
    pub(super) part: Part,
    /// Of which layer.
    pub(super) layer: Option<u32>,
    /// Whether they are the last of their part: what they give is added to the residual stream.
    pub(super) is_last: bool,
    /// Whether its rows are tokens' vectors.
    pub(super) is_embedding: bool,
    /// Rows of each tensor.
    pub(super) n_rows: u64,
    /// Types that they may have, each with its bytes.
    pub(super) types: Vec<(QuantType, u64)>,
}

impl Group {
    /// Whether the first type is the slow one, and there are others.
    pub(super) fn starts_slow(&self) -> bool {
        self.types.len() > 1 && self.types[0].0 == SMALLEST
    }
}

/// The groups of the tensors that may be quantised.
///
/// # Errors
/// [`AutoError::Unlike`] for experts of a layer whose matrices differ in type or size.
pub(super) fn groups(tensors: &[TensorInfo], choices: &[Choice]) -> Result<Vec<Group>, AutoError> {
    let is_tied = !tensors.iter().any(|tensor| tensor.name == OUTPUT);
    // The group of a layer's part, and its first tensor.
    let mut places: BTreeMap<(u32, u8), (usize, &TensorInfo)> = BTreeMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for (tensor, choice) in tensors.iter().zip(choices) {
        if matches!(choice.reason, Reason::Kept(_)) {
            continue;
        }
        let types = types(choice);
        let shared = match ExpertTensor::parse(&tensor.name) {
            Some(ExpertTensor { layer, holds: Holds::One { part, .. } }) => {
                let part = u8::try_from(part).unwrap_or(u8::MAX);
                Some((u32::from(layer.0), part))
            }
            _ => None,
        };
        let place = shared.and_then(|key| places.get(&key).copied());
        if let Some((place, first)) = place {
            let group = &mut groups[place];
            if (tensor.quant, tensor.dims()) != (first.quant, first.dims()) {
                let (tensor, other) = (tensor.name.clone(), first.name.clone());
                return Err(AutoError::Unlike { tensor, other });
            }
            group.tensors.push(tensor.name.clone());
            group.types.iter_mut().zip(&types).for_each(|(sum, (_, bytes))| sum.1 += bytes);
            continue;
        }
        if let Some(key) = shared {
            places.insert(key, (groups.len(), tensor));
        }
        groups.push(Group {
            tensors: vec![tensor.name.clone()],
            part: part(&tensor.name, is_tied),
            layer: layer_of(&tensor.name),
            is_last: is_last(&tensor.name),
            is_embedding: tensor.name == TOKEN_EMBD,
            n_rows: tensor.dims()[1..].iter().product(),
            types,
        });
    }
    Ok(groups)
}

/// The types that a tensor may have, each once, and none larger than the source.
fn types(choice: &Choice) -> Vec<(QuantType, u64)> {
    let bytes = |quant: QuantType| choice.n_values / quant.block_len() as u64 * quant.block_bytes() as u64;
    let mut types: Vec<(QuantType, u64)> = Vec::new();
    let all = [SMALLEST].into_iter().chain(TYPES).map(|quant| fallback(quant, choice.n_cols));
    for quant in all.filter(|quant| bytes(*quant) < bytes(choice.from)).chain([choice.from]) {
        if !types.iter().any(|known| known.0 == quant) {
            types.push((quant, bytes(quant)));
        }
    }
    types
}

fn part(name: &str, is_tied: bool) -> Part {
    let has = |text: &str| name.contains(text);
    if name == OUTPUT || (is_tied && name == TOKEN_EMBD) {
        Part::Head
    } else if name == TOKEN_EMBD {
        Part::Embedding
    } else if ExpertTensor::parse(name).is_some() {
        Part::Routed
    } else if has(".ffn_") {
        Part::Shared
    } else if has(".attn_") || has(".ssm_") {
        Part::Mixer
    } else {
        Part::Other
    }
}

fn is_last(name: &str) -> bool {
    ["attn_output", "ssm_out", "ffn_down"].iter().any(|last| name.contains(last))
}
