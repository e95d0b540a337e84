//! A model of more layers, or fewer, than a trace has.

use forerun_model::LayerId;

use crate::Trace;

/// Layers that are never repeated: the first guesses from the embedding, and the second is known to be hard to guess.
const N_SINGLE: usize = 2;

/// Where the routing of each layer of a model is found in a trace.
///
/// The first two layers stand for themselves; the others are stretched evenly, so that a model's late layers remain as
/// local as the trace's late ones. Layers that share one of the trace are different tokens of it, a fixed distance
/// apart: nothing that one of them wants says anything about the other.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    /// For each layer of the model: the layer of the trace, and how many tokens ahead.
    layers: Vec<(LayerId, usize)>,
    n_tokens: usize,
}

impl Stretch {
    pub(super) fn new(trace: &Trace, n_layers: usize) -> Self {
        let from = |layer: usize| match layer {
            _ if n_layers == trace.n_layers => layer,
            _ if layer < N_SINGLE || trace.n_layers <= N_SINGLE => layer % trace.n_layers,
            _ => N_SINGLE + (layer - N_SINGLE) * (trace.n_layers - N_SINGLE) / (n_layers - N_SINGLE),
        };
        let copy = |layer: usize| (0..layer).filter(|&other| from(other) == from(layer)).count();
        let n_copies = 1 + (0..n_layers).map(copy).max().unwrap_or(0);
        let layer = |layer| {
            let id = LayerId(u16::try_from(from(layer)).unwrap_or(u16::MAX));
            (id, copy(layer) * trace.n_tokens / n_copies)
        };
        Self { layers: (0..n_layers).map(layer).collect(), n_tokens: trace.n_tokens }
    }

    /// Token and layer of the trace that stand for `layer` of the model at `token`.
    pub(super) fn at(&self, token: usize, layer: LayerId) -> (usize, LayerId) {
        let (from, ahead) = self.layers[layer.idx()];
        ((token + ahead) % self.n_tokens, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceShape;

    fn stretch(n_from: usize, n_layers: u16) -> Vec<(usize, u16)> {
        let shape = TraceShape { n_layers: n_from, n_experts: 1, top_k: 1 };
        let trace = Trace::new(shape, vec![0; n_from * 12]).unwrap();
        let stretch = Stretch::new(&trace, n_layers.into());
        (0..n_layers).map(|layer| stretch.at(10, LayerId(layer))).map(|(t, l)| (t, l.0)).collect()
    }

    #[test]
    fn as_many_layers_are_themselves() {
        assert_eq!(stretch(3, 3), [(10, 0), (10, 1), (10, 2)]);
    }

    #[test]
    fn later_layers_are_repeated_at_other_tokens() {
        assert_eq!(stretch(4, 8), [(10, 0), (10, 1), (10, 2), (2, 2), (6, 2), (10, 3), (2, 3), (6, 3)]);
    }

    #[test]
    fn fewer_layers_leave_some_out() {
        assert_eq!(stretch(6, 4), [(10, 0), (10, 1), (10, 2), (10, 4)]);
        assert_eq!(stretch(6, 1), [(10, 0)]);
    }

    #[test]
    fn one_layer_stands_for_many() {
        assert_eq!(stretch(1, 3), [(10, 0), (2, 0), (6, 0)]);
    }
}
