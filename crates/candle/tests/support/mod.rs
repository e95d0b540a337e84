//! Small models with random weights, and a loop that runs their steps over any backend.

#![allow(dead_code, reason = "each file of tests uses a part")]

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor as DeviceTensor};
use forerun_arena::{Arena, SlotIdx};
use forerun_candle::CandleStack;
use forerun_compute::{
    Backend, ComputeError, DeviceName, ExpertJob, KvType, Part, Row, SequenceIdx, StackConfig, Step,
    StepOutput, Taps, Tensor, Weights,
};
use forerun_model::names::{self, OUTPUT, TOKEN_EMBD};
use forerun_model::{
    AttentionParts, AttentionShape, DeltaNetShape, ExpertId, ExpertLayout, HeadOrder, LayerId, LayerKind,
    MatrixLayout, ModelShape, MoeShape, Position, QuantType, RopeShape, Routing, TokenId,
};

/// Room for every test.
pub(crate) const CONFIG: StackConfig =
    StackConfig { n_sequences: 3, context: 80, rows_max: 40, log_rows: 16, aside_rows: 8, kv: KvType::F32 };

/// Devices that this build has: a build for a GPU is expected to find one.
pub(crate) fn devices() -> Vec<DeviceName> {
    let mut devices = vec![DeviceName::Cpu];
    if candle_core::utils::cuda_is_available() {
        devices.push(DeviceName::Cuda(0));
    }
    if candle_core::utils::metal_is_available() {
        devices.push(DeviceName::Metal(0));
    }
    devices
}

/// What a model is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub(crate) layers: &'static [LayerKind],
    pub(crate) order: HeadOrder,
    pub(crate) parts: AttentionParts,
    pub(crate) has_biases: bool,
    pub(crate) is_fused: bool,
    pub(crate) has_shared: bool,
    pub(crate) has_own_head: bool,
    /// Of all matrices but routers.
    pub(crate) quant: QuantType,
}

const D: LayerKind = LayerKind::DeltaNet;
const A: LayerKind = LayerKind::Attention;

/// Everything at once.
pub(crate) const HYBRID: Recipe = Recipe {
    layers: &[D, A, D],
    order: HeadOrder::Tiled,
    parts: AttentionParts { gate: true, head_norms: true },
    has_biases: false,
    is_fused: false,
    has_shared: true,
    has_own_head: true,
    quant: QuantType::F32,
};

/// Models that lack what others have.
pub(crate) const RECIPES: [Recipe; 4] = [
    HYBRID,
    Recipe { order: HeadOrder::Grouped, has_own_head: false, ..HYBRID },
    Recipe {
        layers: &[A, A],
        parts: AttentionParts { gate: false, head_norms: false },
        has_biases: true,
        has_shared: false,
        ..HYBRID
    },
    Recipe { layers: &[A, D], is_fused: true, has_biases: true, ..HYBRID },
];

pub(crate) const HIDDEN: usize = 256;
pub(crate) const N_VOCAB: usize = 50;

impl Recipe {
    pub(crate) fn shape(&self) -> ModelShape {
        ModelShape {
            hidden: HIDDEN,
            n_vocab: N_VOCAB,
            context_max: 1000,
            norm_eps: 1e-6,
            layers: self.layers.to_vec(),
            n_mtp: 0,
            attention: AttentionShape { n_heads: 8, n_kv_heads: 2, head_dim: 32, parts: self.parts },
            rope: RopeShape { n_rot: 16, freq_base: 1e4, sections: [3, 3, 2, 0] },
            delta_net: Some(DeltaNetShape {
                n_key_heads: 4,
                n_value_heads: 8,
                key_dim: 16,
                value_dim: 32,
                conv_kernel: 4,
                order: self.order,
            }),
            moe: MoeShape {
                n_experts: 6,
                top_k: 3,
                expert_ff: 256,
                shared_ff: self.has_shared.then_some(256),
                renormalises: self.has_shared,
            },
        }
    }

    fn layout(&self) -> ExpertLayout {
        let part = MatrixLayout::new(self.quant, 256, 256).unwrap();
        ExpertLayout { gate: part, up: part, down: part }
    }

    pub(crate) fn weights(&self) -> Weights {
        let shape = self.shape();
        let experts = vec![self.layout(); shape.n_layers()];
        let specs = names::resident(&shape);
        Weights::bind(&shape, &experts, |name| {
            let spec = specs.iter().find(|spec| spec.names[0] == name)?;
            self.keeps(name).then(|| Ok(self.tensor(name, &spec.dims)))
        })
        .unwrap()
    }

    /// Weights of a prediction block behind the model.
    pub(crate) fn prediction(&self) -> Weights {
        let shape = self.shape();
        let specs = names::prediction(&shape);
        let find = |name: &str| {
            let spec = specs.iter().find(|spec| spec.names[0] == name)?;
            let is_kept = self.keeps(name) && !name.contains("shared_head") && !name.contains("embed_tokens");
            is_kept.then(|| Ok(self.tensor(name, &spec.dims)))
        };
        Weights::bind_prediction(&self.weights(), self.layout(), find).unwrap()
    }

