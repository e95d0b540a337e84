//! AVX2: the lanes of products with f32 activations.

use std::arch::x86_64::__m256;

use super::LANES;
use super::avx2_ops::Avx2;
use super::floats::Floats;

/// Registers of eight lanes.
const REGISTERS: usize = LANES / 8;

impl Floats for Avx2 {
    type Lanes = [__m256; REGISTERS];

    #[inline(always)]
    fn zeros(self) -> Self::Lanes {
        [self.zero_ps(); REGISTERS]
    }

    #[inline(always)]
    fn load_f32(self, words: &[u8; 4 * LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            *lanes = self.bits_f32(self.load_bytes(&words.as_chunks().0[i]));
        }
        lanes
    }

    #[inline(always)]
    fn load_f16(self, words: &[u8; 2 * LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            *lanes = self.f16_to_f32(self.load_half(&words.as_chunks().0[i]));
        }
        lanes
    }

    #[inline(always)]
    fn load_bf16(self, words: &[u8; 2 * LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            let wide = self.widen_u16(self.load_half(&words.as_chunks().0[i]));
            *lanes = self.bits_f32(self.upper_u16(wide));
        }
        lanes
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::Lanes {
        let mut lanes = self.zeros();
        for (i, lanes) in lanes.iter_mut().enumerate() {
            *lanes = self.load_ps(&values.as_chunks().0[i]);
        }
        lanes
    }

    #[inline(always)]
    fn add_products(self, mut sums: Self::Lanes, weights: Self::Lanes, x: &[f32; LANES]) -> Self::Lanes {
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = self.add(*sums, self.mul(weights[i], self.load_ps(&x.as_chunks().0[i])));
        }
        sums
    }

    #[inline(always)]
    fn store(self, lanes: Self::Lanes) -> [f32; LANES] {
        let mut values = [0.0; LANES];
        for (i, values) in values.as_chunks_mut().0.iter_mut().enumerate() {
            *values = self.store_ps(lanes[i]);
        }
        values
    }
}
