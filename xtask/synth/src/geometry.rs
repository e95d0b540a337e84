//! The shapes that are written: real ones by name, any of their numbers changed.

use forerun_storage::gguf::{Array, Value};

use crate::error::SynthError;

/// What the architecture is, by its name in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// Gated delta-nets with every fourth layer of gated attention, a shared expert.
    Qwen35Moe,
    /// Attention everywhere, no shared expert.
    Qwen3Moe,
}

impl Architecture {
    /// The name in GGUF, which also prefixes its keys.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen3Moe => "qwen3moe",
        }
    }
}

/// Gated delta-net layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaNet {
    pub(crate) n_key_heads: usize,
    pub(crate) n_value_heads: usize,
    pub(crate) head_dim: usize,
}

impl DeltaNet {
    /// Taps of the convolution.
    pub(crate) const CONV: usize = 4;

    pub(crate) fn value_width(&self) -> usize {
        self.n_value_heads * self.head_dim
    }

    /// Channels of the convolution.
    pub(crate) fn channels(&self) -> usize {
        2 * self.n_key_heads * self.head_dim + self.value_width()
    }
}

/// A model's numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Geometry {
    pub(crate) architecture: Architecture,
    pub(crate) n_layers: usize,
    pub(crate) hidden: usize,
    /// At least this many tokens.
    pub(crate) n_vocab: usize,
    pub(crate) context: usize,
    pub(crate) n_experts: usize,
    pub(crate) top_k: usize,
    pub(crate) expert_ff: usize,
    /// 0: no shared expert.
    pub(crate) shared_ff: usize,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) n_rot: usize,
    pub(crate) rope_sections: [i32; 4],
    pub(crate) freq_base: f32,
    pub(crate) delta_net: Option<DeltaNet>,
}

/// The shapes by name.
pub(crate) const NAMES: [&str; 3] = ["qwen3.5-35b-a3b", "qwen3-30b-a3b", "pico"];

impl Geometry {
    /// Every how many layers one has attention, in a stack of delta-nets.
    pub(crate) const INTERVAL: usize = 4;
    pub(crate) const NORM_EPS: f32 = 1e-6;

    /// One of [`NAMES`].
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "qwen3.5-35b-a3b" => qwen35_35b(),
            "qwen3-30b-a3b" => qwen3_30b(),
            "pico" => pico(),
            _ => return None,
        })
    }

    /// Whether a layer has attention.
    pub(crate) fn has_attention(&self, layer: usize) -> bool {
        self.delta_net.is_none() || (layer + 1).is_multiple_of(Self::INTERVAL)
    }

    /// Refuses numbers that no engine would take.
    ///
    /// # Errors
    /// [`SynthError::Geometry`] names the number and what would be right.
    pub(crate) fn check(&self) -> Result<(), SynthError> {
        let wrong = |what, value, right| Err(SynthError::Geometry { what, value, right });
        if !(1..=1024).contains(&self.n_layers) {
            return wrong("layers", self.n_layers, "1 to 1024");
        }
        if self.hidden < 256 || !self.hidden.is_multiple_of(32) {
            return wrong("hidden", self.hidden, "a multiple of 32, at least 256");
        }
        if self.expert_ff < 32 || !self.expert_ff.is_multiple_of(32) {
            return wrong("expert-ff", self.expert_ff, "a multiple of 32");
        }
        if !(1..=4096).contains(&self.n_experts) {
            return wrong("experts", self.n_experts, "1 to 4096");
        }
        if self.top_k == 0 || self.top_k > self.n_experts {
            return wrong("top-k", self.top_k, "at least 1 and at most the experts");
        }
        if self.context == 0 {
            return wrong("ctx", self.context, "at least 1");
        }
        Ok(())
    }

    /// The header's keys, without their prefix.
    pub(crate) fn keys(&self) -> Vec<(&'static str, Value)> {
        let mut keys = vec![
            ("block_count", number(self.n_layers)),
            ("context_length", number(self.context)),
            ("embedding_length", number(self.hidden)),
            ("attention.head_count", number(self.n_heads)),
            ("attention.head_count_kv", number(self.n_kv_heads)),
            ("attention.key_length", number(self.head_dim)),
            ("attention.value_length", number(self.head_dim)),
            ("attention.layer_norm_rms_epsilon", Value::F32(Self::NORM_EPS)),
            ("rope.freq_base", Value::F32(self.freq_base)),
            ("rope.dimension_count", number(self.n_rot)),
            ("expert_count", number(self.n_experts)),
            ("expert_used_count", number(self.top_k)),
            ("expert_feed_forward_length", number(self.expert_ff)),
        ];
        match self.delta_net {
            Some(net) => {
                let recurrent = (0..self.n_layers).map(|layer| !self.has_attention(layer)).collect();
                keys.extend([
                    ("expert_shared_feed_forward_length", number(self.shared_ff)),
                    ("rope.dimension_sections", Value::Array(Array::I32(self.rope_sections.to_vec()))),
                    ("ssm.conv_kernel", number(DeltaNet::CONV)),
                    ("ssm.state_size", number(net.head_dim)),
                    ("ssm.group_count", number(net.n_key_heads)),
                    ("ssm.time_step_rank", number(net.n_value_heads)),
                    ("ssm.inner_size", number(net.value_width())),
                    ("attention.recurrent_layers", Value::Array(Array::Bool(recurrent))),
                    ("full_attention_interval", number(Self::INTERVAL)),
                ]);
            }
            None => keys.push(("feed_forward_length", number(self.top_k * self.expert_ff))),
        }
        keys
    }
}

