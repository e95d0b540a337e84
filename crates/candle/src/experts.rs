//! The expert part of a layer: router, shared expert, routed experts, and their sum in rank order.

use candle_core::Tensor;
use forerun_compute::tensor::Matrix as HostMatrix;
use forerun_compute::{ComputeError, ExpertJob, Scores, ops, router};
use forerun_model::{ExpertLayout, LayerId, MatrixLayout, Routing};

use crate::CandleStack;
use crate::device::{Machine, read};
use crate::error::Failure;
use crate::matrix::Matrix;
use crate::ops::{rms_norm, sigmoid, silu_times};
use crate::step::Ranked;
use crate::weights::Expert;

impl CandleStack {
    /// Normalises the residual stream for the experts and asks the layer's router. The one place in a layer that waits for the device.
    pub(crate) fn route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), Failure> {
        let (shape, w) = (&self.weights.shape, &self.weights.layers[layer.idx()]);
        let (current, flow) = self.step.split();
        flow.normed = rms_norm(&flow.x, &w.post_norm, shape.norm_eps)?;
        let mut logits = read(&w.router.times(&flow.normed)?)?;
        // Rounding for a product with blocks makes a number of what is none.
        if w.router.rounds() && !read(&flow.normed)?.iter().all(|value| value.is_finite()) {
            return Err(ComputeError::NotFinite { what: "the router's input", layer }.into());
        }
        if let Some(in_slots) = &mut self.in_slots {
            in_slots.release()?;
        }
        routing.reset(shape.moe.top_k);
        for logits in logits.chunks_exact_mut(shape.moe.n_experts) {
            ops::softmax(logits);
            if !router::choose(logits, &shape.moe, &mut self.chosen) {
                return Err(ComputeError::NotFinite { what: "the router's input", layer }.into());
            }
            routing.push_row(&self.chosen);
        }
        routing.group();
        current.missing = current.n_rows() * shape.moe.top_k;
        flow.shared = None;
        flow.ranked = Ranked { weights: vec![0.0; current.missing], ..Ranked::default() };
        Ok(())
    }

    /// What `layer`'s router says of the residual stream as it is now.
    pub(crate) fn guess(&mut self, layer: LayerId, scores: &mut Scores) -> Result<(), Failure> {
        let (shape, w) = (&self.weights.shape, &self.weights.layers[layer.idx()]);
        let normed = rms_norm(&self.step.flow().x, &w.post_norm, shape.norm_eps)?;
        scores.layer = layer;
        scores.n_experts = shape.moe.n_experts;
        scores.probabilities = read(&w.guess_router().times(&normed)?)?;
        scores.probabilities.chunks_exact_mut(scores.n_experts).for_each(ops::softmax);
        Ok(())
    }

    /// `sigmoid(switch . r) * down(silu(gate r) * up r)` for every row, if the layer has a shared expert.
    pub(crate) fn shared_expert(&mut self, layer: LayerId) -> Result<(), Failure> {
        let Some(w) = &self.weights.layers[layer.idx()].shared else { return Ok(()) };
        let flow = self.step.flow();
        let switch = sigmoid(&w.switch.times(&flow.normed)?)?;
        flow.shared = Some(w.matrices.run(&flow.normed)?.broadcast_mul(&switch)?);
        Ok(())
    }

    /// Runs one routed expert on its rows and keeps the results by row and rank.
    #[expect(clippy::cast_possible_truncation, reason = "a step has far fewer than 2^32 results")]
    pub(crate) fn routed_expert(&mut self, job: &ExpertJob<'_>) -> Result<(), Failure> {
        let top_k = self.weights.shape.moe.top_k;
        let layout = &self.weights.experts[job.layer.idx()];
        let (current, flow) = self.step.split();
        let rows: Vec<_> = job.uses.iter().map(|u| u.row).collect();
        assert!(current.missing >= rows.len(), "an expert of {} ran twice", job.layer);
        check_slot(job, layout)?;
        if rows.is_empty() {
            return Ok(());
        }
        let in_slot = match &mut self.in_slots {
            Some(in_slots) => in_slots.run(job, layout, &flow.normed)?,
            None => None,
        };
        let out = if let Some(out) = in_slot {
            out
        } else {
            let expert = Expert::of(job, layout, &self.machine)?;
            if rows.iter().copied().eq(0..current.n_rows() as u32) {
                expert.run(&flow.normed)?
            } else {
                expert.run(&flow.normed.index_select(&self.machine.indices(&rows)?, 0)?)?
            }
        };
        for u in job.uses {
            let place = u.row as usize * top_k + u.rank as usize;
            flow.ranked.weights[place] = u.weight;
            flow.ranked.places.push(place as u32);
        }
        flow.ranked.outputs.push(out);
        current.missing -= rows.len();
        Ok(())
    }

    /// Adds the routed results in rank order, then the shared one if there is one, to the residual stream.
    pub(crate) fn add_experts(&mut self) -> Result<(), Failure> {
        let (hidden, top_k) = (self.weights.shape.hidden, self.weights.shape.moe.top_k);
        let (current, flow) = self.step.split();
        assert_eq!(current.missing, 0, "every expert of the routing runs before the layer is closed");
        let n = current.n_rows();
        let results = flow.ranked.in_order(&self.machine)?.reshape((n, top_k, hidden))?;
        let weights = self.machine.vector(&flow.ranked.weights)?.reshape((n, top_k, 1))?;
        let results = results.broadcast_mul(&weights)?;
        let rank = |rank| -> Result<Tensor, Failure> { Ok(results.narrow(1, rank, 1)?.squeeze(1)?) };
        let mut sum = rank(0)?;
        for i in 1..top_k {
            sum = (sum + rank(i)?)?;
        }
        if let Some(shared) = flow.shared.take() {
            sum = (sum + shared)?;
        }
        flow.x = (&flow.x + sum)?;
        flow.ranked = Ranked::default();
        Ok(())
    }
}

