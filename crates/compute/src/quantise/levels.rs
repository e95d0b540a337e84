//! The values that a code can stand for, before any scale.

use super::lanes::{clamp, round};
use crate::dequant::{IQ4_VALUES, MXFP4_VALUES};

/// A set of levels. Every method must be `#[inline(always)]`.
pub(super) trait Levels {
    /// The nearest level.
    fn nearest(value: f32) -> f32;

    /// The code of a level.
    fn code(level: f32) -> f32;
}

/// Every whole number from `LOW` to `HIGH`.
pub(super) struct Whole<const LOW: i32, const HIGH: i32>;

impl<const LOW: i32, const HIGH: i32> Levels for Whole<LOW, HIGH> {
    #[inline(always)]
    fn nearest(value: f32) -> f32 {
        round(clamp(value, LOW as f32, HIGH as f32))
    }

    #[inline(always)]
    fn code(level: f32) -> f32 {
        level - LOW as f32
    }
}

/// The table of IQ4_NL and IQ4_XS.
pub(super) struct Iq4;

impl Levels for Iq4 {
    #[inline(always)]
    fn nearest(value: f32) -> f32 {
        climb(value, &IQ4_VALUES)
    }

    #[inline(always)]
    fn code(level: f32) -> f32 {
        place(level, &IQ4_VALUES)
    }
}

/// Twice the floats of one sign, two exponent and one fraction bit that MXFP4 has.
pub(super) struct E2M1;

impl Levels for E2M1 {
    #[inline(always)]
    fn nearest(value: f32) -> f32 {
        climb(value.abs(), &MXFP4_SIZES).copysign(value)
    }

    #[inline(always)]
    fn code(level: f32) -> f32 {
        place(level.abs(), &MXFP4_SIZES) + if level < 0.0 { 8.0 } else { 0.0 }
    }
}

/// The values of MXFP4's codes without a sign.
const MXFP4_SIZES: [i8; 8] = *MXFP4_VALUES.first_chunk().expect("half of sixteen");

/// The nearest of an ascending table: up one step wherever the middle of the step is passed.
#[inline(always)]
fn climb<const N: usize>(value: f32, table: &[i8; N]) -> f32 {
    let mut level = f32::from(table[0]);
    for i in 1..N {
        let (below, above) = (f32::from(table[i - 1]), f32::from(table[i]));
        level = if value > (below + above) / 2.0 { above } else { level };
    }
    level
}

/// How many levels of an ascending table lie below.
#[inline(always)]
fn place<const N: usize>(level: f32, table: &[i8; N]) -> f32 {
    let mut place = 0.0;
    for below in &table[..N - 1] {
        place += if level > f32::from(*below) { 1.0 } else { 0.0 };
    }
    place
}
