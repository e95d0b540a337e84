//! The mixers: attention, gated or not, and the gated delta-net.

use forerun_model::{HEAD_DIM_MAX, LayerId, ModelShape};

use super::{Scratch, Stack};
use crate::attention::attend;
use crate::delta_net::{DeltaInput, convolve, step};
use crate::kv_cache::KvRows;
use crate::ops::{add_to_rows, l2_norm, rms_norm, rms_norm_in_place, sigmoid, silu, softplus};
use crate::products::{Products, Rows};
use crate::rope::rotate;
use crate::sequence::{LayerMemory, Log, Recurrent};
use crate::tensor::Matrix;
use crate::weights::{AttentionWeights, DeltaNetWeights, Mixer, Qkv};
use crate::workers::Workers;

impl<P: Products> Stack<P> {
    /// Runs the layer's mixer on the step's rows and adds its output to the residual stream.
    pub(super) fn mix(&mut self, layer: LayerId) {
        let Self { weights, products, sequences, scratch, step, .. } = self;
        let step = step.as_ref().expect("begin() comes first");
        let (shape, n) = (&weights.shape, step.n_rows);
        let layer_weights = &weights.layers[layer.idx()];
        Self::normalise(scratch, n, &layer_weights.attn_norm, shape.norm_eps);
        let (memory, committed) = sequences[step.sequence].layer(layer.idx());
        match (&layer_weights.mixer, memory) {
            (Mixer::Attention(w), LayerMemory::Attention { keys, values }) => {
                attention(shape, w, products, scratch, (keys, values), n, step.past);
            }
            (Mixer::DeltaNet(w), LayerMemory::DeltaNet(copies, log)) => {
                let log = step.may_reject.then_some(log);
                delta_net(shape, w, products, scratch, (copies, committed), n, log);
            }
            _ => unreachable!("weights and sequences are made of one shape"),
        }
        for (x, out) in scratch.x.iter_mut().zip(&scratch.out[..n * shape.hidden]) {
            *x += out;
        }
    }

    /// Brings the spare copies of all recurrent states to where they were after the step's first `n_rows` rows.
    pub(super) fn replay(&mut self, sequence: usize, n_rows: usize) {
        let Self { weights, products, sequences, scratch, .. } = self;
        let shape = &weights.shape;
        for (layer, layer_weights) in weights.layers.iter().enumerate() {
            let (memory, committed) = sequences[sequence].layer(layer);
            if let (Mixer::DeltaNet(w), LayerMemory::DeltaNet(copies, log)) = (&layer_weights.mixer, memory) {
                let (old, new) = old_and_new(copies, committed);
                let inputs = Inputs {
                    n_rows,
                    projections: &log.projections,
                    log_decays: &log.log_decays,
                    betas: &log.betas,
                };
                let buffers = (&mut scratch.convolved[..], &mut scratch.heads[..]);
                recur(shape, w, inputs, (old, new), buffers, products.workers());
            }
        }
    }
}

