//! Which type each tensor gets: as llama.cpp's quantiser chooses, without an importance matrix.

use clap::ValueEnum;
use forerun_model::QuantType;

/// A way to choose types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Recipe {
    /// Q4_K, with Q6_K for the head and for half of the layers' `down` and `v`
    #[value(name = "q4_k_m")]
    Q4KM,
    /// Q3_K, with Q4_K to Q6_K where it matters most
    #[value(name = "q3_k_m")]
    Q3KM,
    /// q4_k_m with all routed experts in Q3_K
    Les,
    /// Q8_0 everywhere
    #[value(name = "q8_0")]
    Q80,
    /// Half floats
    F16,
    /// Short floats
    Bf16,
    /// Floats
    F32,
}

impl Recipe {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Q4KM => "q4_k_m",
            Self::Q3KM => "q3_k_m",
            Self::Les => "les",
            Self::Q80 => "q8_0",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// llama.cpp's number for it, or for what is nearest: `general.file_type`.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q80 => 7,
            Self::Q3KM | Self::Les => 12,
            Self::Q4KM => 15,
            Self::Bf16 => 32,
        }
    }

    /// The type of a matrix: `name` as in the file, but for `blk.N.` and `.weight`; `n_cols` values in a row.
    pub(crate) fn quant(self, name: &str, layer: Layer, n_cols: usize) -> QuantType {
        let wish = match self {
            Self::F32 => QuantType::F32,
            Self::F16 => QuantType::F16,
            Self::Bf16 => QuantType::BF16,
            Self::Q80 => QuantType::Q8_0,
            Self::Q4KM => q4_k_m(name, layer),
            Self::Q3KM => q3_k_m(name, layer),
            Self::Les if name.ends_with("_exps") => QuantType::Q3_K,
            Self::Les => q4_k_m(name, layer),
        };
        // Rows that aren't whole blocks of 256 get blocks of 32.
        if n_cols.is_multiple_of(wish.block_len()) { wish } else { QuantType::Q8_0 }
    }
}

/// Where a tensor is; of no account outside the layers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layer {
    pub(crate) idx: usize,
    pub(crate) n_layers: usize,
}

impl Layer {
    /// The first and last eighth of the layers, and every third between.
    fn gets_more_bits(self) -> bool {
        let (i, eighth) = (self.idx, self.n_layers / 8);
        i < eighth || i >= 7 * self.n_layers / 8 || (i - eighth) % 3 == 2
    }
}

fn q4_k_m(name: &str, layer: Layer) -> QuantType {
    match name {
        "output" => QuantType::Q6_K,
        "attn_v" | "attn_qkv" | "ffn_down_exps" | "ffn_down_shexp" if layer.gets_more_bits() => {
            QuantType::Q6_K
        }
        _ => QuantType::Q4_K,
    }
}

fn q3_k_m(name: &str, layer: Layer) -> QuantType {
    match name {
        "output" => QuantType::Q6_K,
        "attn_v" | "attn_qkv" if layer.idx < 2 => QuantType::Q5_K,
        "ffn_down_exps" | "ffn_down_shexp" if layer.idx < layer.n_layers / 16 => QuantType::Q5_K,
        "attn_v" | "attn_qkv" | "ffn_down_exps" | "ffn_down_shexp" | "attn_output" => QuantType::Q4_K,
        _ => QuantType::Q3_K,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(recipe: Recipe, name: &str, quant: QuantType) -> Vec<usize> {
        let is = |&idx: &usize| recipe.quant(name, Layer { idx, n_layers: 40 }, 2048) == quant;
        (0..40).filter(is).collect()
    }

    #[test]
    fn more_bits_go_where_llama_cpp_puts_them() {
        let expect = [0, 1, 2, 3, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35, 36, 37, 38, 39];
        assert_eq!(layers(Recipe::Q4KM, "ffn_down_exps", QuantType::Q6_K), expect);
        assert_eq!(layers(Recipe::Q3KM, "ffn_down_exps", QuantType::Q5_K), [0, 1]);
        assert_eq!(layers(Recipe::Q3KM, "attn_qkv", QuantType::Q5_K), [0, 1]);
    }

    #[test]
    fn les_changes_the_routed_experts_only() {
        assert_eq!(layers(Recipe::Les, "ffn_down_exps", QuantType::Q3_K).len(), 40);
        assert_eq!(layers(Recipe::Les, "ffn_down_shexp", QuantType::Q6_K).len(), 20);
    }

    #[test]
    fn broken_blocks_are_avoided() {
        assert_eq!(Recipe::Q4KM.quant("ffn_down_exps", Layer::default(), 96), QuantType::Q8_0);
    }
}