fn qwen35_35b() -> Geometry {
    Geometry {
        architecture: Architecture::Qwen35Moe,
        n_layers: 40,
        hidden: 2048,
        n_vocab: 248_320,
        context: 262_144,
        n_experts: 256,
        top_k: 8,
        expert_ff: 512,
        shared_ff: 512,
        n_heads: 16,
        n_kv_heads: 2,
        head_dim: 256,
        n_rot: 64,
        rope_sections: [11, 11, 10, 0],
        freq_base: 1e7,
        delta_net: Some(DeltaNet { n_key_heads: 16, n_value_heads: 32, head_dim: 128 }),
    }
}

fn qwen3_30b() -> Geometry {
    Geometry {
        architecture: Architecture::Qwen3Moe,
        n_layers: 48,
        hidden: 2048,
        n_vocab: 151_936,
        context: 40_960,
        n_experts: 128,
        top_k: 8,
        expert_ff: 768,
        shared_ff: 0,
        n_heads: 32,
        n_kv_heads: 4,
        head_dim: 128,
        n_rot: 128,
        rope_sections: [0; 4],
        freq_base: 1e6,
        delta_net: None,
    }
}

fn pico() -> Geometry {
    Geometry {
        architecture: Architecture::Qwen35Moe,
        n_layers: 8,
        hidden: 256,
        n_vocab: 8192,
        context: 2048,
        n_experts: 32,
        top_k: 4,
        expert_ff: 256,
        shared_ff: 256,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        n_rot: 16,
        rope_sections: [3, 3, 2, 0],
        freq_base: 1e4,
        delta_net: Some(DeltaNet { n_key_heads: 2, n_value_heads: 4, head_dim: 64 }),
    }
}

/// A number of a header.
pub(crate) fn number(value: usize) -> Value {
    Value::U32(u32::try_from(value).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_numbers_that_pass() {
        for name in NAMES {
            Geometry::named(name).unwrap().check().unwrap();
        }
        assert_eq!(Geometry::named("mine"), None);
    }

    #[test]
    fn every_fourth_layer_has_attention() {
        let layers: Vec<_> = (0..8).map(|layer| pico().has_attention(layer)).collect();
        assert_eq!(layers, [false, false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_number_out_of_range_is_named() {
        let error = Geometry { top_k: 33, ..pico() }.check().unwrap_err().to_string();
        assert_eq!(error, "top-k 33 can't be written; it must be at least 1 and at most the experts");
    }
}
