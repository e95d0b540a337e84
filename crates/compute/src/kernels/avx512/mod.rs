//! AVX-512 with VNNI: blocks are unpacked once for all rows of activations.
//!
//! Up to a few rows of activations, four matrix rows are walked together and each row's products are reduced where they
//! are ([`rows`]). From [`TILE_ROWS_MIN`] rows on, sixteen matrix rows are unpacked into a tile whose lanes are matrix
//! rows ([`tile`]), so that nothing is left to reduce. Both sum a block exactly and so give the same bits.

#![expect(unsafe_code, reason = "CPU intrinsics; a value of `Avx512` proves that the CPU has them")]

mod blocks;
mod floats;
mod narrow;
mod rows;
mod tile;

use forerun_model::QuantType;

use super::{Columns, Isa, Kernels, check_sizes};
use crate::activation::Operand;
use crate::tensor::Matrix;
use blocks::{Q3K, Q4K, Q5K, Q6K};

/// Rows of activations from which on a tile pays for being made.
const TILE_ROWS_MIN: usize = 8;

/// Proof that this CPU has AVX-512 (F, BW, DQ, VL) and VNNI: [`Avx512::detect`] is the only way to get one.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The kernels, where the CPU can run them.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

impl Kernels for Avx512 {
    fn name(&self) -> &'static str {
        "avx512-vnni"
    }

    fn isa(&self) -> Isa {
        Isa::from(*self)
    }

    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
        check_sizes(matrix, x, out);
        let is_tile = x.len() >= TILE_ROWS_MIN;
        // SAFETY: `self` exists, so `detect` saw all that these functions are compiled for; sizes fit.
        unsafe {
            match matrix.layout.quant {
                QuantType::Q3_K if is_tile => tile::multiply::<Q3K>(matrix, x, out),
                QuantType::Q4_K if is_tile => tile::multiply::<Q4K>(matrix, x, out),
                QuantType::Q5_K if is_tile => tile::multiply::<Q5K>(matrix, x, out),
                QuantType::Q6_K if is_tile => tile::multiply::<Q6K>(matrix, x, out),
                QuantType::Q3_K => rows::multiply::<Q3K>(matrix, x, out),
                QuantType::Q4_K => rows::multiply::<Q4K>(matrix, x, out),
                QuantType::Q5_K => rows::multiply::<Q5K>(matrix, x, out),
                QuantType::Q6_K => rows::multiply::<Q6K>(matrix, x, out),
                QuantType::Q8_0 => narrow::multiply(matrix, x, out),
                _ => floats::multiply(matrix, x, out),
            }
        }
    }
}
