//! Products of one weight row and one activation row: a scalar twin, and kernels that give the same bits.
//!
//! The order of sums is part of the contract. With 8-bit activations a block's products are summed as integers,
//! exactly, and the blocks' results are added as f32 from first to last, each as
//! `acc + ((d * dx) * sum - (dmin * dx) * min_sum)`. With f32 activations lane `i` of [`LANES`] adds the products of
//! columns `i`, `i + 32`, ...; then the upper half of the lanes is added to the lower until one is left. Products and
//! sums are rounded one by one (no fused multiply-add), so that every instruction set gives the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_blocks;
mod scalar;

use forerun_model::QuantType;

use crate::activation::ActivationRow;
use crate::dequant::dequantise;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
pub use scalar::Scalar;

/// Partial sums of an f32 product.
pub const LANES: usize = 32;

/// A kernel set. Holding one proves that this CPU can run it.
pub trait Dot: Send + Sync {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// The product of a row of weights (whole blocks of `quant`, at any alignment) and a row of activations in the
    /// form that [`crate::activation::Form::of`] names.
    ///
    /// # Panics
    /// When the lengths don't fit each other, or the form isn't the type's.
    fn dot(&self, quant: QuantType, weights: &[u8], row: ActivationRow<'_>) -> f32;
}

/// The fastest kernels that this CPU can run.
pub fn best() -> Box<dyn Dot> {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = Avx2::detect() {
        return Box::new(avx2);
    }
    Box::new(Scalar)
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

/// Walks a row of any decodable type in pieces of up to 256 values: `add` sees their f32 values and the activations.
pub(crate) fn decoded(quant: QuantType, weights: &[u8], x: &[f32], mut add: impl FnMut(&[f32], &[f32])) {
    const PIECE: usize = 256;
    let bytes = PIECE / quant.block_len() * quant.block_bytes();
    assert_eq!(quant.row_bytes(x.len()), Some(weights.len()), "weights and activations of one length");
    let mut values = [0.0; PIECE];
    for (weights, x) in weights.chunks(bytes).zip(x.chunks(PIECE)) {
        dequantise(quant, weights, &mut values[..x.len()]);
        add(&values[..x.len()], x);
    }
}

#[cfg(test)]
mod tests;
