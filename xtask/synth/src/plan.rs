//! Every tensor of a model: its name, dimensions, type, and what it is filled with.

use forerun_model::QuantType;
use forerun_storage::gguf::{Dims, TensorSpec};

use crate::chance::{Purpose, even, stream};
use crate::encode::encode;
use crate::geometry::{Architecture, DeltaNet, Geometry};
use crate::knobs::Knobs;
use crate::recipe::{Layer, Recipe};
use crate::router::Router;
use crate::script::{Channels, Script};
use crate::sizes::{Sizes, sizes};

/// The score of the next script token, where others have a deviation of an eighth of that: sampling follows too.
const HEAD_SCORE: f32 = 15.0;
/// Deviation of the scores of tokens outside the script.
const OTHER_SCORE: f32 = 0.5;
/// Weight of the norms of queries and keys: attention looks at few tokens, so what it adds doesn't fade as they grow.
const ATTENTION_FOCUS: f32 = 2.0;

/// What a tensor holds.
#[derive(Debug)]
pub(crate) enum Fill {
    /// These values.
    Values(Vec<f32>),
    /// Random blocks of this deviation.
    Random(f32),
    /// Random blocks, but for the last rows of each of its matrices of `n_rows`, which are zeros.
    Update { deviation: f32, n_rows: usize, n_zero: usize },
    /// A router, made when it is written.
    Router(Router),
    /// Random blocks, but for the encoded rows from row `first` on.
    Table { deviation: f32, first: usize, rows: Vec<u8> },
}

/// A tensor to be written.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Fastest first.
    pub(crate) dims: Vec<usize>,
    pub(crate) quant: QuantType,
    pub(crate) fill: Fill,
}

impl Tensor {
    /// Bytes in the file.
    pub(crate) fn len_bytes(&self) -> u64 {
        let n_rows: usize = self.dims[1..].iter().product();
        (self.row_bytes() * n_rows) as u64
    }

    /// What the header says of it.
    ///
    /// # Panics
    /// Never: every tensor of the plan has one to three axes.
    pub(crate) fn spec(&self) -> TensorSpec {
        let sizes: Vec<u64> = self.dims.iter().map(|&dim| dim as u64).collect();
        let dims = Dims::new(&sizes).expect("one to three axes");
        TensorSpec { name: self.name.clone(), quant: self.quant, dims }
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.dims[0] / self.quant.block_len() * self.quant.block_bytes()
    }
}

/// What a model is made from.
#[derive(Debug)]
pub(crate) struct Recipes<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) recipe: Recipe,
    pub(crate) knobs: &'a Knobs,
    pub(crate) seed: u64,
    pub(crate) script: &'a Script,
    /// The script's first token.
    pub(crate) first_token: usize,
    pub(crate) n_vocab: usize,
}

/// All tensors, in the order of the file.
pub(crate) fn plan(from: &Recipes<'_>) -> Vec<Tensor> {
    let geometry = from.geometry;
    let channels = Channels::of(geometry.hidden);
    let sizes = sizes(geometry, from.knobs, from.seed);
    let mut builder = Builder { from, channels, layer: Layer::default(), tensors: Vec::new() };
    builder.tables(sizes.total_last);
    for (idx, sizes) in sizes.layers.iter().enumerate() {
        builder.layer = Layer { idx, n_layers: geometry.n_layers };
        builder.layer(sizes);
    }
    builder.tensors
}

struct Builder<'a> {
    from: &'a Recipes<'a>,
    channels: Channels,
    layer: Layer,
    tensors: Vec<Tensor>,
}