    fn keeps(&self, name: &str) -> bool {
        // A prediction block lies behind the last layer and attends.
        let is_attention = |layer: &str| *self.layers.get(layer.parse::<usize>().unwrap()).unwrap_or(&A) == A;
        match name.split('.').collect::<Vec<_>>()[..] {
            [_, layer, "attn_qkv", "weight"] => !is_attention(layer) || self.is_fused,
            [_, _, "attn_qkv", "bias"] => self.has_biases && self.is_fused,
            [_, _, "attn_q" | "attn_k" | "attn_v", "weight"] => !self.is_fused,
            [_, _, "attn_q" | "attn_k" | "attn_v", "bias"] => self.has_biases && !self.is_fused,
            [_, _, "ssm_in" | "ssm_ba", "weight"] => false,
            ["output", "weight"] => self.has_own_head,
            _ => true,
        }
    }

    pub(crate) fn tensor(&self, name: &str, dims: &[u64]) -> Tensor {
        let dims: Vec<usize> = dims.iter().map(|&n| usize::try_from(n).unwrap()).collect();
        let (n_cols, n_rows) = (dims[0], dims.get(1).copied().unwrap_or(1));
        let is_vector = dims.len() == 1 && !name.contains("inp_shexp");
        let scale = if name == TOKEN_EMBD || name == OUTPUT { 0.2 } else { 0.12 };
        let value = |v: f32| match name {
            _ if name.ends_with("ssm_a") => -0.6 + v,
            _ if name.contains("conv1d") => v,
            _ if name.contains("bias") => v,
            _ if is_vector => 1.0 + 0.5 * v,
            _ if name.contains("ffn_gate_inp") => 0.5 * v,
            _ => scale * v,
        };
        let values: Vec<f32> = stream(name, n_cols * n_rows).map(value).collect();
        let is_block = !is_vector && !name.contains("conv1d") && !name.contains("gate_inp");
        let quant = if is_block { self.quant } else { QuantType::F32 };
        Tensor::new(name, quant, n_rows, n_cols, bytes(quant, &values, n_cols).into()).unwrap()
    }

    /// The bytes of an expert, tightly packed.
    pub(crate) fn expert(&self, layer: usize, expert: usize) -> Vec<u8> {
        let layout = self.layout();
        let at = layout.offsets();
        let mut record = vec![0; layout.record_bytes()];
        for (name, start) in [("gate", at.gate), ("up", at.up), ("down", at.down)] {
            let name = format!("{name} {layer} {expert}");
            let values: Vec<f32> = stream(&name, 256 * 256).map(|v| 0.25 * v).collect();
            let bytes = bytes(self.quant, &values, 256);
            record[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        record
    }

    pub(crate) fn stack(&self, device: DeviceName) -> CandleStack {
        self.stack_with(CONFIG, Taps::default(), device)
    }

    pub(crate) fn stack_with(&self, config: StackConfig, taps: Taps, device: DeviceName) -> CandleStack {
        CandleStack::new(&self.weights(), config, taps, device).unwrap()
    }
}

/// Numbers in -0.5..0.5 that a name decides.
pub(crate) fn stream(name: &str, n: usize) -> impl Iterator<Item = f32> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let next = |state: &u64| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(next(&seed), next).take(n).map(|state| (state >> 40) as f32 / 16_777_216.0 - 0.5)
}

/// `values` as `quant` stores them.
pub(crate) fn bytes(quant: QuantType, values: &[f32], n_cols: usize) -> Vec<u8> {
    let dtype = match quant {
        QuantType::F32 => return values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        QuantType::F16 => GgmlDType::F16,
        QuantType::BF16 => GgmlDType::BF16,
        QuantType::Q8_0 => GgmlDType::Q8_0,
        QuantType::Q4_K => GgmlDType::Q4K,
        QuantType::Q3_K => GgmlDType::Q3K,
        other => unreachable!("no test has {other}"),
    };
    let tensor = DeviceTensor::from_slice(values, (values.len() / n_cols, n_cols), &Device::Cpu).unwrap();
    QTensor::quantize(&tensor, dtype).unwrap().data().unwrap().into_owned()
}

/// In which order experts come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Ascending,
    Descending,
}

/// Runs steps of a model.
pub(crate) struct Driver {
    recipe: Recipe,
    arena: Arena,
    experts: Vec<Vec<Vec<u8>>>,
    pub(crate) order: Order,
    pub(crate) routing: Routing,
}

