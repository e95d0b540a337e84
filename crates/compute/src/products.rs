//! Matrix times rows: the one thing that the reference and the fast backend do differently. What a device has of its own beside them,
//! it may do as well: the recurrence of a delta-net, and the end of a layer.
//!
//! [`Exact`] decodes weights to f32 and multiplies plainly: the definition of right. [`Quantised`] multiplies the
//! stored blocks, with activations in the form that the weight type wants. Everything around the products is one
//! code, [`crate::stack`], so that what the goldens prove of one holds for the other.

mod quantised;
mod rounded;

use crate::activation::{ActivationRow, Activations, Form, Rows};
use crate::dequant::dequantise;
use crate::kernels::Isa;
use crate::ops::{dot, silu_times};
use crate::stack::moe::close;
use crate::stack::recurrence::recur;
use crate::stack::{Closing, Recurrence};
use crate::tensor::Matrix;
use crate::workers::Workers;

pub use quantised::Quantised;

/// One matrix and where its products go.
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix.
    pub matrix: Matrix<'a>,
    /// `[rows, matrix rows]`.
    pub out: &'a mut [f32],
}

/// The matrices of an expert.
#[derive(Clone, Copy, Debug)]
pub struct ExpertMatrices<'a> {
    /// `[ff, hidden]`.
    pub gate: Matrix<'a>,
    /// `[ff, hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden, ff]`.
    pub down: Matrix<'a>,
}

/// What an expert computes on the way.
#[derive(Debug)]
pub struct ExpertBuffers<'a> {
    /// `[rows, ff]`.
    pub gates: &'a mut [f32],
    /// `[rows, ff]`.
    pub ups: &'a mut [f32],
    /// Becomes `silu(gate) * up`.
    pub inner: &'a mut Activations,
}

/// Matrix products over rows of activations.
pub trait Products {
    /// `out[i, r] = matrix[r] . x[rows[i]]` for each of the products: one output row per entry of `rows`.
    ///
    /// # Panics
    /// When sizes don't fit each other.
    fn multiply(&mut self, x: &mut Activations, rows: Rows<'_>, products: &mut [Product<'_>]);

    /// `out = down(silu(gate x) * up x)` for the entries of `rows`.
    ///
    /// # Panics
    /// When sizes don't fit each other.
    fn expert(
        &mut self,
        expert: ExpertMatrices<'_>,
        x: &mut Activations,
        rows: Rows<'_>,
        buffers: ExpertBuffers<'_>,
        out: &mut [f32],
    ) {
        let ExpertBuffers { gates, ups, inner } = buffers;
        let gate = Product { matrix: expert.gate, out: &mut *gates };
        self.multiply(x, rows, &mut [gate, Product { matrix: expert.up, out: &mut *ups }]);
        silu_times(gates, ups);
        let n_cols = expert.gate.layout.n_rows;
        inner.start(gates.len() / n_cols, n_cols).copy_from_slice(gates);
        self.multiply(inner, Rows::All, &mut [Product { matrix: expert.down, out }]);
    }

    /// What a delta-net does between its projections and its output matrix.
    ///
    /// # Panics
    /// When sizes don't fit each other.
    fn recur(&mut self, job: Recurrence<'_>)
    where
        Self: Sized,
    {
        recur(self, job);
    }

    /// Adds the experts' results of a layer to the residual stream.
    ///
    /// # Panics
    /// When sizes don't fit each other.
    fn close(&mut self, job: Closing<'_>)
    where
        Self: Sized,
    {
        close(self, job);
    }

    /// The threads that work may be shared among.
    fn workers(&self) -> &Workers;

    /// What loops are compiled for.
    fn isa(&self) -> Isa;
}

/// Which activations [`Exact`] multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// f32, as they are: exact dequantised values.
    None,
    /// Rounded to 8 bits where [`Quantised`] rounds them, to compare the two.
    LikeQuantised,
}

/// Plain f32 products of decoded weights, on one thread.
#[derive(Debug)]
pub struct Exact {
    rounding: Rounding,
    workers: Workers,
    weights: Vec<f32>,
}

impl Exact {
    /// Exact products with activations rounded as `rounding` says.
    pub fn new(rounding: Rounding) -> Self {
        Self { rounding, workers: Workers::single(), weights: Vec::new() }
    }

    fn product(&mut self, x: &mut Activations, rows: Rows<'_>, product: &mut Product<'_>) {
        let Product { matrix, out } = product;
        let (quant, n_out) = (matrix.layout.quant, matrix.layout.n_rows);
        let n = rows.len(x.n_rows());
        assert_eq!(out.len(), n * n_out, "an output for every row");
        if n == 0 {
            return;
        }
        let form = if self.rounding == Rounding::None { Form::F32 } else { matrix.form() };
        x.prepare(form, self.isa(), &self.workers);
        self.weights.resize(matrix.layout.n_cols, 0.0);
        for r in 0..n_out {
            if form == Form::F32 {
                dequantise(quant, matrix.row(r), &mut self.weights);
            }
            for i in 0..n {
                out[i * n_out + r] = match x.row(rows.get(i), form) {
                    ActivationRow::F32(x) => dot(&self.weights, x),
                    ActivationRow::Q8(x) => rounded::dot(quant, matrix.row(r), x),
                };
            }
        }
    }
}

impl Products for Exact {
    fn multiply(&mut self, x: &mut Activations, rows: Rows<'_>, products: &mut [Product<'_>]) {
        for product in products {
            self.product(x, rows, product);
        }
    }

    fn workers(&self) -> &Workers {
        &self.workers
    }

    fn isa(&self) -> Isa {
        Isa::BASELINE
    }
}
