//! The step under way on a device, and room for it.

use candle_core::Tensor;
use forerun_compute::stepping::Current;

use crate::delta_net::Inputs;
use crate::ops::Turns;
use crate::state::Recurrent;

/// A step, or room for one of up to `rows_max` rows.
pub(crate) struct Running {
    /// Most rows.
    pub(crate) rows_max: usize,
    /// Whose rows it has, and how far it has come.
    pub(crate) current: Current,
    /// Rows whose logits are wanted.
    pub(crate) wanted: Vec<u32>,
    /// What flows through the layers; there since `begin`.
    flow: Option<Flow>,
}

/// What flows through the layers.
pub(crate) struct Flow {
    /// The residual stream, `[rows, hidden]`.
    pub(crate) x: Tensor,
    /// Input of the router and all experts, `[rows, hidden]`.
    pub(crate) normed: Tensor,
    pub(crate) turns: Turns,
    /// Output of the shared expert, `[rows, hidden]`.
    pub(crate) shared: Option<Tensor>,
    /// Outputs of the routed experts of this layer, in the order in which they came.
    pub(crate) ranked: Ranked,
    /// Outputs of the tapped layers so far, `[rows, hidden]`.
    pub(crate) tapped: Vec<Tensor>,
    /// What recurrent layers will remember, per part and layer.
    pub(crate) states: Vec<Vec<Option<Recurrent>>>,
    /// Their inputs where fewer rows may be accepted, per part and layer.
    pub(crate) logs: Vec<Vec<Option<Inputs>>>,
}

/// Results of experts by row and rank, whatever their order.
#[derive(Default)]
pub(crate) struct Ranked {
    /// `row * top_k + rank` of every row of every tensor.
    pub(crate) places: Vec<u32>,
    /// Each `[rows that want the expert, hidden]`.
    pub(crate) outputs: Vec<Tensor>,
    /// `[rows, top_k]`.
    pub(crate) weights: Vec<f32>,
}

impl Running {
    pub(crate) fn new(rows_max: usize, n_sequences: usize) -> Self {
        let current = Current::with_capacity(n_sequences);
        Self { rows_max, current, wanted: Vec::with_capacity(rows_max), flow: None }
    }

    /// Forgets the step and what it held on the device.
    pub(crate) fn abandon(&mut self) {
        self.current.abandon();
        self.flow = None;
    }

    /// `flow` starts through the layers.
    pub(crate) fn start(&mut self, flow: Flow) {
        self.flow = Some(flow);
    }

    /// # Panics
    /// When there is no step: the caller broke the order of calls.
    pub(crate) fn flow(&mut self) -> &mut Flow {
        self.flow.as_mut().expect("begin() comes first")
    }

    /// The step's bookkeeping beside what flows.
    ///
    /// # Panics
    /// As [`Self::flow`].
    pub(crate) fn split(&mut self) -> (&mut Current, &mut Flow) {
        (&mut self.current, self.flow.as_mut().expect("begin() comes first"))
    }
}
