//! Products of a matrix's rows with rows of activations: a scalar twin, and kernels that give the same bits.
//!
//! The order of sums is part of the contract, for one activation row and for many. With 8-bit activations a block's
//! products are summed as integers, exactly, and the blocks' results are added as f32 from first to last, each as
//! `acc + ((d * dx) * sum - (dmin * dx) * min_sum)`. With f32 activations lane `i` of [`LANES`] adds the products of
//! columns `i`, `i + 32`, ...; then the upper half of the lanes is added to the lower until one is left. Products and
//! sums are rounded one by one (no fused multiply-add), so that every instruction set gives the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_blocks;
#[cfg(target_arch = "x86_64")]
mod avx2_f32;
#[cfg(target_arch = "x86_64")]
mod avx2_ops;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod columns;
mod floats;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_blocks;
#[cfg(target_arch = "aarch64")]
mod neon_f32;
#[cfg(target_arch = "aarch64")]
mod neon_ops;
#[cfg(target_arch = "aarch64")]
mod neon_pairs;
#[cfg(target_arch = "aarch64")]
mod neon_unpack;
mod scalar;
mod scales;
mod tiles;

use crate::activation::Operand;
use crate::tensor::Matrix;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use columns::{Columns, SharedColumns};
pub use isa::{Isa, Loop};
#[cfg(target_arch = "aarch64")]
pub use neon::{Neon, NeonDot, NeonI8mm};
pub use scalar::Scalar;

/// Partial sums of an f32 product.
pub const LANES: usize = 32;

/// A kernel set. Holding one proves that this CPU can run it.
pub trait Kernels: Send + Sync {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// The instruction set that loops without a kernel of their own are compiled for.
    fn isa(&self) -> Isa;

    /// `out[i][r] = matrix[r] . x[i]`: the product of every row of the matrix (whole blocks, at any alignment) with
    /// every row of activations, which are in the form that [`crate::activation::Form::of`] names. A product has the
    /// same bits whatever other rows are computed with it.
    ///
    /// # Panics
    /// When the sizes don't fit each other, or the form isn't the type's.
    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>);
}

/// The fastest kernels that this CPU can run.
pub fn best() -> Box<dyn Kernels> {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx512) = Avx512::detect() {
        return Box::new(avx512);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = Avx2::detect() {
        return Box::new(avx2);
    }
    #[cfg(target_arch = "aarch64")]
    {
        if let Some(i8mm) = NeonI8mm::detect() {
            return Box::new(i8mm);
        }
        if let Some(dot) = NeonDot::detect() {
            return Box::new(dot);
        }
        if let Some(neon) = Neon::detect() {
            return Box::new(neon);
        }
    }
    Box::new(Scalar)
}

/// Checks that matrix, activations and results fit each other, once for a whole product.
fn check_sizes(matrix: Matrix<'_>, x: Operand<'_>, out: &Columns<'_>) {
    let layout = matrix.layout;
    assert_eq!(matrix.bytes.len(), layout.bytes(), "exactly the matrix's bytes");
    assert_eq!((out.n_rows(), out.width()), (x.len(), layout.n_rows), "a result for every pair of rows");
    assert_eq!(x.n_cols(), layout.n_cols, "weights and activations of one length");
    assert_eq!(x.form(), matrix.form(), "activations in the form of {}", layout.quant);
}

/// What one block of 256 weights adds: `d * sum - dmin * min_sum`, before the activations' scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockSum {
    pub(crate) d: f32,
    pub(crate) dmin: f32,
    pub(crate) sum: i32,
    pub(crate) min_sum: i32,
}

impl BlockSum {
    /// Adds this block to a row's sum; `scale` is the activations'.
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "the rounding is the same in every kernel")]
    pub(crate) fn add_to(self, acc: f32, scale: f32) -> f32 {
        acc + ((self.d * scale) * self.sum as f32 - (self.dmin * scale) * self.min_sum as f32)
    }
}

/// Adds the upper half of the lanes to the lower until one is left.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests;
