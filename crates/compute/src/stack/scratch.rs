//! Buffers of a step, sized once for the most rows that a step may have.

use forerun_model::{DeltaNetShape, LayerKind, ModelShape};

use crate::activation::Activations;

/// Everything that a step computes on the way.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Most rows of a step.
    pub(super) rows_max: usize,
    /// The residual stream, `[rows, hidden]`.
    pub(super) x: Vec<f32>,
    /// The normalised stream: input of a mixer, then of the router and all experts.
    pub(super) normed: Activations,
    /// Input of a second product: mixed heads, or an expert's inner values.
    pub(super) inner: Activations,
    /// Input of a guess.
    pub(super) probe: Activations,
    /// First projections: convolution channels, queries and gates, or an expert's gate values.
    pub(super) wide: Vec<f32>,
    /// Second projections: output gates, keys, or an expert's up values.
    pub(super) side: Vec<f32>,
    /// Third projections: values, or a delta-net's decays.
    pub(super) third: Vec<f32>,
    /// A delta-net's corrections.
    pub(super) betas: Vec<f32>,
    /// Convolved channels.
    pub(super) convolved: Vec<f32>,
    /// Output of a mixer or an expert, `[rows, hidden]`.
    pub(super) out: Vec<f32>,
    /// Output of the shared expert, `[rows, hidden]`; empty without one.
    pub(super) shared: Vec<f32>,
    /// Outputs of routed experts, `[rows, top_k, hidden]`.
    pub(super) ranked: Vec<f32>,
    /// Their weights, `[rows, top_k]`.
    pub(super) rank_weights: Vec<f32>,
    /// Router logits, `[rows, experts]`, and switches of the shared expert.
    pub(super) logits: Vec<f32>,
    /// Cos and sin, `[rows, n_rot]`.
    pub(super) rope: Vec<f32>,
}

/// Values per row of every buffer.
struct Widths {
    hidden: usize,
    inner: usize,
    wide: usize,
    side: usize,
    third: usize,
    betas: usize,
    convolved: usize,
    shared: usize,
    ranked: usize,
    rank_weights: usize,
    logits: usize,
    rope: usize,
}

impl Widths {
    fn new(shape: &ModelShape) -> Self {
        let (att, moe) = (&shape.attention, &shape.moe);
        let has = |kind| shape.n_layers_of(kind) > 0;
        let net = shape.delta_net.filter(|_| has(LayerKind::DeltaNet));
        let net = |width: fn(&DeltaNetShape) -> usize| net.as_ref().map_or(0, width);
        let with_att = usize::from(has(LayerKind::Attention));
        let ff = moe.expert_ff.max(moe.shared_ff.unwrap_or(0));
        let (value_width, channels) = (net(DeltaNetShape::value_width), net(DeltaNetShape::conv_channels));
        let value_heads = net(|net| net.n_value_heads);
        let heads = value_width.max(with_att * att.q_width());
        Self {
            hidden: shape.hidden,
            inner: heads.max(ff),
            wide: ff.max(channels).max(with_att * att.query_rows()),
            side: ff.max(value_width).max(with_att * att.kv_width()),
            third: value_heads.max(with_att * att.kv_width()),
            betas: value_heads,
            convolved: channels,
            shared: moe.shared_ff.map_or(0, |_| shape.hidden),
            ranked: moe.top_k * shape.hidden,
            rank_weights: moe.top_k,
            logits: moe.n_experts,
            rope: with_att * shape.rope.n_rot,
        }
    }

    /// All f32 values of one row, activations apart.
    fn floats(&self) -> usize {
        2 * self.hidden
            + self.wide
            + self.side
            + self.third
            + self.betas
            + self.convolved
            + self.shared
            + self.ranked
            + self.rank_weights
            + self.logits
            + self.rope
    }
}

impl Scratch {
    /// Buffers for steps of up to `rows_max` rows.
    pub(super) fn new(shape: &ModelShape, rows_max: usize) -> Self {
        let w = Widths::new(shape);
        let floats = |width: usize| vec![0.0; width * rows_max];
        Self {
            rows_max,
            x: floats(w.hidden),
            normed: Activations::with_capacity(rows_max, w.hidden),
            inner: Activations::with_capacity(rows_max, w.inner),
            probe: Activations::with_capacity(rows_max, w.hidden),
            wide: floats(w.wide),
            side: floats(w.side),
            third: floats(w.third),
            betas: floats(w.betas),
            convolved: floats(w.convolved),
            out: floats(w.hidden),
            shared: floats(w.shared),
            ranked: floats(w.ranked),
            rank_weights: floats(w.rank_weights),
            logits: floats(w.logits),
            rope: floats(w.rope),
        }
    }

    /// Bytes that [`Self::new`] allocates.
    pub(super) fn bytes(shape: &ModelShape, rows_max: usize) -> u64 {
        let w = Widths::new(shape);
        let activations = 2 * Activations::bytes(rows_max, w.hidden) + Activations::bytes(rows_max, w.inner);
        (activations + 4 * rows_max * w.floats()) as u64
    }
}
