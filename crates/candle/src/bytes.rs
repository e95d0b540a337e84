//! What a stack allocates, for the plan that is made before anything is.

use forerun_compute::{DeviceName, StackBytes, StackConfig, Taps, Weights};
use forerun_model::{DeltaNetShape, ExpertLayout, LayerKind, MatrixLayout, ModelShape};

use crate::CandleStack;
use crate::device::{SCORES_MAX, query_block};
use crate::matrix::matrix_bytes;
use crate::weights::DeviceWeights;

impl CandleStack {
    /// What a stack allocates on `device`, by purpose; matrices and logits apart. Tensor operations make a new tensor each, so a
    /// step's buffers are counted as the most that are alive at once.
    pub fn bytes(
        shape: &ModelShape,
        experts: &[ExpertLayout],
        config: &StackConfig,
        taps: &Taps,
        device: DeviceName,
    ) -> StackBytes {
        let plain = config.bytes(shape);
        let layer_state = state_values(shape);
        let rows = (config.rows_max + config.aside_rows) * row_values(shape, taps);
        let once = once_values(shape, config, device) + 4 * layer_state;
        let expert = experts.iter().map(expert_bytes).max().unwrap_or(0);
        StackBytes {
            kv: plain.kv,
            // What a sequence that begins remembers is there once for all.
            state: plain.state + 4 * layer_state as u64,
            scratch: 4 * (rows + once) as u64 + expert,
        }
    }

    /// Bytes that the matrices and vectors of `weights` take on a device. The table of embeddings isn't copied, unless it is the
    /// head too.
    pub fn weight_bytes(weights: &Weights) -> u64 {
        DeviceWeights::bytes(weights)
    }

    /// Bytes that a matrix takes on a device: its own, or four a value where candle has no product with its type.
    pub fn matrix_bytes(layout: MatrixLayout) -> u64 {
        matrix_bytes(layout)
    }
}

fn state_values(shape: &ModelShape) -> usize {
    shape.delta_net.map_or(0, |net| net.state_len() + net.conv_len())
}

fn expert_bytes(layout: &ExpertLayout) -> u64 {
    [layout.gate, layout.up, layout.down].into_iter().map(matrix_bytes).sum()
}

/// Values alive for each row of a step while the widest part of a layer runs.
fn row_values(shape: &ModelShape, taps: &Taps) -> usize {
    let (att, moe) = (&shape.attention, &shape.moe);
    let has = |kind| usize::from(shape.n_layers_of(kind) > 0);
    let ff = moe.expert_ff.max(moe.shared_ff.unwrap_or(0));
    // Queries, gates and keys each as they are multiplied, cut out, normalised and turned.
    let attention = has(LayerKind::Attention) * 4 * (att.query_rows() + att.q_width() + 2 * att.kv_width());
    let net = |net: &DeltaNetShape| 6 * net.conv_channels() + 8 * net.value_width() + 4 * net.n_value_heads;
    let delta_net = has(LayerKind::DeltaNet) * shape.delta_net.as_ref().map_or(0, net);
    // Results as they came, joined, ordered, and weighted.
    let experts = 4 * moe.top_k * shape.hidden + 4 * ff + moe.n_experts;
    let widest = attention.max(delta_net).max(experts);
    (6 + taps.layers.len() + usize::from(taps.normed)) * shape.hidden + 2 * shape.rope.n_rot + widest
}

/// Values alive whatever the number of rows: scores, and keys and values as f32.
fn once_values(shape: &ModelShape, config: &StackConfig, device: DeviceName) -> usize {
    if shape.n_layers_of(LayerKind::Attention) == 0 {
        return 0;
    }
    let (att, context) = (&shape.attention, config.context);
    // Shorter sequences have larger blocks, up to the same number of scores.
    let row = att.n_heads * context;
    let scores = match device {
        DeviceName::Cpu => query_block(device, att.n_heads, context) * row,
        DeviceName::Cuda(_) | DeviceName::Metal(_) => (config.rows_max.max(1) * row).min(SCORES_MAX.max(row)),
    };
    let scores = 5 * scores;
    scores + 2 * att.kv_width() * context
}
