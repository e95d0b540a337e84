//! Types with 256 values per block.

use super::{IQ4_VALUES, half_at, scale_min_k4, scales_q3_k};

/// 16 bytes of scale and minimum nibbles, 64 bytes of 2-bit codes, `d`, `dmin`.
pub(super) fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, codes) = (&b[..16], &b[16..80]);
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(scales[group] & 15), dmin * f32::from(scales[group] >> 4));
        let (start, shift) = two_bits(group);
        for (y, &q) in y.iter_mut().zip(&codes[start..start + 16]) {
            *y = scale * f32::from(q >> shift & 3) - min;
        }
    }
}

/// 32 bytes of third bits, 64 bytes of 2-bit codes, 12 bytes of scales, `d`.
pub(super) fn q3_k(b: &[u8], y: &mut [f32]) {
    let (thirds, codes) = (&b[..32], &b[32..96]);
    let (scales, d) = (scales_q3_k(&b[96..108]), half_at(b, 108));
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[group]);
        let (start, shift) = two_bits(group);
        for (i, y) in y.iter_mut().enumerate() {
            let low = codes[start + i] >> shift & 3;
            let high = thirds[start % 32 + i] >> (group / 2) & 1;
            *y = scale * (f32::from(low | (high << 2)) - 4.0);
        }
    }
}

/// Where the 2-bit codes of the `group`-th 16 values lie: first byte, shift.
fn two_bits(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}

/// `d`, `dmin`, 12 bytes of scales and minima, 128 bytes of nibbles.
pub(super) fn q4_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (group, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min_k4(&b[4..16], group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = &b[16 + group / 2 * 32..][..32];
        for (y, &q) in y.iter_mut().zip(codes) {
            *y = scale * f32::from(q >> (group % 2 * 4) & 15) - min;
        }
    }
}

/// `d`, `dmin`, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes of nibbles.
pub(super) fn q5_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let fifths = &b[16..48];
    for (group, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min_k4(&b[4..16], group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = &b[48 + group / 2 * 32..][..32];
        for (i, y) in y.iter_mut().enumerate() {
            let low = codes[i] >> (group % 2 * 4) & 15;
            let high = fifths[i] >> group & 1;
            *y = scale * f32::from(low | (high << 4)) - min;
        }
    }
}

/// 128 bytes of nibbles, 64 bytes of upper bit pairs, 16 signed scales, `d`.
pub(super) fn q6_k(b: &[u8], y: &mut [f32]) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], half_at(b, 208));
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[group].cast_signed());
        let (half, quarter, odd) = (group / 8, group % 8 / 2, group % 2 * 16);
        let low = &low[half * 64 + quarter % 2 * 32 + odd..][..16];
        let high = &high[half * 32 + odd..][..16];
        for (i, y) in y.iter_mut().enumerate() {
            let nibble = low[i] >> (quarter / 2 * 4) & 15;
            let pair = high[i] >> (quarter * 2) & 3;
            *y = scale * (f32::from(nibble | (pair << 4)) - 32.0);
        }
    }
}

/// `d`, 2 bytes of upper scale bits, 4 bytes of lower scale nibbles, 128 bytes of codes of a fixed table.
pub(super) fn iq4_xs(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    let high = u16::from_le_bytes([b[2], b[3]]);
    for (group, y) in y.chunks_exact_mut(32).enumerate() {
        let low = b[4 + group / 2] >> (group % 2 * 4) & 15;
        let scale = u16::from(low) | ((high >> (2 * group) & 3) << 4);
        let scale = d * (f32::from(scale) - 32.0);
        for (i, &q) in b[8 + group * 16..][..16].iter().enumerate() {
            y[i] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
            y[i + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
        }
    }
}
