//! The expert part of a layer: router, shared expert, routed experts, and their sum in rank order.

#![expect(unsafe_code, reason = "threads write columns of the same results, each its own")]

use forerun_model::{LayerId, Routing, Use};

use super::{Norm, Scratch, Stack};
use crate::ComputeError;
use crate::activation::Rows;
use crate::backend::{ExpertJob, Scores};
use crate::kernels::{Loop, SharedColumns};
use crate::ops::{add_scaled, sigmoid, softmax};
use crate::products::{ExpertBuffers, ExpertMatrices, Product, Products};
use crate::router::choose;
use crate::tap::Inputs;
use crate::tensor::Matrix;

impl<P: Products> Stack<P> {
    /// Normalises the residual stream for the experts and asks the layer's router.
    pub(super) fn route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        let n = self.step.n_rows();
        let Self { weights, products, scratch, chosen, tap, .. } = self;
        let (moe, w) = (&weights.shape.moe, &weights.layers[layer.idx()]);
        Self::normalise(products, scratch, n, &w.post_norm, weights.shape.norm_eps);
        let logits = &mut scratch.logits[..n * moe.n_experts];
        let mut work = [Product { matrix: w.router.matrix(), out: &mut *logits }];
        products.multiply(&mut scratch.normed, Rows::All, &mut work);
        tap.hear(layer, Inputs::Router, &scratch.normed, 0, Rows::All);
        routing.reset(moe.top_k);
        for logits in logits.chunks_exact_mut(moe.n_experts) {
            products.isa().run(Softmax(logits));
            if !choose(logits, moe, chosen) {
                return Err(ComputeError::NotFinite { what: "the router's input", layer });
            }
            routing.push_row(chosen);
        }
        routing.group();
        let missing = n * moe.top_k;
        self.step.missing = missing;
        Ok(())
    }

    /// What `layer`'s router says of the residual stream as it is now.
    pub(super) fn guess(&mut self, layer: LayerId, scores: &mut Scores) {
        let n = self.step.n_rows();
        let Self { weights, products, scratch, .. } = self;
        let (shape, w) = (&weights.shape, &weights.layers[layer.idx()]);
        let d = shape.hidden;
        let rows = scratch.probe.start(n, d);
        for (x, out) in scratch.x.chunks_exact(d).zip(rows.chunks_exact_mut(d)) {
            products.isa().run(Norm { x, weight: &w.post_norm, eps: shape.norm_eps, out });
        }
        scores.layer = layer;
        scores.n_experts = shape.moe.n_experts;
        scores.probabilities.clear();
        scores.probabilities.resize(n * scores.n_experts, 0.0);
        let mut work = [Product { matrix: w.guess_router().matrix(), out: &mut scores.probabilities }];
        products.multiply(&mut scratch.probe, Rows::All, &mut work);
        for probabilities in scores.probabilities.chunks_exact_mut(shape.moe.n_experts) {
            products.isa().run(Softmax(probabilities));
        }
    }

    /// `shared = sigmoid(switch . r) * down(silu(gate r) * up r)` for every row, if the layer has a shared expert.
    pub(super) fn shared_expert(&mut self, layer: LayerId) {
        let n = self.step.n_rows();
        let Self { weights, products, scratch, tap, .. } = self;
        let Some(w) = &weights.layers[layer.idx()].shared else { return };
        let mut work = [Product { matrix: w.switch.matrix(), out: &mut scratch.logits[..n] }];
        products.multiply(&mut scratch.normed, Rows::All, &mut work);
        let matrices = ExpertMatrices { gate: w.gate.matrix(), up: w.up.matrix(), down: w.down.matrix() };
        expert(products, scratch, matrices, Rows::All, n);
        tap.hear(layer, Inputs::SharedDown, &scratch.inner, 0, Rows::All);
        let d = weights.shape.hidden;
        let (out, switches, isa) = (&scratch.out, &scratch.logits, products.isa());
        products.workers().rows(&mut scratch.shared[..n * d], d, 8 * n * d, |row, shared| {
            isa.run(Scale { out: shared, factor: sigmoid(switches[row]), x: &out[row * d..(row + 1) * d] });
        });
    }

    /// Runs one routed expert on its rows and keeps the results by row and rank.
    pub(super) fn routed_expert(&mut self, job: &ExpertJob<'_>) -> Result<(), ComputeError> {
        let Self { weights, products, scratch, expert_rows, tap, .. } = self;
        let layout = &weights.experts[job.layer.idx()];
        let slot = job.weights.bytes();
        let parts = [(job.parts.gate, layout.gate), (job.parts.up, layout.up), (job.parts.down, layout.down)];
        let need_bytes = parts.iter().map(|(at, m)| at.saturating_add(m.bytes())).max().unwrap_or(0);
        if need_bytes > slot.len() {
            return Err(ComputeError::Slot { layer: job.layer, need_bytes, slot_bytes: slot.len() });
        }
        let [gate, up, down] =
            parts.map(|(at, layout)| Matrix { layout, bytes: &slot[at..at + layout.bytes()] });
        expert_rows.clear();
        expert_rows.extend(job.uses.iter().map(|u| u.row));
        let matrices = ExpertMatrices { gate, up, down };
        expert(products, scratch, matrices, Rows::Some(expert_rows), job.uses.len());
        let id = job.uses.first().map_or(0, |u| u.expert.idx());
        tap.hear(job.layer, Inputs::Experts, &scratch.normed, id, Rows::Some(expert_rows));
        tap.hear(job.layer, Inputs::ExpertsDown, &scratch.inner, id, Rows::All);
        let (d, top_k) = (weights.shape.hidden, weights.shape.moe.top_k);
        let place = |u: &Use| u.row as usize * top_k + u.rank as usize;
        let (out, ranked) = (&scratch.out, SharedColumns::new(&mut scratch.ranked, d));
        products.workers().share(8 * job.uses.len() * d, |share| {
            let columns = share.range(d, 16);
            // SAFETY: the shares' columns don't overlap.
            let mut ranked = unsafe { ranked.part(columns.clone()) };
            for (u, out) in job.uses.iter().zip(out.chunks_exact(d)) {
                ranked.row(place(u)).copy_from_slice(&out[columns.clone()]);
            }
        });
        for u in job.uses {
            scratch.rank_weights[place(u)] = u.weight;
        }
        let current = &mut self.step;
        let n_uses = job.uses.len();
        assert!(current.missing >= n_uses, "an expert of {} ran twice", job.layer);
        current.missing -= n_uses;
        Ok(())
    }

    /// Adds the routed results in rank order, then the shared one if there is one, to the residual stream.
    pub(super) fn add_experts(&mut self) {
        let current = &self.step;
        assert_eq!(current.missing, 0, "every expert of the routing runs before the layer is closed");
        let n = current.n_rows();
        let (d, top_k) = (self.weights.shape.hidden, self.weights.shape.moe.top_k);
        let Scratch { x, ranked, rank_weights, shared, .. } = &mut self.scratch;
        let shared = if self.weights.shape.moe.shared_ff.is_some() { &shared[..n * d] } else { &[] };
        self.products.close(Closing {
            hidden: d,
            top_k,
            ranked: &ranked[..n * top_k * d],
            rank_weights: &rank_weights[..n * top_k],
            shared,
            x: &mut x[..n * d],
        });
    }
}

