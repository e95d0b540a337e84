//! What llama.cpp's mixtures choose for a tensor, and what must stay as it is.
//!
//! Source of the rules: `llama-quantize` (`llama_tensor_get_type_impl`, `tensor_allows_quantization`); a file made with a
//! mixture's name has the same types here and there.

use forerun_model::QuantType;
use forerun_storage::TensorInfo;

use crate::recipe::Mixture;

/// What the rules want to know of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Blocks, those of multi-token prediction too.
    pub n_layers: u32,
    /// Routed experts of a layer; 0 without.
    pub n_experts: u32,
    /// Routed experts of a token; 0 without.
    pub top_k: u32,
}

/// The layer in a tensor's name.
pub(crate) fn layer_of(name: &str) -> Option<u32> {
    let (layer, _) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

/// Why `tensor` must stay as it is; `None` when it may be quantised.
pub(super) fn must_stay(tensor: &TensorInfo) -> Option<&'static str> {
    use QuantType as Q;
    let name = tensor.name.as_str();
    let has = |part: &str| name.contains(part);
    let dims = tensor.dims();
    let n_axes = dims.iter().rposition(|size| *size > 1).map_or(1, |last| last + 1);
    if matches!(tensor.quant, Q::I8 | Q::I16 | Q::I32 | Q::I64 | Q::F64) {
        Some("isn't kept in a type of weights")
    } else if n_axes < 2 {
        Some("has one axis")
    } else if !name.ends_with("weight") {
        Some("isn't named a weight")
    } else if has("_norm.weight") {
        Some("is a norm")
    } else if has("ffn_gate_inp.weight") {
        Some("is a router")
    } else if has("ssm_conv1d") || has("shortconv.conv.weight") {
        Some("is a short convolution")
    } else if ["position_embd.weight", "token_types.weight"].contains(&name) || has(".position_embd") {
        Some("is an embedding of positions or kinds")
    } else if [".patch_embd", ".patch_merger", ".rel_pos", "sam.", "a.rvq.codebook", "mm.a.code_embd"]
        .iter()
        .any(|part| has(part))
    {
        Some("belongs to another sense than text")
    } else {
        None
    }
}

/// Chooses types tensor after tensor; some choices depend on how many like it came before.
pub(super) struct Chooser {
    mixture: Mixture,
    facts: Facts,
    /// The embedding stands in for the head.
    is_tied: bool,
    n_values: usize,
    /// Attention's value matrices that were passed.
    i_values: usize,
    /// Down matrices that were passed; counted only in models without experts.
    i_down: usize,
}

impl Chooser {
    /// A chooser for all tensors of these names.
    pub(super) fn new<'a>(
        mixture: Mixture,
        facts: Facts,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        let is_tied = !names.clone().any(|name| name == forerun_model::names::OUTPUT);
        let n_values = names.filter(|name| is_value(name)).count();
        Self { mixture, facts, is_tied, n_values, i_values: 0, i_down: 0 }
    }

    /// The type for the next tensor. Tensors must come layer by layer, those of no layer first, and by name within one.
    pub(super) fn next(&mut self, name: &str) -> QuantType {
        let (default, is_q4) = match self.mixture {
            Mixture::All(quant) => return quant,
            Mixture::Q4KM => (QuantType::Q4_K, true),
            Mixture::Q3KM => (QuantType::Q3_K, false),
        };
        let eight_experts = self.facts.n_experts == 8;
        let is_head = name == forerun_model::names::OUTPUT
            || self.is_tied
                && [forerun_model::names::TOKEN_EMBD, "per_layer_token_embd.weight"].contains(&name);
        if is_head {
            return QuantType::Q6_K;
        }
        if is_value(name) {
            let i = self.i_values;
            self.i_values += 1;
            return match (eight_experts, is_q4) {
                (true, _) => QuantType::Q8_0,
                (false, true) if deserves_more(i, self.n_values) => QuantType::Q6_K,
                (false, true) => default,
                (false, false) if i < 2 => QuantType::Q5_K,
                (false, false) => QuantType::Q4_K,
            };
        }
        if name.contains("attn_k.weight") {
            return if eight_experts { QuantType::Q8_0 } else { default };
        }
        if name.contains("attn_output.weight") {
            return match (eight_experts, is_q4) {
                (true, _) => QuantType::Q5_K,
                (false, true) => default,
                (false, false) => QuantType::Q4_K,
            };
        }
        if is_down(name) { self.down(name, is_q4) } else { default }
    }

    /// Down matrices, the shared expert's too.
    fn down(&mut self, name: &str, is_q4: bool) -> QuantType {
        let n_layers = self.facts.n_layers as usize;
        let layer = match layer_of(name) {
            Some(layer) if self.facts.n_experts > 1 => layer as usize,
            _ => self.i_down,
        };
        self.i_down += 1;
        match is_q4 {
            true if deserves_more(layer, n_layers) => QuantType::Q6_K,
            false if layer < n_layers / 16 => QuantType::Q5_K,
            _ => QuantType::Q4_K,
        }
    }
}

/// The first and the last eighth of the layers, and every third between.
fn deserves_more(i: usize, n: usize) -> bool {
    let eighth = n / 8;
    i < eighth || i >= 7 * n / 8 || (i - eighth) % 3 == 2
}

/// Attention's values, alone or with queries and keys; a delta-net's input has the same name.
fn is_value(name: &str) -> bool {
    ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"].iter().any(|part| name.contains(part))
}

/// Names that say two things are what llama.cpp looks for first.
fn is_down(name: &str) -> bool {
    name.contains("ffn_down") && !name.contains("ffn_up") && !name.contains("ffn_gate")
}

/// What `quant` gives way to where rows of `n_cols` aren't whole blocks of it.
pub(crate) fn fallback(quant: QuantType, n_cols: usize) -> QuantType {
    use QuantType as Q;
    let fits = |quant: QuantType| n_cols.is_multiple_of(quant.block_len());
    if fits(quant) {
        return quant;
    }
    let smaller = match quant {
        Q::Q2_K | Q::Q3_K | Q::TQ1_0 | Q::TQ2_0 => Q::Q4_0,
        Q::Q4_K => Q::Q5_0,
        Q::Q5_K => Q::Q5_1,
        Q::Q6_K => Q::Q8_0,
        Q::IQ1_S | Q::IQ1_M | Q::IQ2_XXS | Q::IQ2_XS | Q::IQ2_S | Q::IQ3_XXS | Q::IQ3_S | Q::IQ4_XS => {
            Q::IQ4_NL
        }
        _ => Q::F16,
    };
    if fits(smaller) { smaller } else { Q::F16 }
}
