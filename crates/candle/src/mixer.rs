//! A layer's mixer on the step's rows, part by part, and what becomes of the recurrent states.

use candle_core::Tensor;
use forerun_model::{LayerId, ModelShape};

use crate::error::Failure;
use crate::ops::rms_norm;
use crate::stack::CandleStack;
use crate::state::{Memory, Recurrent};
use crate::weights::{Attention, DeltaNet, Mixer};
use crate::{attention, delta_net};

/// Why a layer's memory is of its mixer's kind.
const MADE_ALIKE: &str = "weights and sequences are made of one shape";

impl CandleStack {
    /// Runs the layer's mixer on the step's rows and adds its output to the residual stream.
    pub(crate) fn mix(&mut self, layer: LayerId) -> Result<(), Failure> {
        let w = &self.weights.layers[layer.idx()];
        let normed = rms_norm(&self.step.flow().x, &w.attn_norm, self.weights.shape.norm_eps)?;
        let out = match &self.weights.layers[layer.idx()].mixer {
            Mixer::Attention(_) => self.attention(layer, &normed)?,
            Mixer::DeltaNet(_) => self.delta_net(layer, &normed)?,
        };
        let flow = self.step.flow();
        flow.x = (&flow.x + out)?;
        Ok(())
    }

    fn attention(&mut self, layer: LayerId, normed: &Tensor) -> Result<Tensor, Failure> {
        let (shape, w) = self.weights.attention(layer);
        let (current, flow) = self.step.split();
        let all = attention::project(w, shape, normed, &flow.turns)?;
        let mut out = Vec::with_capacity(current.parts().len());
        for part in current.parts() {
            let memory = &self.sequences[part.sequence].layers[layer.idx()];
            let Memory::Attention(memory) = memory else { unreachable!("{MADE_ALIKE}") };
            out.push(attention::attend(&shape.attention, self.machine.name, &all, part, memory)?);
        }
        w.output.times(&Tensor::cat(&out, 0)?)
    }

    fn delta_net(&mut self, layer: LayerId, normed: &Tensor) -> Result<Tensor, Failure> {
        let (shape, w) = self.weights.delta_net(layer);
        let net = shape.delta_net.as_ref().expect("a layer of this kind has its shape");
        let (current, flow) = self.step.split();
        let (all, gates) = delta_net::project(w, net, normed)?;
        let mut out = Vec::with_capacity(current.parts().len());
        for (i, part) in current.parts().iter().enumerate() {
            let memory = &self.sequences[part.sequence].layers[layer.idx()];
            let Memory::DeltaNet(old) = memory else { unreachable!("{MADE_ALIKE}") };
            let inputs = all.of(part.first..part.first + part.n_rows)?;
            if part.may_reject {
                flow.logs[i][layer.idx()] = Some(inputs.apart()?);
            }
            let (rows, new) = self.rule.run(w, shape, &inputs, old)?;
            flow.states[i][layer.idx()] = Some(new);
            out.push(rows);
        }
        let out = delta_net::gated(w, shape.norm_eps, &Tensor::cat(&out, 0)?, &gates)?;
        w.output.times(&out)
    }

    /// The recurrent states after the first `n_rows` rows of a part that may be rejected, per layer.
    pub(crate) fn replay(
        &mut self,
        part: usize,
        sequence: usize,
        n_rows: usize,
    ) -> Result<Vec<Option<Recurrent>>, Failure> {
        let Self { weights, sequences, step, rule, .. } = self;
        let logs = &step.flow().logs[part];
        let of = |(layer, memory): (LayerId, &Memory)| match (memory, &logs[layer.idx()]) {
            (Memory::DeltaNet(old), Some(log)) => {
                let (shape, w) = weights.delta_net(layer);
                Ok(Some(rule.run(w, shape, &log.of(0..n_rows)?, old)?.1))
            }
            _ => Ok(None),
        };
        weights.shape.layer_ids().zip(&sequences[sequence].layers).map(of).collect()
    }
}

impl crate::weights::DeviceWeights {
    /// # Panics
    /// When the layer has another mixer.
    fn attention(&self, layer: LayerId) -> (&ModelShape, &Attention) {
        let Mixer::Attention(w) = &self.layers[layer.idx()].mixer else { unreachable!("{MADE_ALIKE}") };
        (&self.shape, w)
    }

    /// # Panics
    /// When the layer has another mixer.
    fn delta_net(&self, layer: LayerId) -> (&ModelShape, &DeltaNet) {
        let Mixer::DeltaNet(w) = &self.layers[layer.idx()].mixer else { unreachable!("{MADE_ALIKE}") };
        (&self.shape, w)
    }
}
