//! The mixers: attention, gated or not, here, the gated delta-net in [`super::recurrence`].

use forerun_model::{LayerId, ModelShape};

use super::recurrence::{self, Inputs, Recurrence, old_and_new};
use super::{Scratch, Stack};
use crate::activation::Rows;
use crate::attention::Attend;
use crate::kernels::Loop;
use crate::loops::{Add, Turn};
use crate::ops::{add_to_rows, sigmoid};
use crate::products::{Product, Products};
use crate::sequence::{Committed, LayerMemory, Sequence};
use crate::stepping::Current;
use crate::tap;
use crate::tensor::Matrix;
use crate::weights::{AttentionWeights, Mixer, Qkv};

/// Why a layer's memory is of its mixer's kind.
pub(super) const MADE_ALIKE: &str = "weights and sequences are made of one shape";

impl<P: Products> Stack<P> {
    /// Runs the layer's mixer on the step's rows and adds its output to the residual stream.
    pub(super) fn mix(&mut self, layer: LayerId) {
        let Self { weights, products, sequences, scratch, step, tap, .. } = self;
        let (shape, n) = (&weights.shape, step.n_rows());
        let layer_weights = &weights.layers[layer.idx()];
        Self::normalise(products, scratch, n, &layer_weights.attn_norm, shape.norm_eps);
        match &layer_weights.mixer {
            Mixer::Attention(w) => attention(shape, w, products, scratch, (layer, sequences, step)),
            Mixer::DeltaNet(w) => {
                recurrence::delta_net(shape, w, products, scratch, (layer, sequences, step));
            }
        }
        tap.hear(layer, tap::Inputs::Mixer, &scratch.normed, 0, Rows::All);
        tap.hear(layer, tap::Inputs::MixerOutput, &scratch.inner, 0, Rows::All);
        products.isa().run(Add { x: &mut scratch.x[..n * shape.hidden], out: &scratch.out });
    }

    /// Brings the spare copies of all recurrent states to where they were after the step's first `n_rows` rows.
    pub(super) fn replay(&mut self, sequence: usize, n_rows: usize) {
        let Self { weights, products, sequences, scratch, .. } = self;
        let shape = &weights.shape;
        for (layer, layer_weights) in weights.layers.iter().enumerate() {
            let (memory, committed) = sequences[sequence].layer(layer);
            if let (Mixer::DeltaNet(w), LayerMemory::DeltaNet(copies, log)) = (&layer_weights.mixer, memory) {
                let inputs = Inputs {
                    n_rows,
                    projections: &log.projections,
                    log_decays: &log.log_decays,
                    betas: &log.betas,
                };
                let (old, new) = old_and_new(copies, committed);
                products.recur(Recurrence {
                    net: shape.delta_net.as_ref().expect("a layer of this kind has its shape"),
                    eps: shape.norm_eps,
                    conv: &w.conv,
                    norm: &w.norm,
                    inputs,
                    old,
                    new,
                    convolved: &mut scratch.convolved,
                    outputs: None,
                });
            }
        }
    }
}

