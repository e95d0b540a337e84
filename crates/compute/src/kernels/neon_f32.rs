//! NEON: the lanes of products with f32 activations.

use std::arch::aarch64::float32x4_t;

use super::LANES;
use super::floats::Floats;
use super::neon_ops::Neon;

/// Registers of four lanes.
const REGISTERS: usize = LANES / 4;

impl Floats for Neon {
    type Lanes = [float32x4_t; REGISTERS];

    #[inline(always)]
    fn zeros(self) -> Self::Lanes {
        [self.splat_f32(0.0); REGISTERS]
    }

    #[inline(always)]
    fn load_f32(self, words: &[u8; 4 * LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            *lanes = self.bits_f32(&words.as_chunks().0[i]);
        }
        lanes
    }

    #[inline(always)]
    fn load_f16(self, words: &[u8; 2 * LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            *lanes = self.f16_to_f32(&words.as_chunks().0[i]);
        }
        lanes
    }

    #[inline(always)]
    fn load_bf16(self, words: &[u8; 2 * LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            *lanes = self.bf16_to_f32(&words.as_chunks().0[i]);
        }
        lanes
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            *lanes = self.load_four(&values.as_chunks().0[i]);
        }
        lanes
    }

    #[inline(always)]
    fn add_products(self, mut sums: Self::Lanes, weights: Self::Lanes, x: &[f32; LANES]) -> Self::Lanes {
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = self.add(*sums, self.mul(weights[i], self.load_four(&x.as_chunks().0[i])));
        }
        sums
    }

    #[inline(always)]
    fn store(self, lanes: Self::Lanes) -> [f32; LANES] {
        let mut values = [0.0; LANES];
        for (i, values) in values.as_chunks_mut().0.iter_mut().enumerate() {
            *values = self.store_four(lanes[i]);
        }
        values
    }
}
