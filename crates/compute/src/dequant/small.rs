//! Types with 32 values per block.

use super::{IQ4_VALUES, half_at};

/// Twice the values that the 4-bit codes of MXFP4 stand for (E2M1); the block's scale is halved to match.
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `d`, 32 signed bytes.
pub(super) fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..34]) {
        *y = f32::from(q.cast_signed()) * d;
    }
}

/// `d`, 32 nibbles; the low ones come first.
pub(super) fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, &q) in b[2..18].iter().enumerate() {
        y[i] = (f32::from(q & 15) - 8.0) * d;
        y[i + 16] = (f32::from(q >> 4) - 8.0) * d;
    }
}

/// `d`, `m`, 32 nibbles.
pub(super) fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (i, &q) in b[4..20].iter().enumerate() {
        y[i] = f32::from(q & 15) * d + m;
        y[i + 16] = f32::from(q >> 4) * d + m;
    }
}

/// `d`, 32 fifth bits, 32 nibbles.
pub(super) fn q5_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    let (low, high) = fifths(&b[2..22]);
    for i in 0..16 {
        y[i] = (f32::from(low[i]) - 16.0) * d;
        y[i + 16] = (f32::from(high[i]) - 16.0) * d;
    }
}

/// `d`, `m`, 32 fifth bits, 32 nibbles.
pub(super) fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let (low, high) = fifths(&b[4..24]);
    for i in 0..16 {
        y[i] = f32::from(low[i]) * d + m;
        y[i + 16] = f32::from(high[i]) * d + m;
    }
}

/// The 5-bit codes of values 0..16 and 16..32: four bytes of fifth bits, then the nibbles.
fn fifths(b: &[u8]) -> ([u8; 16], [u8; 16]) {
    let bits = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let bit = |i: usize| if bits >> i & 1 == 1 { 16 } else { 0 };
    let low = std::array::from_fn(|i| (b[4 + i] & 15) | bit(i));
    let high = std::array::from_fn(|i| (b[4 + i] >> 4) | bit(i + 16));
    (low, high)
}

/// `d`, 32 codes of a fixed table.
pub(super) fn iq4_nl(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, &q) in b[2..18].iter().enumerate() {
        y[i] = d * f32::from(IQ4_VALUES[usize::from(q & 15)]);
        y[i + 16] = d * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
    }
}

/// A shared exponent byte, 32 codes of E2M1 floats.
pub(super) fn mxfp4(b: &[u8], y: &mut [f32]) {
    let d = half_of_e8m0(b[0]);
    for (i, &q) in b[1..17].iter().enumerate() {
        y[i] = d * f32::from(MXFP4_VALUES[usize::from(q & 15)]);
        y[i + 16] = d * f32::from(MXFP4_VALUES[usize::from(q >> 4)]);
    }
}

/// Half of 2^(e - 127); the two smallest exponents give denormals.
fn half_of_e8m0(e: u8) -> f32 {
    if e < 2 { f32::from_bits(0x0020_0000 << e) } else { f32::from_bits(u32::from(e - 1) << 23) }
}