fn attention<P: Products>(
    shape: &ModelShape,
    w: &AttentionWeights,
    products: &mut P,
    scratch: &mut Scratch,
    (layer, sequences, step): (LayerId, &mut [Sequence], &Current),
) {
    let (att, n) = (&shape.attention, step.n_rows());
    let (dim, q_width, kv_width) = (att.head_dim, att.q_width(), att.kv_width());
    // Where there are gates, each head's query is followed by its gate.
    let (query_rows, stride) = (att.query_rows(), att.query_rows() / att.n_heads);
    let (q, k, v) = projections(&w.qkv, query_rows, kv_width);
    let queries = &mut scratch.wide[..n * query_rows];
    let new_keys = &mut scratch.side[..n * kv_width];
    let new_values = &mut scratch.third[..n * kv_width];
    let mut work = [
        Product { matrix: q, out: &mut *queries },
        Product { matrix: k, out: &mut *new_keys },
        Product { matrix: v, out: &mut *new_values },
    ];
    products.multiply(&mut scratch.normed, Rows::All, &mut work);
    if let Some(biases) = &w.biases {
        add_to_rows(queries, &biases.q);
        add_to_rows(new_keys, &biases.k);
        add_to_rows(new_values, &biases.v);
    }

    turn_heads(shape, w, products, &scratch.rope, (&mut *queries, &mut *new_keys));
    for part in step.parts() {
        let memory = sequences[part.sequence].layer(layer.idx()).0;
        let LayerMemory::Attention { keys, values } = memory else { unreachable!("{MADE_ALIKE}") };
        let rows = part.first * kv_width..(part.first + part.n_rows) * kv_width;
        let new_rows =
            new_keys[rows.clone()].chunks_exact(kv_width).zip(new_values[rows].chunks_exact(kv_width));
        for (row, (new_key, new_value)) in (part.past..).zip(new_rows) {
            keys.write(row, new_key);
            values.write(row, new_value);
        }
    }

    let (queries, sequences, isa) = (&*queries, &*sequences, products.isa());
    let keys_seen: usize = step.parts().iter().map(|part| part.n_rows * (part.past + part.n_rows)).sum();
    let inner = scratch.inner.start(n, q_width);
    let group = att.n_heads / att.n_kv_heads;
    products.workers().rows(inner, group * dim, keys_seen * kv_width * 8, |i, out| {
        let (row, kv_head) = (i / att.n_kv_heads, i % att.n_kv_heads);
        let part = step.part_of(row);
        let memory = sequences[part.sequence].committed(layer.idx());
        let Committed::Attention { keys, values } = memory else { unreachable!("{MADE_ALIKE}") };
        let queries = &queries[(row * att.n_heads + kv_head * group) * stride..][..group * stride];
        let rows = 0..part.past + (row - part.first) + 1;
        isa.run(Attend { dim, kv_head, queries, stride, keys, values, rows, out: &mut *out });
        if att.parts.gate {
            isa.run(Gate { dim, queries_and_gates: queries, out });
        }
    });
    let out = &mut scratch.out[..n * shape.hidden];
    let mut work = [Product { matrix: w.output.matrix(), out }];
    products.multiply(&mut scratch.inner, Rows::All, &mut work);
}

/// Normalises and rotates all rows' queries and keys.
fn turn_heads<P: Products>(
    shape: &ModelShape,
    w: &AttentionWeights,
    products: &P,
    tables: &[f32],
    (queries, keys): (&mut [f32], &mut [f32]),
) {
    let att = &shape.attention;
    let (isa, eps, n_rot, dim) = (products.isa(), shape.norm_eps, shape.rope.n_rot, att.head_dim);
    let norms = w.head_norms.as_ref();
    let (q_norm, k_norm) = (norms.map(|n| &n.q[..]), norms.map(|n| &n.k[..]));
    let turn = |heads: &mut [f32], row: usize, norm, stride| {
        let table = &tables[row * n_rot..(row + 1) * n_rot];
        isa.run(Turn { heads, dim, stride, norm, eps, table });
    };
    let (q_width, k_width, stride) = (att.query_rows(), att.kv_width(), att.query_rows() / att.n_heads);
    let workers = products.workers();
    workers.rows(keys, k_width, 4 * keys.len(), |row, heads| turn(heads, row, k_norm, dim));
    workers.rows(queries, q_width, 4 * queries.len(), |row, heads| turn(heads, row, q_norm, stride));
}

/// Multiplies each head's output with the sigmoid of its gate.
struct Gate<'a> {
    dim: usize,
    queries_and_gates: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let heads =
            self.out.chunks_exact_mut(self.dim).zip(self.queries_and_gates.chunks_exact(2 * self.dim));
        for (out, query_and_gate) in heads {
            for (out, gate) in out.iter_mut().zip(&query_and_gate[self.dim..]) {
                *out *= sigmoid(*gate);
            }
        }
    }
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
