//! The pass over a block: its slots through all layers, over the context and themselves.

use forerun_model::TokenId;

use super::context::Context;
use super::scratch::Scratch;
use super::weights::DsparkWeights;
use crate::activation::{Activations, Rows};
use crate::attention::Attend;
use crate::dequant::dequantise;
use crate::loops::{Add, Norm, Turn};
use crate::products::{ExpertBuffers, ExpertMatrices, Product, Products};

/// Layers at work on rows whose positions `tables` turn.
pub(super) struct Layers<'a, P> {
    pub(super) weights: &'a DsparkWeights,
    pub(super) products: &'a mut P,
    /// Cos and sin, `[rows, n_rot]`.
    pub(super) tables: &'a [f32],
}

impl<P: Products> Layers<'_, P> {
    /// Normalises all rows into `out`.
    pub(super) fn normalise(&self, rows: &[f32], weight: &[f32], out: &mut Activations) {
        let (d, eps, isa) = (weight.len(), self.weights.shape.norm_eps, self.products.isa());
        let out = out.start(rows.len() / d, d);
        self.products.workers().rows(out, d, 4 * rows.len(), |row, out| {
            isa.run(Norm { x: &rows[row * d..(row + 1) * d], weight, eps, out });
        });
    }

    /// Normalises and turns the heads of all rows of `width` values.
    fn turn(&self, heads: &mut [f32], width: usize, norm: &[f32]) {
        let shape = &self.weights.shape;
        let (dim, n_rot, eps, isa) =
            (shape.attention.head_dim, shape.rope.n_rot, shape.norm_eps, self.products.isa());
        let (tables, work_bytes) = (self.tables, 4 * heads.len());
        self.products.workers().rows(heads, width, work_bytes, |row, heads| {
            let table = &tables[row * n_rot..(row + 1) * n_rot];
            isa.run(Turn { heads, dim, stride: dim, norm: Some(norm), eps, table });
        });
    }

    /// Keys, normalised and turned, and values of all rows of `x`.
    pub(super) fn keys_and_values(
        &mut self,
        layer: usize,
        x: &mut Activations,
        (keys, values): (&mut [f32], &mut [f32]),
    ) {
        let (w, width) = (&self.weights.layers[layer], self.weights.shape.attention.kv_width());
        let of_keys = Product { matrix: w.k.matrix(), out: &mut *keys };
        match &w.v {
            Some(v) => {
                let of_values = Product { matrix: v.matrix(), out: values };
                self.products.multiply(x, Rows::All, &mut [of_keys, of_values]);
            }
            None => {
                self.products.multiply(x, Rows::All, &mut [of_keys]);
                values.copy_from_slice(keys);
            }
        }
        self.turn(keys, width, &w.head_norms.k);
    }
}

/// Runs a block that `anchor` begins; its states are then in the scratch, normalised.
pub(super) fn run<P: Products>(
    weights: &DsparkWeights,
    products: &mut P,
    context: &mut Context,
    scratch: &mut Scratch,
    anchor: TokenId,
) {
    let shape = &weights.shape;
    let (n, d) = (shape.block, shape.hidden);
    let embedding = weights.embedding.matrix();
    for (slot, x) in scratch.x[..n * d].chunks_exact_mut(d).enumerate() {
        let token = if slot == 0 { anchor } else { shape.mask };
        dequantise(embedding.layout.quant, embedding.row(token.idx()), x);
    }
    for layer in 0..weights.layers.len() {
        mix(weights, products, context, scratch, layer);
        feed_forward(weights, products, scratch, layer);
    }
    let layers = Layers { weights, products, tables: &scratch.rope };
    layers.normalise(&scratch.x[..n * d], &weights.output_norm, &mut scratch.states);
}

