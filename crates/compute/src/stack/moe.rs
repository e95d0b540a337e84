//! The expert part of a layer: router, shared expert, routed experts, and their sum in rank order.

use forerun_model::{LayerId, Routing};

use super::{Scratch, Stack};
use crate::ComputeError;
use crate::backend::{ExpertJob, Scores};
use crate::ops::{add_scaled, rms_norm, sigmoid, silu_times, softmax};
use crate::products::{Products, Rows};
use crate::router::route;
use crate::tensor::Matrix;

impl<P: Products> Stack<P> {
    /// Normalises the residual stream for the experts and asks the layer's router.
    pub(super) fn route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        let n = self.current().n_rows;
        let Self { weights, products, scratch, chosen, .. } = self;
        let (moe, w) = (&weights.shape.moe, &weights.layers[layer.idx()]);
        Self::normalise(scratch, n, &w.post_norm, weights.shape.norm_eps);
        let logits = &mut scratch.logits[..n * moe.n_experts];
        products.multiply(w.router.matrix(), &mut scratch.normed, Rows::All, logits);
        routing.reset(moe.top_k);
        for logits in logits.chunks_exact_mut(moe.n_experts) {
            if !route(logits, moe, chosen) {
                return Err(ComputeError::NotFinite { what: "the router's input", layer });
            }
            routing.push_row(chosen);
        }
        routing.group();
        let missing = n * moe.top_k;
        self.current().missing = missing;
        Ok(())
    }

    /// What `layer`'s router says of the residual stream as it is now.
    pub(super) fn guess(&mut self, layer: LayerId, scores: &mut Scores) {
        let n = self.current().n_rows;
        let Self { weights, products, scratch, .. } = self;
        let (shape, w) = (&weights.shape, &weights.layers[layer.idx()]);
        let d = shape.hidden;
        let rows = scratch.probe.start(n, d);
        for (x, out) in scratch.x.chunks_exact(d).zip(rows.chunks_exact_mut(d)) {
            rms_norm(x, &w.post_norm, shape.norm_eps, out);
        }
        scores.layer = layer;
        scores.n_experts = shape.moe.n_experts;
        scores.probabilities.clear();
        scores.probabilities.resize(n * scores.n_experts, 0.0);
        products.multiply(w.router.matrix(), &mut scratch.probe, Rows::All, &mut scores.probabilities);
        scores.probabilities.chunks_exact_mut(shape.moe.n_experts).for_each(softmax);
    }

    /// `shared = sigmoid(switch . r) * down(silu(gate r) * up r)` for every row, if the layer has a shared expert.
    pub(super) fn shared_expert(&mut self, layer: LayerId) {
        let n = self.current().n_rows;
        let Self { weights, products, scratch, .. } = self;
        let Some(w) = &weights.layers[layer.idx()].shared else { return };
        let switches = &mut scratch.logits[..n];
        products.multiply(w.switch.matrix(), &mut scratch.normed, Rows::All, switches);
        expert(products, scratch, [w.gate.matrix(), w.up.matrix(), w.down.matrix()], Rows::All, n);
        let d = weights.shape.hidden;
        let rows = scratch.shared.chunks_exact_mut(d).zip(scratch.out.chunks_exact(d));
        for ((shared, out), switch) in rows.zip(&scratch.logits[..n]) {
            shared.fill(0.0);
            add_scaled(shared, sigmoid(*switch), out);
        }
    }

    /// Runs one routed expert on its rows and keeps the results by row and rank.
    pub(super) fn routed_expert(&mut self, job: &ExpertJob<'_>) -> Result<(), ComputeError> {
        let Self { weights, products, scratch, expert_rows, .. } = self;
        let layout = &weights.experts[job.layer.idx()];
        let slot = job.weights.bytes();
        let parts = [(job.parts.gate, layout.gate), (job.parts.up, layout.up), (job.parts.down, layout.down)];
        let need_bytes = parts.iter().map(|(at, m)| *at as usize + m.bytes()).max().unwrap_or(0);
        if need_bytes > slot.len() {
            return Err(ComputeError::Slot { layer: job.layer, need_bytes, slot_bytes: slot.len() });
        }
        let matrices = parts
            .map(|(at, layout)| Matrix { layout, bytes: &slot[at as usize..at as usize + layout.bytes()] });
        expert_rows.clear();
        expert_rows.extend(job.uses.iter().map(|u| u.row));
        expert(products, scratch, matrices, Rows::Some(expert_rows), job.uses.len());
        let (d, top_k) = (weights.shape.hidden, weights.shape.moe.top_k);
        for (u, out) in job.uses.iter().zip(scratch.out.chunks_exact(d)) {
            let at = u.row as usize * top_k + u.rank as usize;
            scratch.ranked[at * d..(at + 1) * d].copy_from_slice(out);
            scratch.rank_weights[at] = u.weight;
        }
        let current = self.current();
        let n_uses = job.uses.len();
        assert!(current.missing >= n_uses, "an expert of {} ran twice", job.layer);
        current.missing -= n_uses;
        Ok(())
    }

    /// Adds the routed results in rank order, then the shared one if there is one, to the residual stream.
    pub(super) fn add_experts(&mut self) {
        let current = self.current();
        assert_eq!(current.missing, 0, "every expert of the routing runs before the layer is closed");
        let n = current.n_rows;
        let (d, top_k) = (self.weights.shape.hidden, self.weights.shape.moe.top_k);
        let has_shared = self.weights.shape.moe.shared_ff.is_some();
        let scratch = &mut self.scratch;
        for row in 0..n {
            let sum = &mut scratch.out[row * d..(row + 1) * d];
            sum.fill(0.0);
            for at in row * top_k..(row + 1) * top_k {
                add_scaled(sum, scratch.rank_weights[at], &scratch.ranked[at * d..(at + 1) * d]);
            }
            if has_shared {
                add_scaled(sum, 1.0, &scratch.shared[row * d..(row + 1) * d]);
            }
            add_scaled(&mut scratch.x[row * d..(row + 1) * d], 1.0, sum);
        }
    }
}

/// `out = down(silu(gate r) * up r)` for `n` rows of the router's input.
fn expert<P: Products>(
    products: &mut P,
    scratch: &mut Scratch,
    [gate, up, down]: [Matrix<'_>; 3],
    rows: Rows<'_>,
    n: usize,
) {
    let ff = gate.layout.n_rows;
    let (gates, ups) = (&mut scratch.wide[..n * ff], &mut scratch.side[..n * ff]);
    products.multiply(gate, &mut scratch.normed, rows, gates);
    products.multiply(up, &mut scratch.normed, rows, ups);
    silu_times(gates, ups);
    scratch.inner.start(n, ff).copy_from_slice(gates);
    let out = &mut scratch.out[..n * down.layout.n_rows];
    products.multiply(down, &mut scratch.inner, Rows::All, out);
}
