//! The values that a code can stand for, before any scale.

use super::lanes::{LANES, Lanes};
use crate::dequant::{IQ4_VALUES, MXFP4_VALUES};

/// A set of levels. Every method must be `#[inline(always)]`.
pub(super) trait Levels {
    /// The nearest levels.
    fn nearest(values: Lanes) -> Lanes;

    /// The codes of levels.
    fn codes(levels: Lanes) -> [u8; LANES];
}

/// Every whole number from `LOW` to `HIGH`.
pub(super) struct Whole<const LOW: i32, const HIGH: i32>;

impl<const LOW: i32, const HIGH: i32> Levels for Whole<LOW, HIGH> {
    #[inline(always)]
    fn nearest(values: Lanes) -> Lanes {
        values.clamp(LOW as f32, HIGH as f32).round()
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "`nearest` gives the levels, which fit")]
    #[expect(clippy::cast_sign_loss, reason = "LOW is taken off")]
    fn codes(levels: Lanes) -> [u8; LANES] {
        let mut codes = [0; LANES];
        for i in 0..LANES {
            codes[i] = (levels.0[i] - LOW as f32) as i32 as u8;
        }
        codes
    }
}

/// The table of IQ4_NL and IQ4_XS.
pub(super) struct Iq4;

impl Levels for Iq4 {
    #[inline(always)]
    fn nearest(values: Lanes) -> Lanes {
        climb(values, &IQ4_VALUES)
    }

    #[inline(always)]
    fn codes(levels: Lanes) -> [u8; LANES] {
        let mut codes = [0; LANES];
        for i in 0..LANES {
            codes[i] = IQ4_VALUES[1..].iter().map(|v| u8::from(levels.0[i] >= f32::from(*v))).sum();
        }
        codes
    }
}

/// Twice the floats of one sign, two exponent and one fraction bit that MXFP4 has.
pub(super) struct E2M1;

impl Levels for E2M1 {
    #[inline(always)]
    fn nearest(values: Lanes) -> Lanes {
        let size = climb(values.abs(), MXFP4_VALUES[..8].as_array::<8>().expect("half of sixteen"));
        let mut levels = size;
        for i in 0..LANES {
            levels.0[i] = size.0[i].copysign(values.0[i]);
        }
        levels
    }

    #[inline(always)]
    fn codes(levels: Lanes) -> [u8; LANES] {
        let mut codes = [0; LANES];
        for i in 0..LANES {
            let size: u8 =
                MXFP4_VALUES[1..8].iter().map(|v| u8::from(levels.0[i].abs() >= f32::from(*v))).sum();
            codes[i] = size | if levels.0[i] < 0.0 { 8 } else { 0 };
        }
        codes
    }
}

/// The nearest of an ascending table: up one step wherever the middle of the step is passed.
#[inline(always)]
fn climb<const N: usize>(values: Lanes, table: &[i8; N]) -> Lanes {
    let mut level = Lanes::splat(f32::from(table[0]));
    for i in 1..N {
        let (below, above) = (f32::from(table[i - 1]), f32::from(table[i]));
        let middle = Lanes::splat((below + above) / 2.0);
        level = Lanes::splat(above).where_greater(values, middle, level);
    }
    level
}
