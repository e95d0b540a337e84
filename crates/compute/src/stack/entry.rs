//! How a step of a prediction block begins.

use super::{Norm, Stack};
use crate::ComputeError;
use crate::activation::{Activations, Rows};
use crate::backend::{Backend, Step};
use crate::products::{Product, Products};

impl<P: Products> Stack<P> {
    /// Begins a step of a prediction block: each row is a token and the model's state after its last norm at the position
    /// before, `states` is `[rows, hidden]`. Takes the place of [`Backend::begin`].
    ///
    /// # Errors
    /// As [`Backend::begin`].
    ///
    /// # Panics
    /// When these are no weights of a prediction block, or there aren't as many states as rows.
    pub fn enter(&mut self, step: &Step<'_>, states: &[f32]) -> Result<(), ComputeError> {
        self.begin(step)?;
        let Self { weights, products, scratch, entry, .. } = self;
        let w = weights.entry.as_ref().expect("weights of a prediction block");
        let (n, d, eps, isa) =
            (step.rows.len(), weights.shape.hidden, weights.shape.norm_eps, products.isa());
        assert_eq!(states.len(), n * d, "a state for every row");
        let rows = entry.start(n, 2 * d).chunks_exact_mut(2 * d);
        for ((both, embedded), state) in rows.zip(scratch.x.chunks_exact(d)).zip(states.chunks_exact(d)) {
            let (token, rest) = both.split_at_mut(d);
            isa.run(Norm { x: embedded, weight: &w.token_norm, eps, out: token });
            isa.run(Norm { x: state, weight: &w.state_norm, eps, out: rest });
        }
        let mut work = [Product { matrix: w.matrix.matrix(), out: &mut scratch.x[..n * d] }];
        products.multiply(entry, Rows::All, &mut work);
        Ok(())
    }

    /// Bytes of the buffer that [`Self::enter`] fills, for steps of up to `rows_max` rows of `hidden` values.
    pub fn entry_bytes(rows_max: usize, hidden: usize) -> u64 {
        Activations::bytes(rows_max, 2 * hidden) as u64
    }
}
