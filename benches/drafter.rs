//! A DSpark drafter with random weights: what its blocks cost, where no trained one of that size is at hand.

use forerun_compute::kernels::best;
use forerun_compute::products::Quantised;
use forerun_compute::workers::Workers;
use forerun_compute::{Dspark, DsparkConfig, DsparkWeights, KvType, Tensor, Weights};
use forerun_model::drafter::{ConfidenceShape, specs};
use forerun_model::names::{self, Spec};
use forerun_model::{
    AttentionParts, AttentionShape, DrafterShape, ExpertLayout, LayerId, LayerKind, MatrixLayout, ModelShape,
    MoeShape, QuantType, RopeShape, TokenId,
};
use forerun_sim::Rng;

/// Sizes of a drafter and its model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Its name in figures.
    pub name: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens, of the drafter and of the model that stands behind it.
    pub n_vocab: usize,
    /// Layers.
    pub n_layers: usize,
    /// Query heads, key-value heads, and their size.
    pub heads: (usize, usize, usize),
    /// Width of the feed-forward.
    pub ff: usize,
    /// Rank of the Markov table.
    pub rank: usize,
    /// Type of the matrices.
    pub quant: QuantType,
}

/// Of the small model's drafter.
pub const PICO: Sizes = Sizes {
    name: "pico",
    hidden: 256,
    n_vocab: 8192,
    n_layers: 3,
    heads: (4, 2, 64),
    ff: 512,
    rank: 128,
    quant: QuantType::BF16,
};
/// Of a drafter for a 35B model with a vocabulary of its own, in 8 bits.
pub const LARGE: Sizes = Sizes {
    name: "35b",
    hidden: 2048,
    n_vocab: 32_768,
    n_layers: 5,
    heads: (16, 4, 128),
    ff: 6144,
    rank: 256,
    quant: QuantType::Q8_0,
};

impl Sizes {
    fn attention(&self) -> AttentionShape {
        let (n_heads, n_kv_heads, head_dim) = self.heads;
        let parts = AttentionParts { gate: false, head_norms: true };
        AttentionShape { n_heads, n_kv_heads, head_dim, parts }
    }

    fn rope(&self) -> RopeShape {
        let n_rot = self.heads.2;
        RopeShape { n_rot, freq_base: 1e6, sections: [n_rot / 2, 0, 0, 0] }
    }

    /// Noise for a tensor, so small that scales made of it are finite.
    fn tensor(&self, spec: &Spec) -> Tensor {
        let dims: Vec<usize> = spec.dims.iter().map(|&n| usize::try_from(n).expect("small")).collect();
        let (n_cols, n_rows) = (dims[0], dims.get(1).copied().unwrap_or(1));
        let quant = if dims.len() == 1 { QuantType::F32 } else { self.quant };
        let n_bytes = MatrixLayout::new(quant, n_rows, n_cols).expect("whole blocks").bytes();
        let mut rng = Rng::new(n_bytes as u64);
        // Nothing below the normal numbers, which are slow.
        let word = |noise: u64| match quant {
            QuantType::F32 => u64::from(1.0_f32.to_bits()) * 0x1_0000_0001,
            QuantType::BF16 => noise & 0x807F_807F_807F_807F | 0x3C80_3C80_3C80_3C80,
            _ => noise & 0x3F3F_3F3F_3F3F_3F3F,
        };
        let words = (0..n_bytes.div_ceil(8)).flat_map(|_| word(rng.next_u64()).to_le_bytes());
        let mut bytes: Vec<u8> = words.collect();
        bytes.truncate(n_bytes);
        Tensor::new(&spec.names[0], quant, n_rows, n_cols, bytes.into()).expect("a type with a kernel")
    }

    fn target(&self) -> Weights {
        let moe = MoeShape { n_experts: 1, top_k: 1, expert_ff: 256, shared_ff: None, renormalises: true };
        let shape = ModelShape {
            hidden: self.hidden,
            n_vocab: self.n_vocab,
            context_max: 4096,
            norm_eps: 1e-6,
            layers: vec![LayerKind::Attention],
            n_mtp: 0,
            attention: self.attention(),
            rope: self.rope(),
            delta_net: None,
            moe,
        };
        let part = MatrixLayout::new(self.quant, 256, 256).expect("whole blocks");
        let expert = ExpertLayout { gate: part, up: part, down: part };
        let specs = names::resident(&shape);
        let find = |name: &str| {
            let spec = specs.iter().find(|spec| spec.names[0] == name && !name.ends_with("bias"))?;
            Some(Ok(self.tensor(spec)))
        };
        Weights::bind(&shape, &[expert], find).expect("every tensor is there")
    }

    /// The drafter's shape.
    fn shape(&self) -> DrafterShape {
        DrafterShape {
            hidden: self.hidden,
            n_vocab: self.n_vocab,
            n_drafted: self.n_vocab,
            context_max: 4096,
            norm_eps: 1e-6,
            windows: vec![None; self.n_layers],
            attention: self.attention(),
            rope: self.rope(),
            ff: self.ff,
            block: 7,
            taps: (0..5).map(LayerId).collect(),
            mask: TokenId(0),
            drafts_from_anchor: true,
            causal: false,
            markov_rank: Some(self.rank),
            confidence: Some(ConfidenceShape { reads_markov: true, temperatures: Vec::new() }),
        }
    }

    /// A drafter of these sizes with random weights, for a context of so many tokens, on threads of its own.
    ///
    /// # Panics
    /// When no thread can be started, or a size is no multiple of its type's block.
    pub fn drafter(&self, context: usize, n_threads: usize) -> Dspark<Quantised> {
        let shape = self.shape();
        let specs = specs(&shape);
        let own = |name: &str| {
            let spec = specs.iter().find(|spec| spec.names[0] == name)?;
            let is_shared = [names::TOKEN_EMBD, names::OUTPUT].contains(&name);
            (!is_shared).then(|| Ok(self.tensor(spec)))
        };
        let weights = DsparkWeights::bind(&shape, &self.target(), None, own).expect("every tensor is there");
        let products = Quantised::new(best(), Workers::new(n_threads).expect("the threads start"));
        Dspark::new(weights, DsparkConfig { context, kv: KvType::F16 }, products)
    }

    /// What such a drafter takes of memory, in bytes.
    ///
    /// # Panics
    /// When a size is no multiple of its type's block.
    pub fn bytes(&self, context: usize) -> u64 {
        let table = self.quant_bytes(self.n_vocab, self.hidden);
        let own = specs(&self.shape()).into_iter().map(|spec| {
            let dims: Vec<usize> = spec.dims.iter().map(|&n| usize::try_from(n).expect("small")).collect();
            self.quant_bytes(dims.get(1).copied().unwrap_or(1), dims[0])
        });
        // Embeddings and head among the drafter's names are the model's, of which there are two.
        let weights: u64 = own.sum::<u64>() + 2 * table;
        let config = DsparkConfig { context, kv: KvType::F16 };
        weights + config.bytes(&self.shape(), false).total()
    }

    fn quant_bytes(&self, n_rows: usize, n_cols: usize) -> u64 {
        let quant = if n_rows == 1 { QuantType::F32 } else { self.quant };
        MatrixLayout::new(quant, n_rows, n_cols).expect("whole blocks").bytes() as u64
    }
}
