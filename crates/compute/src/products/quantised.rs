//! Products on the stored blocks: rows of matrices are shared among the threads, an expert is one call of them.

#![expect(unsafe_code, reason = "threads write columns of the same results, each its own")]

use std::fmt;

use super::{ExpertBuffers, ExpertMatrices, Product, Products};
use crate::activation::{Activations, Operand, Rows};
use crate::kernels::{Isa, Kernels, Loop, SharedColumns};
use crate::ops::silu;
use crate::tensor::Matrix;
use crate::workers::{Share, Workers};

/// Matrices whose products one call of the threads computes.
const PRODUCTS_MAX: usize = 4;
/// Rows of a matrix are cut between threads only at multiples of what kernels take at once: few for few activations.
const fn rows_unit(n: usize) -> usize {
    if n < 8 { 4 } else { 16 }
}

/// Products on the stored blocks, with the best kernels of this CPU or those given.
pub struct Quantised {
    kernels: Box<dyn Kernels>,
    workers: Workers,
}

impl Quantised {
    /// Products with `kernels`, shared among `workers`.
    pub fn new(kernels: Box<dyn Kernels>, workers: Workers) -> Self {
        Self { kernels, workers }
    }

    /// The kernels' name.
    pub fn kernels(&self) -> &'static str {
        self.kernels.name()
    }
}

/// One thread's part of a product.
///
/// # Safety
/// Until the next barrier nobody else touches the columns of `out` that are this thread's.
unsafe fn part(
    kernels: &dyn Kernels,
    share: Share<'_>,
    matrix: Matrix<'_>,
    x: Operand<'_>,
    out: SharedColumns<'_>,
) {
    let range = share.range(matrix.layout.n_rows, rows_unit(x.len()));
    if range.is_empty() {
        return;
    }
    // SAFETY: shares don't overlap; the rest is the caller's promise.
    let mut out = unsafe { out.part(range.clone()) };
    kernels.multiply(matrix.rows(range.start, range.end), x, &mut out);
}

/// `out = silu(gate) * up`.
struct SiluProduct<'a> {
    gates: &'a [f32],
    ups: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for SiluProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((out, &gate), up) in self.out.iter_mut().zip(self.gates).zip(self.ups) {
            *out = silu(gate) * up;
        }
    }
}

impl fmt::Debug for Quantised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quantised").field("kernels", &self.kernels()).field("workers", &self.workers).finish()
    }
}

impl Products for Quantised {
    fn multiply(&mut self, x: &mut Activations, rows: Rows<'_>, products: &mut [Product<'_>]) {
        let n = rows.len(x.n_rows());
        if n == 0 {
            return;
        }
        for product in &*products {
            x.prepare(product.matrix.form(), self.isa(), &self.workers);
        }
        let x = &*x;
        for products in products.chunks_mut(PRODUCTS_MAX) {
            let work_bytes: usize = products.iter().map(|p| p.matrix.layout.bytes() * n).sum();
            let mut jobs = [None; PRODUCTS_MAX];
            for (job, product) in jobs.iter_mut().zip(products) {
                let out = SharedColumns::new(product.out, product.matrix.layout.n_rows);
                *job = Some((product.matrix, out));
            }
            let kernels = &*self.kernels;
            self.workers.share(work_bytes, |share| {
                for (matrix, out) in jobs.iter().flatten() {
                    // SAFETY: this call of the threads has these results for itself, and each thread its own columns.
                    unsafe { part(kernels, share, *matrix, x.operand(matrix.form(), rows), *out) };
                }
            });
        }
    }

    fn expert(
        &mut self,
        expert: ExpertMatrices<'_>,
        x: &mut Activations,
        rows: Rows<'_>,
        buffers: ExpertBuffers<'_>,
        out: &mut [f32],
    ) {
        let ExpertMatrices { gate, up, down } = expert;
        let n = rows.len(x.n_rows());
        if n == 0 {
            return;
        }
        for matrix in [gate, up] {
            x.prepare(matrix.form(), self.isa(), &self.workers);
        }
        let x = &*x;
        let ExpertBuffers { gates, ups, inner } = buffers;
        inner.start(n, gate.layout.n_rows);
        let inner = inner.coding(down.form());
        let gates = SharedColumns::new(gates, gate.layout.n_rows);
        let ups = SharedColumns::new(ups, up.layout.n_rows);
        let out = SharedColumns::new(out, down.layout.n_rows);
        let work_bytes = n * (gate.layout.bytes() + up.layout.bytes() + down.layout.bytes());
        let (isa, kernels) = (self.isa(), &*self.kernels);
        self.workers.share(work_bytes, |share| {
            // SAFETY: this call of the threads has all buffers for itself. Between two barriers each thread writes its
            // own columns or groups, and reads only what was written before the last one.
            unsafe {
                part(kernels, share, gate, x.operand(gate.form(), rows), gates);
                part(kernels, share, up, x.operand(up.form(), rows), ups);
                share.wait();
                let groups = share.range(inner.n_groups(), 1);
                let range = inner.range(groups.clone());
                let (gates, ups) = (gates.values(range.clone()), ups.values(range));
                isa.run(SiluProduct { gates, ups, out: inner.values(groups.clone()) });
                inner.code(groups, isa);
                share.wait();
                part(kernels, share, down, inner.operand(), out);
            }
        });
    }

    fn workers(&self) -> &Workers {
        &self.workers
    }

    fn isa(&self) -> Isa {
        self.kernels.isa()
    }
}