fn attention<P: Products>(
    shape: &ModelShape,
    w: &AttentionWeights,
    products: &mut P,
    scratch: &mut Scratch,
    (keys, values): (&mut KvRows, &mut KvRows),
    n: usize,
    past: usize,
) {
    let att = &shape.attention;
    let (dim, q_width, kv_width) = (att.head_dim, att.q_width(), att.kv_width());
    // Where there are gates, each head's query is followed by its gate.
    let (query_rows, stride) = (att.query_rows(), att.query_rows() / att.n_heads);
    let (q, k, v) = projections(&w.qkv, query_rows, kv_width);
    let queries = &mut scratch.wide[..n * query_rows];
    let new_keys = &mut scratch.side[..n * kv_width];
    let new_values = &mut scratch.third[..n * kv_width];
    products.multiply(q, &mut scratch.normed, Rows::All, queries);
    products.multiply(k, &mut scratch.normed, Rows::All, new_keys);
    products.multiply(v, &mut scratch.normed, Rows::All, new_values);
    if let Some(biases) = &w.biases {
        add_to_rows(queries, &biases.q);
        add_to_rows(new_keys, &biases.k);
        add_to_rows(new_values, &biases.v);
    }

    let tables = scratch.rope.chunks_exact(shape.rope.n_rot);
    for (row, table) in tables.take(n).enumerate() {
        for head in new_keys[row * kv_width..][..kv_width].chunks_exact_mut(dim) {
            if let Some(norms) = &w.head_norms {
                rms_norm_in_place(head, &norms.k, shape.norm_eps);
            }
            rotate(head, table);
        }
        for head in queries[row * query_rows..][..query_rows].chunks_exact_mut(stride) {
            if let Some(norms) = &w.head_norms {
                rms_norm_in_place(&mut head[..dim], &norms.q, shape.norm_eps);
            }
            rotate(&mut head[..dim], table);
        }
        keys.write(past + row, &new_keys[row * kv_width..][..kv_width]);
        values.write(past + row, &new_values[row * kv_width..][..kv_width]);
    }

    let (queries, keys, values) = (&*queries, &*keys, &*values);
    let work = n * (past + n) * kv_width * 4;
    products.workers().rows(&mut scratch.heads[..n * q_width], dim, work, |i, out| {
        let (row, head) = (i / att.n_heads, i % att.n_heads);
        let query_and_gate = &queries[(row * att.n_heads + head) * stride..][..stride];
        attend(att, head, &query_and_gate[..dim], (keys, values), past + row + 1, out);
        for (out, gate) in out.iter_mut().zip(&query_and_gate[dim..]) {
            *out *= sigmoid(*gate);
        }
    });
    scratch.inner.start(n, q_width).copy_from_slice(&scratch.heads[..n * q_width]);
    let out = &mut scratch.out[..n * shape.hidden];
    products.multiply(w.output.matrix(), &mut scratch.inner, Rows::All, out);
}

/// The matrices of queries and gates, keys, and values.
fn projections(qkv: &Qkv, query_rows: usize, kv_width: usize) -> (Matrix<'_>, Matrix<'_>, Matrix<'_>) {
    match qkv {
        Qkv::Separate { q, k, v } => (q.matrix(), k.matrix(), v.matrix()),
        Qkv::Fused(all) => {
            let (all, k, v) = (all.matrix(), query_rows, query_rows + kv_width);
            (all.rows(0, k), all.rows(k, v), all.rows(v, v + kv_width))
        }
    }
}

fn delta_net<P: Products>(
    shape: &ModelShape,
    w: &DeltaNetWeights,
    products: &mut P,
    scratch: &mut Scratch,
    (copies, committed): (&mut [Recurrent; 2], usize),
    n: usize,
    log: Option<&mut Log>,
) {
    let net = shape.delta_net.as_ref().expect("a layer of this kind has its shape");
    let (channels, width, heads) = (net.conv_channels(), net.value_width(), net.n_value_heads);
    let normed = &mut scratch.normed;
    products.multiply(w.qkv.matrix(), normed, Rows::All, &mut scratch.wide[..n * channels]);
    products.multiply(w.gate.matrix(), normed, Rows::All, &mut scratch.side[..n * width]);
    products.multiply(w.beta.matrix(), normed, Rows::All, &mut scratch.betas[..n * heads]);
    products.multiply(w.alpha.matrix(), normed, Rows::All, &mut scratch.third[..n * heads]);
    for beta in &mut scratch.betas[..n * heads] {
        *beta = sigmoid(*beta);
    }
    for row in scratch.third[..n * heads].chunks_exact_mut(heads) {
        for ((alpha, a), dt) in row.iter_mut().zip(&w.a).zip(&w.dt) {
            *alpha = a * softplus(*alpha + dt);
        }
    }
    let inputs = Inputs {
        n_rows: n,
        projections: &scratch.wide[..n * channels],
        log_decays: &scratch.third[..n * heads],
        betas: &scratch.betas[..n * heads],
    };
    if let Some(log) = log {
        inputs.copy_to(log);
    }
    let (old, new) = old_and_new(copies, committed);
    let buffers = (&mut scratch.convolved[..], &mut scratch.heads[..]);
    recur(shape, w, inputs, (old, new), buffers, products.workers());

    let (dim, inner) = (net.value_dim, scratch.inner.start(n, width));
    for row in 0..n {
        for head in 0..heads {
            let at = row * width + head * dim;
            let (out, gates) = (&mut inner[at..at + dim], &scratch.side[at..at + dim]);
            rms_norm(&scratch.heads[(head * n + row) * dim..][..dim], &w.norm, shape.norm_eps, out);
            for (out, gate) in out.iter_mut().zip(gates) {
                *out *= silu(*gate);
            }
        }
    }
    let out = &mut scratch.out[..n * shape.hidden];
    products.multiply(w.output.matrix(), &mut scratch.inner, Rows::All, out);
}

