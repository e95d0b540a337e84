//! Matrix times rows: the one thing that the reference and the fast backend do differently.
//!
//! [`Exact`] decodes weights to f32 and multiplies plainly: the definition of right. [`Quantised`] multiplies the
//! stored blocks, with activations in the form that the weight type wants. Everything around the products is one
//! code, [`crate::stack`], so that what the goldens prove of one holds for the other.

mod rounded;

use crate::activation::{ActivationRow, Activations, Form};
use crate::dequant::dequantise;
use crate::dot::Dot;
use crate::ops::dot;
use crate::tensor::Matrix;
use crate::workers::Workers;

/// Matrix products over rows of activations.
pub trait Products {
    /// `out[i, r] = matrix[r] . x[rows[i]]`: one output row per entry of `rows`.
    ///
    /// # Panics
    /// When sizes don't fit each other.
    fn multiply(&mut self, matrix: Matrix<'_>, x: &mut Activations, rows: Rows<'_>, out: &mut [f32]);

    /// The threads that work may be shared among.
    fn workers(&self) -> &Workers;
}

/// Which rows of the activations a product takes.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// All of them.
    All,
    /// These, by index.
    Some(&'a [u32]),
}

impl Rows<'_> {
    /// How many rows these are, of `n_rows` in all.
    pub fn len(self, n_rows: usize) -> usize {
        match self {
            Self::All => n_rows,
            Self::Some(rows) => rows.len(),
        }
    }

    /// The index of the `i`-th of them.
    pub fn get(self, i: usize) -> usize {
        match self {
            Self::All => i,
            Self::Some(rows) => rows[i] as usize,
        }
    }
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
}

impl Products for Exact {
    fn multiply(&mut self, matrix: Matrix<'_>, x: &mut Activations, rows: Rows<'_>, out: &mut [f32]) {
        let (quant, n_out) = (matrix.layout.quant, matrix.layout.n_rows);
        let n = rows.len(x.n_rows());
        assert_eq!(out.len(), n * n_out, "an output for every row");
        if n == 0 {
            return;
        }
        let form = if self.rounding == Rounding::None { Form::F32 } else { matrix.form() };
        x.prepare(form);
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

    fn workers(&self) -> &Workers {
        &self.workers
    }
}

/// Products on the stored blocks, with the best kernels of this CPU or those given.
pub struct Quantised {
    kernels: Box<dyn Dot>,
    workers: Workers,
    /// Products of several rows, transposed: `[matrix row, activation row]`.
    columns: Vec<f32>,
}

impl Quantised {
    /// Products with `kernels`, shared among `workers`.
    pub fn new(kernels: Box<dyn Dot>, workers: Workers) -> Self {
        Self { kernels, workers, columns: Vec::new() }
    }

    /// The kernels' name.
    pub fn kernels(&self) -> &'static str {
        self.kernels.name()
    }
}

impl Products for Quantised {
    fn multiply(&mut self, matrix: Matrix<'_>, x: &mut Activations, rows: Rows<'_>, out: &mut [f32]) {
        let n_out = matrix.layout.n_rows;
        let n = rows.len(x.n_rows());
        assert_eq!(out.len(), n * n_out, "an output for every row");
        if n == 0 {
            return;
        }
        let (form, quant, kernels) = (matrix.form(), matrix.layout.quant, &*self.kernels);
        x.prepare(form);
        let x = &*x;
        let work = matrix.layout.bytes() * n;
        let row = |r: usize, out: &mut [f32]| {
            let weights = matrix.row(r);
            for (i, out) in out.iter_mut().enumerate() {
                *out = kernels.dot(quant, weights, x.row(rows.get(i), form));
            }
        };
        if n == 1 {
            return self.workers.rows(out, 1, work, row);
        }
        self.columns.resize(out.len(), 0.0);
        self.workers.rows(&mut self.columns, n, work, row);
        for (r, column) in self.columns.chunks_exact(n).enumerate() {
            for (i, value) in column.iter().enumerate() {
                out[i * n_out + r] = *value;
            }
        }
    }

    fn workers(&self) -> &Workers {
        &self.workers
    }
}