impl Builder<'_> {
    fn push(&mut self, name: String, dims: Vec<usize>, quant: QuantType, fill: Fill) {
        self.tensors.push(Tensor { name, dims, quant, fill });
    }

    fn block(&self, name: &str) -> String {
        format!("blk.{}.{name}", self.layer.idx)
    }

    fn quant(&self, name: &str, n_cols: usize) -> QuantType {
        self.from.recipe.quant(name, self.layer, n_cols)
    }

    /// A matrix, or one for each expert, whose outputs have deviation `out` where inputs have mean square 1.
    fn matrix(&mut self, name: &str, dims: &[usize], out: f32) {
        let quant = self.quant(name, dims[0]);
        let fill = Fill::Random(out / root(dims[0]));
        self.push(self.block(&format!("{name}.weight")), dims.to_vec(), quant, fill);
    }

    /// The same for a matrix that writes to the residual stream.
    fn update(&mut self, name: &str, dims: &[usize], out: f32) {
        let quant = self.quant(name, dims[0]);
        let (n_rows, n_zero) = (dims[1], self.channels.n_carriers());
        let fill = Fill::Update { deviation: out / root(dims[0]), n_rows, n_zero };
        self.push(self.block(&format!("{name}.weight")), dims.to_vec(), quant, fill);
    }

    fn vector(&mut self, name: &str, values: Vec<f32>) {
        self.push(self.block(name), vec![values.len()], QuantType::F32, Fill::Values(values));
    }

    fn tables(&mut self, total_last: f32) {
        let Recipes { geometry, script, n_vocab, first_token: first, .. } = *self.from;
        let d = geometry.hidden;
        let ones = Fill::Values(vec![1.0; d]);
        let table = |quant, deviation, row: &dyn Fn(usize) -> Vec<f32>| {
            let mut rows = Vec::new();
            (0..script.len()).for_each(|token| encode(quant, &row(token), &mut rows));
            Fill::Table { deviation, first, rows }
        };
        let quant = self.quant("token_embd", d);
        let embedding = table(quant, 1.0, &|token| script.embedding(token).to_vec());
        self.push("token_embd.weight".into(), vec![d, n_vocab], quant, embedding);
        self.push("output_norm.weight".into(), vec![d], QuantType::F32, ones);
        let quant = self.quant("output", d);
        let size = HEAD_SCORE * total_last / script.carried();
        let head = table(quant, OTHER_SCORE / root(d), &|token| script.head(token, size));
        self.push("output.weight".into(), vec![d, n_vocab], quant, head);
    }

    fn layer(&mut self, sizes: &Sizes) {
        let geometry = self.from.geometry;
        self.vector("attn_norm.weight", vec![1.0; geometry.hidden]);
        match &geometry.delta_net {
            Some(net) if !geometry.has_attention(self.layer.idx) => self.delta_net(net, sizes.mixer),
            _ => self.attention(sizes.mixer),
        }
        let norm = match geometry.architecture {
            Architecture::Qwen35Moe => "post_attention_norm.weight",
            Architecture::Qwen3Moe => "ffn_norm.weight",
        };
        self.vector(norm, vec![1.0; geometry.hidden]);
        self.experts(sizes);
    }

    fn attention(&mut self, out: f32) {
        /// Mean square root of a softmax's few values times a gate of 0.5 or so.
        const HEADS: f32 = 0.35;
        let geometry = self.from.geometry;
        let (d, dim) = (geometry.hidden, geometry.head_dim);
        let (q, kv) = (geometry.n_heads * dim, geometry.n_kv_heads * dim);
        let gated = geometry.architecture == Architecture::Qwen35Moe;
        self.matrix("attn_q", &[d, if gated { 2 * q } else { q }], 1.0);
        self.matrix("attn_k", &[d, kv], 1.0);
        self.matrix("attn_v", &[d, kv], 1.0);
        self.vector("attn_q_norm.weight", vec![ATTENTION_FOCUS; dim]);
        self.vector("attn_k_norm.weight", vec![ATTENTION_FOCUS; dim]);
        self.update("attn_output", &[q, d], out / if gated { HEADS } else { 2.0 * HEADS });
    }

    fn delta_net(&mut self, net: &DeltaNet, out: f32) {
        /// Mean square root of `silu` of a bell.
        const GATE: f32 = 0.6;
        let (d, heads) = (self.from.geometry.hidden, net.n_value_heads);
        let mut rng = stream(self.from.seed, Purpose::Vector, self.layer.idx as u64);
        self.matrix("attn_qkv", &[d, net.channels()], 1.0);
        self.matrix("attn_gate", &[d, net.value_width()], 1.0);
        self.matrix("ssm_beta", &[d, heads], 1.0);
        self.matrix("ssm_alpha", &[d, heads], 0.3);
        let taps = (0..net.channels()).flat_map(|_| [0.1, 0.2, 0.3, 1.0]);
        let taps = taps.map(|tap| tap * (0.5 + even(&mut rng))).collect();
        let dims = vec![DeltaNet::CONV, net.channels()];
        self.push(self.block("ssm_conv1d.weight"), dims, QuantType::F32, Fill::Values(taps));
        // Decays as models begin their training: rates of 1 to 16, steps of 0.001 to 0.1.
        self.vector("ssm_a", (0..heads).map(|_| -1.0 - 15.0 * even(&mut rng)).collect());
        let step = |_| libm::expf(-6.9 + 4.6 * even(&mut rng));
        let unsoft = |step: f32| libm::logf(libm::expf(step) - 1.0);
        self.vector("ssm_dt.bias", (0..heads).map(step).map(unsoft).collect());
        self.vector("ssm_norm.weight", vec![1.0; net.head_dim]);
        self.update("ssm_out", &[net.value_width(), d], out / GATE);
    }

    fn experts(&mut self, sizes: &Sizes) {
        /// Mean square root of `silu(gate) * up`.
        const INNER: f32 = 0.6;
        let Recipes { geometry, knobs, seed, .. } = *self.from;
        let (d, n, ff, shared) =
            (geometry.hidden, geometry.n_experts, geometry.expert_ff, geometry.shared_ff);
        let router = Router::new((seed, self.layer.idx), knobs, self.channels, sizes);
        self.push(self.block("ffn_gate_inp.weight"), vec![d, n], QuantType::F32, Fill::Router(router));
        // A sum by weights of which the best is 0.3, and half of the shared expert.
        let together = if shared > 0 { 0.65 } else { 0.41 };
        let out = sizes.experts / (INNER * together);
        self.matrix("ffn_gate_exps", &[d, ff, n], 1.0);
        self.matrix("ffn_up_exps", &[d, ff, n], 1.0);
        self.update("ffn_down_exps", &[ff, d, n], out);
        if shared > 0 {
            let mut rng = stream(seed, Purpose::Vector, (1024 + self.layer.idx) as u64);
            let switch = (0..d).map(|_| (2.0 * even(&mut rng) - 1.0) / root(d)).collect();
            self.vector("ffn_gate_inp_shexp.weight", switch);
            self.matrix("ffn_gate_shexp", &[d, shared], 1.0);
            self.matrix("ffn_up_shexp", &[d, shared], 1.0);
            self.update("ffn_down_shexp", &[shared, d], out);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "widths of a model")]