impl Ranked {
    /// All results, by place.
    #[expect(clippy::cast_possible_truncation, reason = "a step has far fewer than 2^32 results")]
    fn in_order(&self, machine: &Machine) -> Result<Tensor, Failure> {
        let mut order = vec![0; self.places.len()];
        for (i, &place) in self.places.iter().enumerate() {
            order[place as usize] = i as u32;
        }
        let all = Tensor::cat(&self.outputs, 0)?;
        Ok(all.index_select(&machine.indices(&order)?, 0)?)
    }
}

/// Where the matrices begin, and what they are.
fn parts(job: &ExpertJob<'_>, layout: &ExpertLayout) -> [(usize, MatrixLayout); 3] {
    [(job.parts.gate, layout.gate), (job.parts.up, layout.up), (job.parts.down, layout.down)]
}

fn check_slot(job: &ExpertJob<'_>, layout: &ExpertLayout) -> Result<(), ComputeError> {
    let slot_bytes = job.weights.bytes().len();
    let ends = parts(job, layout).map(|(at, matrix)| at.saturating_add(matrix.bytes()));
    let need_bytes = ends.into_iter().max().unwrap_or(0);
    if need_bytes > slot_bytes {
        return Err(ComputeError::Slot { layer: job.layer, need_bytes, slot_bytes });
    }
    Ok(())
}

impl Expert {
    /// Copies an expert out of its slot, which has all of it.
    fn of(job: &ExpertJob<'_>, layout: &ExpertLayout, machine: &Machine) -> Result<Self, Failure> {
        let slot = job.weights.bytes();
        let [gate, up, down] = parts(job, layout).map(|(at, layout)| {
            Matrix::new(HostMatrix { layout, bytes: &slot[at..at + layout.bytes()] }, machine)
        });
        if machine.reads_slots {
            // The slot may be filled anew as soon as its lease is gone, whatever became of the copies.
            machine.device.synchronize()?;
        }
        Ok(Self { gate: gate?, up: up?, down: down? })
    }

    /// `down(silu(gate x) * up x)`.
    pub(crate) fn run(&self, x: &Tensor) -> Result<Tensor, Failure> {
        self.down.times(&silu_times(&self.gate.times(x)?, &self.up.times(x)?)?)
    }
}
