//! How a step of a prediction block begins.

use candle_core::Tensor;
use forerun_compute::{Backend, ComputeError, Step};

use crate::CandleStack;
use crate::error::Failure;
use crate::ops::rms_norm;

impl CandleStack {
    /// Begins a step of a prediction block, as [`Stack::enter`](forerun_compute::Stack::enter): each row is a token and the model's
    /// state after its last norm at the position before, `states` is `[rows, hidden]`.
    ///
    /// # Errors
    /// As [`Backend::begin`].
    ///
    /// # Panics
    /// When these are no weights of a prediction block, or there aren't as many states as rows.
    pub fn enter(&mut self, step: &Step<'_>, states: &[f32]) -> Result<(), ComputeError> {
        self.begin(step)?;
        let hidden = self.weights.shape.hidden;
        assert_eq!(states.len(), step.rows.len() * hidden, "a state for every row");
        let entered = self.entered(states);
        entered.map_err(|failure| {
            self.step.abandon();
            failure.on(self.machine.name)
        })
    }

    fn entered(&mut self, states: &[f32]) -> Result<(), Failure> {
        let (w, eps) = (&self.weights, self.weights.shape.norm_eps);
        let entry = w.entry.as_ref().expect("weights of a prediction block");
        let flow = self.step.flow();
        let token = rms_norm(&flow.x, &entry.token_norm, eps)?;
        let state = rms_norm(&self.machine.rows(states, w.shape.hidden)?, &entry.state_norm, eps)?;
        flow.x = entry.matrix.times(&Tensor::cat(&[token, state], 1)?)?;
        Ok(())
    }
}
