//! Random calls of every kernel, and how far each may be from its twin in the compute crate. They run on a Mac's GPU, and by
//! `cargo xtask msl` on the CPU of a machine without one.
//!
//! Every bound is one of rounding: a sum of `n` products in any order is off by at most `n` half units of the last place times the sum
//! of the products' absolute values, so a kernel and its twin are apart by at most both.

pub(crate) mod close;
pub(crate) mod delta_net;
pub(crate) mod expert;

use std::fmt;

use crate::host::HostBuffer;
use crate::launch::Launch;

/// Whatever runs a kernel.
pub(crate) trait Gpu {
    /// Runs one call to its end.
    fn run(&mut self, launch: &Launch, buffers: &mut [HostBuffer<'_>]);
}

/// Half a unit in the last place, relative.
pub(crate) const HALF_UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// Numbers from a seed (SplitMix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.bits() % n as u64).unwrap()
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// In -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        let bits = u32::try_from(self.bits() >> 40).unwrap();
        (f64::from(bits) / f64::from(1 << 23) - 1.0) as f32
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// What was compared, and how far it was off.
#[derive(Default)]
pub(crate) struct Report {
    cases: usize,
    values: usize,
    /// The largest difference.
    off: f64,
    /// The largest difference, of its bound.
    of_bound: f64,
}

impl Report {
    pub(crate) fn begin(&mut self) {
        self.cases += 1;
    }

    /// Holds what a kernel found to what its twin did, within `bound(i)`.
    #[track_caller]
    pub(crate) fn compare(
        &mut self,
        found: &[f32],
        want: &[f32],
        bound: impl Fn(usize) -> f64,
        seed: impl fmt::Display,
    ) {
        assert_eq!(found.len(), want.len());
        for (i, (&found, &want)) in found.iter().zip(want).enumerate() {
            // The smallest normal number: a GPU may take smaller ones for zero.
            let (off, bound) = (f64::from((found - want).abs()), bound(i) + f64::from(f32::MIN_POSITIVE));
            assert!(
                off <= bound,
                "seed {seed}: value {i} is {found}, not {want}, off by {off:e} of {bound:e}"
            );
            self.off = self.off.max(off);
            self.of_bound = self.of_bound.max(off / bound);
            self.values += 1;
        }
    }

    /// Whether anything was compared.
    pub(crate) fn is_empty(&self) -> bool {
        self.values == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cases, values, off, of_bound } = self;
        write!(f, "{cases} cases, {values} values, off by at most {off:.2e}, {of_bound:.3} of the bound")
    }
}

/// Bits, so that what is no number can be compared as well.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
