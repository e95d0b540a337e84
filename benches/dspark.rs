//! A block of a drafter and its first drafts, weights from memory as they lie there. Unit of work: blocks.

use std::hint::black_box;
use std::thread;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
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

/// Positions that were observed before.
const CONTEXT: usize = 1024;
/// Drafts that are taken of a block.
const DRAFTS: [usize; 4] = [0, 1, 4, 7];

/// Sizes of a drafter and its model.
struct Sizes {
    name: &'static str,
    hidden: usize,
    n_vocab: usize,
    n_layers: usize,
    heads: (usize, usize, usize),
    ff: usize,
    rank: usize,
    quant: QuantType,
}

const PICO: Sizes = Sizes {
    name: "pico",
    hidden: 256,
    n_vocab: 8192,
    n_layers: 3,
    heads: (4, 2, 64),
    ff: 512,
    rank: 128,
    quant: QuantType::BF16,
};
/// A drafter for a 35B model with a vocabulary of its own, in 8 bits.
const LARGE: Sizes = Sizes {
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

    fn drafter(&self) -> Dspark<Quantised> {
        let shape = DrafterShape {
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
        };
        let specs = specs(&shape);
        let own = |name: &str| {
            let spec = specs.iter().find(|spec| spec.names[0] == name)?;
            let is_shared = [names::TOKEN_EMBD, names::OUTPUT].contains(&name);
            (!is_shared).then(|| Ok(self.tensor(spec)))
        };
        let weights = DsparkWeights::bind(&shape, &self.target(), None, own).expect("every tensor is there");
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let products = Quantised::new(best(), Workers::new(n_threads).expect("the threads start"));
        Dspark::new(weights, DsparkConfig { context: CONTEXT + 64, kv: KvType::F16 }, products)
    }
}

fn dspark(c: &mut Criterion) {
    let mut group = c.benchmark_group("dspark");
    for sizes in [PICO, LARGE] {
        let mut drafter = sizes.drafter();
        let width = drafter.shape().feature_width();
        let row = vec![0.01; width];
        drafter.observe(0, &row.repeat(CONTEXT)).expect("room for it");
        for n_drafts in DRAFTS {
            group.bench_function(BenchmarkId::new(sizes.name, format!("{n_drafts} drafts")), |b| {
                b.iter(|| {
                    drafter.block(TokenId(1)).expect("a token of the vocabulary");
                    for draft in 0..n_drafts {
                        black_box(drafter.confidence(draft, TokenId(2)).expect("a token"));
                        black_box(drafter.logits(draft, TokenId(2)).expect("a token"));
                    }
                });
            });
        }
        for n_rows in [1, 4] {
            group.bench_function(BenchmarkId::new(sizes.name, format!("{n_rows} rows observed")), |b| {
                b.iter(|| drafter.observe(CONTEXT - n_rows, black_box(&row.repeat(n_rows))).expect("room"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, dspark);
criterion_main!(benches);