impl Driver {
    pub(crate) fn new(recipe: Recipe) -> Self {
        let shape = recipe.shape();
        let layer = |layer| (0..shape.moe.n_experts).map(|expert| recipe.expert(layer, expert)).collect();
        Self {
            recipe,
            arena: Arena::new(2, recipe.layout().record_bytes()).unwrap(),
            experts: (0..shape.n_layers()).map(layer).collect(),
            order: Order::Ascending,
            routing: Routing::default(),
        }
    }

    /// Runs one layer of the step that was begun.
    pub(crate) fn layer(&mut self, backend: &mut dyn Backend, layer: LayerId) -> Result<(), ComputeError> {
        backend.mix_route(layer, &mut self.routing)?;
        let mut wanted: Vec<ExpertId> = self.routing.experts().collect();
        if self.order == Order::Descending {
            wanted.reverse();
        } else {
            backend.run_shared(layer)?;
        }
        for (i, &expert) in wanted.iter().enumerate() {
            let mut lease = self.arena.try_write(SlotIdx((i % 2).try_into().unwrap())).unwrap();
            let record = &self.experts[layer.idx()][expert.idx()];
            lease.bytes_mut()[..record.len()].copy_from_slice(record);
            let (weights, uses) = (lease.seal(), self.routing.uses(expert));
            backend.run_expert(ExpertJob { layer, weights, parts: self.recipe.layout().offsets(), uses })?;
        }
        if self.order == Order::Descending {
            backend.run_shared(layer)?;
        }
        backend.close_layer(layer)
    }

    /// All of a step that was begun, up to its logits.
    pub(crate) fn rest(&mut self, backend: &mut dyn Backend) -> Result<StepOutput, ComputeError> {
        self.rest_of(backend, self.experts.len())
    }

    /// The same of the first `n_layers` layers, where a model has no more.
    pub(crate) fn rest_of(
        &mut self,
        backend: &mut dyn Backend,
        n_layers: usize,
    ) -> Result<StepOutput, ComputeError> {
        for layer in self.recipe.shape().layer_ids().take(n_layers) {
            self.layer(backend, layer)?;
        }
        let mut output = StepOutput::default();
        backend.finish(&mut output)?;
        Ok(output)
    }

    pub(crate) fn step(
        &mut self,
        backend: &mut dyn Backend,
        step: &Step<'_>,
    ) -> Result<StepOutput, ComputeError> {
        backend.begin(step)?;
        self.rest(backend)
    }

    /// Runs `tokens` behind `past` ones in steps of `chunk` rows, accepted whole; the logits of all rows.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn Backend,
        sequence: usize,
        past: usize,
        tokens: &[u32],
        chunk: usize,
    ) -> Vec<f32> {
        let mut logits = Vec::new();
        for (i, some) in tokens.chunks(chunk).enumerate() {
            let past = past + i * chunk;
            let part = part(sequence, past, some.len());
            let output = self.step(backend, &Step::of(&part, &rows(past, some))).unwrap();
            backend.accept(0, some.len()).unwrap();
            logits.extend(output.logits);
        }
        logits
    }
}

pub(crate) fn part(sequence: usize, past: usize, n_rows: usize) -> Part {
    Part { sequence: SequenceIdx(sequence), past, n_rows, may_reject: false }
}

/// Rows of a text whose first token has position `first`; all want logits.
pub(crate) fn rows(first: usize, tokens: &[u32]) -> Vec<Row> {
    let positions = (u32::try_from(first).unwrap()..).map(Position::text);
    let rows = tokens.iter().zip(positions);
    rows.map(|(&token, position)| Row { token: TokenId(token), position, wants_logits: true }).collect()
}

/// A text that a seed decides.
pub(crate) fn text(seed: u32, n: usize) -> Vec<u32> {
    let n_vocab = u32::try_from(N_VOCAB).unwrap();
    stream(&format!("text {seed}"), n).map(|v| (v.to_bits() >> 4) % n_vocab).collect()
}

/// The largest difference.
#[track_caller]
pub(crate) fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "as many values");
    assert!(a.iter().chain(b).all(|v| v.is_finite()), "all finite");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The largest difference of a row of logits, at the median of the rows.
pub(crate) fn usual_difference(a: &[f32], b: &[f32]) -> f32 {
    let rows = a.chunks(N_VOCAB).zip(b.chunks(N_VOCAB));
    let mut off: Vec<_> = rows.map(|(a, b)| difference(a, b)).collect();
    off.sort_by(f32::total_cmp);
    off[off.len() / 2]
}

/// How far two ways to the same values may be apart: on the processor not at all.
#[track_caller]
pub(crate) fn check_same(device: DeviceName, a: &[f32], b: &[f32], what: &str) {
    if device == DeviceName::Cpu {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(bits(a) == bits(b), "{device}, {what}: off by {}", difference(a, b));
    } else {
        let off = difference(a, b);
        assert!(off < GPU_BOUND, "{device}, {what}: off by {off}");
    }
}

/// Logits of these models are within 10; products of f32 on a GPU differ in their last bits by the number of rows.
pub(crate) const GPU_BOUND: f32 = 1e-3;