/// Attention of a layer, added to the residual stream.
fn mix<P: Products>(
    weights: &DsparkWeights,
    products: &mut P,
    context: &mut Context,
    scratch: &mut Scratch,
    layer: usize,
) {
    let (shape, w) = (&weights.shape, &weights.layers[layer]);
    let (n, d, att) = (shape.block, shape.hidden, &shape.attention);
    let (q_width, kv_width) = (att.q_width(), att.kv_width());
    let mut layers = Layers { weights, products, tables: &scratch.rope };
    layers.normalise(&scratch.x[..n * d], &w.attn_norm, &mut scratch.normed);
    let queries = &mut scratch.queries[..n * q_width];
    let mut work = [Product { matrix: w.q.matrix(), out: &mut *queries }];
    layers.products.multiply(&mut scratch.normed, Rows::All, &mut work);
    layers.turn(queries, q_width, &w.head_norms.q);
    let (keys, values) = (&mut scratch.keys[..n * kv_width], &mut scratch.values[..n * kv_width]);
    layers.keys_and_values(layer, &mut scratch.normed, (&mut *keys, &mut *values));
    // Behind the context, where the next rows that are observed will be.
    context.write(layer, context.held(), (keys, values));
    attend(weights, products, context, scratch, layer);
    let out = &mut scratch.out[..n * d];
    let mut work = [Product { matrix: w.output.matrix(), out: &mut *out }];
    products.multiply(&mut scratch.inner, Rows::All, &mut work);
    products.isa().run(Add { x: &mut scratch.x[..n * d], out });
}

/// Softmax attention of the block's queries, as rows of `inner`. Slots that see the same keys go together.
fn attend<P: Products>(
    weights: &DsparkWeights,
    products: &mut P,
    context: &Context,
    scratch: &mut Scratch,
    layer: usize,
) {
    let (shape, groups) = (&weights.shape, scratch.groups);
    let (n, dim, width, padded) = (shape.block, shape.attention.head_dim, groups.width, groups.padded);
    let (q_width, window) = (shape.attention.q_width(), shape.windows[layer]);
    // By key-value head and slot.
    for (i, group) in scratch.grouped.chunks_exact_mut(width).enumerate() {
        let (kv_head, slot) = (i / padded, i % padded);
        if slot < n {
            group.copy_from_slice(&scratch.queries[slot * q_width + kv_head * width..][..width]);
        }
    }
    let together = if shape.causal || window.is_some() { 1 } else { groups.slots };
    let (rows, grouped, isa) = (&context.layers[layer], &scratch.grouped, products.isa());
    let work_bytes = n * (context.held() + n) * shape.attention.kv_width() * 8;
    products.workers().rows(&mut scratch.attended, together * width, work_bytes, |i, out| {
        let (kv_head, slot) = (i * together / padded, i * together % padded);
        let queries = &grouped[i * together * width..][..n.saturating_sub(slot).min(together) * width];
        if queries.is_empty() {
            return;
        }
        isa.run(Attend {
            dim,
            kv_head,
            queries,
            stride: dim,
            keys: &rows.keys,
            values: &rows.values,
            rows: context.seen(slot, window, if shape.causal { slot + 1 } else { n }),
            out: &mut out[..queries.len()],
        });
    });
    let inner = scratch.inner.start(n, q_width);
    for (slot, out) in inner.chunks_exact_mut(q_width).enumerate() {
        for (kv_head, out) in out.chunks_exact_mut(width).enumerate() {
            out.copy_from_slice(&scratch.attended[(kv_head * padded + slot) * width..][..width]);
        }
    }
}

/// The feed-forward part of a layer, added to the residual stream.
fn feed_forward<P: Products>(weights: &DsparkWeights, products: &mut P, scratch: &mut Scratch, layer: usize) {
    let (shape, w) = (&weights.shape, &weights.layers[layer]);
    let (n, d) = (shape.block, shape.hidden);
    let layers = Layers { weights, products, tables: &scratch.rope };
    layers.normalise(&scratch.x[..n * d], &w.ffn_norm, &mut scratch.normed);
    let matrices = ExpertMatrices { gate: w.gate.matrix(), up: w.up.matrix(), down: w.down.matrix() };
    let buffers = ExpertBuffers {
        gates: &mut scratch.queries[..n * shape.ff],
        ups: &mut scratch.ups[..n * shape.ff],
        inner: &mut scratch.inner,
    };
    let out = &mut scratch.out[..n * d];
    products.expert(matrices, &mut scratch.normed, Rows::All, buffers, out);
    products.isa().run(Add { x: &mut scratch.x[..n * d], out });
}