fn old_and_new(copies: &mut [Recurrent; 2], committed: usize) -> (&Recurrent, &mut Recurrent) {
    let [a, b] = copies;
    if committed == 0 { (a, b) } else { (b, a) }
}

/// What enters the recurrence: raw projections `[rows, channels]`, decays and corrections `[rows, heads]`.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    n_rows: usize,
    projections: &'a [f32],
    log_decays: &'a [f32],
    betas: &'a [f32],
}

impl Inputs<'_> {
    fn copy_to(&self, log: &mut Log) {
        for (log, values) in [
            (&mut log.projections, self.projections),
            (&mut log.log_decays, self.log_decays),
            (&mut log.betas, self.betas),
        ] {
            log.clear();
            log.extend_from_slice(values);
        }
    }
}

/// Runs convolution, norms and the delta rule over the rows: reads `old`, leaves `new` after the last row, and the
/// heads' outputs `[heads, rows, value_dim]` in the second buffer.
fn recur(
    shape: &ModelShape,
    w: &DeltaNetWeights,
    inputs: Inputs<'_>,
    (old, new): (&Recurrent, &mut Recurrent),
    (convolved, heads): (&mut [f32], &mut [f32]),
    workers: &Workers,
) {
    let net = shape.delta_net.as_ref().expect("a layer of this kind has its shape");
    let (n, channels, taps) = (inputs.n_rows, net.conv_channels(), net.conv_kernel);
    let raw = |row: usize| {
        // Rows before the step's first lie in the history, which holds `taps - 1` of them.
        let (rows, row) =
            if row < taps - 1 { (&old.conv[..], row) } else { (inputs.projections, row - (taps - 1)) };
        &rows[row * channels..(row + 1) * channels]
    };
    let key_width = net.n_key_heads * net.key_dim;
    let query_scale = 1.0 / root(net.key_dim);
    for (row, out) in convolved.chunks_exact_mut(channels).take(n).enumerate() {
        convolve(&w.conv, (row..row + taps).map(raw), out);
        for (i, head) in out[..2 * key_width].chunks_exact_mut(net.key_dim).enumerate() {
            l2_norm(head, shape.norm_eps, if i < net.n_key_heads { query_scale } else { 1.0 });
        }
    }
    for (i, history) in new.conv.chunks_exact_mut(channels).enumerate() {
        history.copy_from_slice(raw(n + i));
    }

    new.state.copy_from_slice(&old.state);
    let (convolved, dim) = (&*convolved, net.value_dim);
    let head_state = net.key_dim * dim;
    let work = 4 * new.state.len() * n;
    let heads = &mut heads[..n * net.value_width()];
    workers.row_pairs((&mut new.state, head_state), (heads, n * dim), work, |head, state, out| {
        let mut corrections = [0.0; HEAD_DIM_MAX];
        let scratch = &mut corrections[..dim];
        for (row, out) in out.chunks_exact_mut(dim).enumerate() {
            let x = &convolved[row * channels..(row + 1) * channels];
            let key_head = net.key_head(head) * net.key_dim;
            let input = DeltaInput {
                query: &x[key_head..][..net.key_dim],
                key: &x[key_width + key_head..][..net.key_dim],
                value: &x[2 * key_width + head * dim..][..dim],
                log_decay: inputs.log_decays[row * net.n_value_heads + head],
                beta: inputs.betas[row * net.n_value_heads + head],
            };
            step(state, input, scratch, out);
        }
    });
}

#[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
fn root(n: usize) -> f32 {
    (n as f32).sqrt()
}