fn root(n: usize) -> f32 {
    (n as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::tests::plain;

    fn tensors(name: &str) -> Vec<Tensor> {
        let geometry = Geometry::named(name).unwrap();
        let script = Script::new(1, Channels::of(geometry.hidden), 2, &plain());
        plan(&Recipes {
            geometry: &geometry,
            recipe: Recipe::Q4KM,
            knobs: &plain(),
            seed: 1,
            script: &script,
            first_token: 10,
            n_vocab: geometry.n_vocab,
        })
    }

    #[test]
    fn a_35b_has_its_733_tensors_and_its_size() {
        let tensors = tensors("qwen3.5-35b-a3b");
        assert_eq!(tensors.len(), 733);
        let bytes: u64 = tensors.iter().map(Tensor::len_bytes).sum();
        assert_eq!((bytes * 100) >> 20, 2_017_571, "what llama-quantize says, in hundredths of MiB");
    }

    #[test]
    fn a_30b_has_its_579_tensors() {
        assert_eq!(tensors("qwen3-30b-a3b").len(), 3 + 48 * 12);
    }

    #[test]
    fn nothing_writes_to_the_carriers() {
        for tensor in tensors("pico") {
            if let Fill::Update { n_rows, n_zero, .. } = tensor.fill {
                assert_eq!((n_rows, n_zero), (256, 96), "{}", tensor.name);
            }
        }
    }
}
