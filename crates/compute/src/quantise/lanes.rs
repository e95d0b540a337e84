//! Sixteen f32 values, one for each of sixteen runs that are searched side by side.
//!
//! A run never meets its neighbours but in [`Lanes::fold`], whose order is fixed, and every operation is rounded by
//! itself: all instruction sets give the same bits.

use std::hint::black_box;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Runs that are searched at once.
pub(super) const LANES: usize = 16;

/// One value for every run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lanes(pub(super) [f32; LANES]);

impl Lanes {
    pub(super) const ZERO: Self = Self([0.0; LANES]);
    pub(super) const ONE: Self = Self([1.0; LANES]);

    #[inline(always)]
    pub(super) fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    /// The same, through memory: the compiler then keeps all runs in one vector up to here, where it may else split
    /// them to suit what follows. Changes speed only.
    #[inline(always)]
    pub(super) fn together(self) -> Self {
        black_box(self)
    }

    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        for i in 0..LANES {
            self.0[i] = f(self.0[i], other.0[i]);
        }
        self
    }

    #[inline(always)]
    pub(super) fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        for i in 0..LANES {
            self.0[i] = f(self.0[i]);
        }
        self
    }

    /// The smaller of two; `other` where one isn't a number.
    #[inline(always)]
    pub(super) fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    /// The larger of two; `other` where one isn't a number.
    #[inline(always)]
    pub(super) fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    pub(super) fn clamp(self, low: f32, high: f32) -> Self {
        self.map(|v| clamp(v, low, high))
    }

    #[inline(always)]
    pub(super) fn abs(self) -> Self {
        self.map(f32::abs)
    }

    #[inline(always)]
    pub(super) fn round(self) -> Self {
        self.map(round)
    }

    /// `1 / self`, and 0 of 0.
    #[inline(always)]
    pub(super) fn inverse(self) -> Self {
        self.map(|v| if v == 0.0 { 0.0 } else { 1.0 / v })
    }

    /// `self` where `a > b`, else `other`.
    #[inline(always)]
    pub(super) fn where_greater(mut self, a: Self, b: Self, other: Self) -> Self {
        for i in 0..LANES {
            self.0[i] = if a.0[i] > b.0[i] { self.0[i] } else { other.0[i] };
        }
        self
    }

    /// Every run gets the sum over its block of `group` runs (a power of two): runs a half block apart are added, then
    /// a quarter, and so on.
    #[inline(always)]
    pub(super) fn fold(self, group: usize) -> Self {
        self.butterfly(group, |a, b| a + b)
    }

    /// Every run gets the largest of its block of `group` runs.
    #[inline(always)]
    pub(super) fn fold_max(self, group: usize) -> Self {
        self.butterfly(group, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn butterfly(mut self, group: usize, f: impl Fn(f32, f32) -> f32) -> Self {
        // Steps are constants, or the compiler would gather one value at a time.
        if group > 8 {
            self = self.zip(self.swapped::<8>(), &f);
        }
        if group > 4 {
            self = self.zip(self.swapped::<4>(), &f);
        }
        if group > 2 {
            self = self.zip(self.swapped::<2>(), &f);
        }
        if group > 1 {
            self = self.zip(self.swapped::<1>(), &f);
        }
        self
    }

    /// Neighbours of `STEP` runs, a power of two, change places.
    #[inline(always)]
    fn swapped<const STEP: usize>(self) -> Self {
        let mut out = self;
        for i in 0..LANES {
            out.0[i] = self.0[i ^ STEP];
        }
        out
    }

    /// The nearest values that a half float in units of `unit` can have; too large ones become the largest.
    #[inline(always)]
    pub(super) fn to_half(self, unit: Self) -> Self {
        let mut out = self;
        for i in 0..LANES {
            out.0[i] = nearest_half(self.0[i] * unit.0[i]) / unit.0[i];
        }
        out
    }
}

/// `value`, or the limit that it passes; `low` where it isn't a number.
#[inline(always)]
pub(super) fn clamp(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    if value < high { value } else { high }
}

/// The nearest whole number, ties to even, for less than 2^22.
#[inline(always)]
pub(super) fn round(value: f32) -> f32 {
    /// Has no room for fractions.
    const WHOLE: f32 = 12_582_912.0;
    (value + WHOLE) - WHOLE
}

/// A whole number from 0 to 255 as a byte.
#[inline(always)]
pub(super) fn byte(whole: f32) -> u8 {
    /// Has no room for fractions, and its lowest bits are zero: what is added stands there.
    const WHOLE: f32 = 8_388_608.0;
    (whole + WHOLE).to_bits().to_le_bytes()[0]
}

/// What `half::f16` rounds to, without a call, so that it works on many at once; finite, whatever comes in.
#[inline(always)]
fn nearest_half(value: f32) -> f32 {
    /// The largest half float.
    const MAX: f32 = 65504.0;
    /// Smaller ones are spaced evenly, by 2^-24, as f32 are from a half to one.
    const NORMAL: f32 = 1.0 / 16384.0;
    let value = clamp(value, -MAX, MAX);
    let bits = value.to_bits();
    let normal = f32::from_bits((bits + 0xFFF + (bits >> 13 & 1)) & !0x1FFF);
    let small = ((value.abs() + 0.5) - 0.5).copysign(value);
    if value.abs() < NORMAL { small } else { normal }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:tt) => {
        impl $trait for Lanes {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a $op b)
            }
        }
    };
}
operator!(Add, add, +);
operator!(Sub, sub, -);
operator!(Mul, mul, *);
operator!(Div, div, /);

impl Neg for Lanes {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        self.map(|v| -v)
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_half_and_what_lies_between_rounds_as_half_does() {
        for bits in 0..0x7C00u16 {
            let (here, next) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
            let middle = if next.is_finite() { here.midpoint(next) } else { here };
            for value in [here, middle, middle.next_down(), middle.next_up()] {
                let want = f16::from_f32(value).to_f32().min(65504.0);
                assert_eq!(nearest_half(value).to_bits(), want.to_bits(), "{value:e}");
                assert_eq!(nearest_half(-value).to_bits(), (-want).to_bits(), "-{value:e}");
            }
        }
    }

    #[test]
    fn what_is_no_half_is_the_nearest_that_is_finite() {
        assert_eq!(nearest_half(f32::MAX), 65504.0);
        assert_eq!(nearest_half(f32::NEG_INFINITY), -65504.0);
        assert!(nearest_half(f32::NAN).is_finite());
    }

    proptest! {
        #[test]
        fn sums_are_of_one_block_and_the_same_for_all_its_runs(values: [u8; LANES]) {
            for group in [1, 2, 4, 8, 16] {
                let folded = Lanes(values.map(f32::from)).fold(group);
                for (block, folded) in values.chunks(group).zip(folded.0.chunks(group)) {
                    let want: f32 = block.iter().map(|v| f32::from(*v)).sum();
                    prop_assert!(folded.iter().all(|sum| *sum == want), "{folded:?} of {block:?}");
                }
            }
        }
    }
}