/// The end of a layer: `x += (sum of ranked results, weighted, in rank order) + shared`.
#[derive(Debug)]
pub struct Closing<'a> {
    /// Values of a row.
    pub hidden: usize,
    /// Experts of a row.
    pub top_k: usize,
    /// Results of the routed experts, `[rows, top_k, hidden]`.
    pub ranked: &'a [f32],
    /// Their weights, `[rows, top_k]`.
    pub rank_weights: &'a [f32],
    /// What the shared expert adds, `[rows, hidden]`; empty without one.
    pub shared: &'a [f32],
    /// The residual stream, `[rows, hidden]`.
    pub x: &'a mut [f32],
}

/// Rows are shared among the threads.
pub(crate) fn close<P: Products>(products: &P, job: Closing<'_>) {
    let Closing { hidden: d, top_k, ranked, rank_weights, shared, x } = job;
    let (isa, work_bytes) = (products.isa(), 4 * (x.len() + ranked.len() + 2 * shared.len()));
    products.workers().rows(x, d, work_bytes, |row, x| {
        isa.run(AddExperts {
            x,
            ranked: &ranked[row * top_k * d..(row + 1) * top_k * d],
            rank_weights: &rank_weights[row * top_k..(row + 1) * top_k],
            shared: if shared.is_empty() { &[] } else { &shared[row * d..(row + 1) * d] },
        });
    });
}

/// `x += (sum of ranked results, weighted, in rank order) + shared`.
struct AddExperts<'a> {
    x: &'a mut [f32],
    ranked: &'a [f32],
    rank_weights: &'a [f32],
    /// Empty without a shared expert.
    shared: &'a [f32],
}

/// Columns that are summed together, in registers.
const COLUMNS: usize = 128;

impl Loop for AddExperts<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let d = self.x.len();
        for (start, x) in (0..d).step_by(COLUMNS).zip(self.x.chunks_mut(COLUMNS)) {
            let mut sum = [0.0; COLUMNS];
            let sum = &mut sum[..x.len()];
            for (ranked, weight) in self.ranked.chunks_exact(d).zip(self.rank_weights) {
                add_scaled(sum, *weight, &ranked[start..]);
            }
            add_scaled(sum, 1.0, self.shared.get(start..).unwrap_or(&[]));
            add_scaled(x, 1.0, sum);
        }
    }
}

/// `out = factor * x`.
struct Scale<'a> {
    out: &'a mut [f32],
    factor: f32,
    x: &'a [f32],
}

impl Loop for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, x) in self.out.iter_mut().zip(self.x) {
            *out = self.factor * x;
        }
    }
}

/// [`softmax`] of one row.
struct Softmax<'a>(&'a mut [f32]);

impl Loop for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        softmax(self.0);
    }
}

/// `out = down(silu(gate r) * up r)` for `n` rows of the router's input.
fn expert<P: Products>(
    products: &mut P,
    scratch: &mut Scratch,
    matrices: ExpertMatrices<'_>,
    rows: Rows<'_>,
    n: usize,
) {
    let (ff, hidden) = (matrices.gate.layout.n_rows, matrices.down.layout.n_rows);
    let (gates, ups) = (&mut scratch.wide[..n * ff], &mut scratch.side[..n * ff]);
    let buffers = ExpertBuffers { gates, ups, inner: &mut scratch.inner };
    products.expert(matrices, &mut scratch.normed, rows, buffers, &mut scratch.out[..n * hidden]);
}
