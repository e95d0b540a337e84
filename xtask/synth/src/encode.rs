//! f32 values to blocks of the types that are written here. Simple: each group's own range, no search for less error.

use forerun_model::QuantType;
use half::{bf16, f16};

/// The types that [`encode`] knows.
#[cfg(test)]
pub(crate) const SUPPORTED: [QuantType; 8] = [
    QuantType::F32,
    QuantType::F16,
    QuantType::BF16,
    QuantType::Q8_0,
    QuantType::Q3_K,
    QuantType::Q4_K,
    QuantType::Q5_K,
    QuantType::Q6_K,
];

/// Appends `values` as whole blocks of `quant`. A group of zeros comes back as zeros.
///
/// # Panics
/// When there is no encoder for the type, or the values don't fill whole blocks.
pub(crate) fn encode(quant: QuantType, values: &[f32], out: &mut Vec<u8>) {
    assert!(values.len().is_multiple_of(quant.block_len()), "whole blocks of {quant}");
    for block in values.chunks_exact(quant.block_len()) {
        match quant {
            QuantType::F32 => out.extend_from_slice(&block[0].to_le_bytes()),
            QuantType::F16 => out.extend_from_slice(&f16::from_f32(block[0]).to_le_bytes()),
            QuantType::BF16 => out.extend_from_slice(&bf16::from_f32(block[0]).to_le_bytes()),
            QuantType::Q8_0 => q8_0(block, out),
            QuantType::Q3_K => q3_k(block, out),
            QuantType::Q4_K => q45_k(block, 15.0, out),
            QuantType::Q5_K => q45_k(block, 31.0, out),
            QuantType::Q6_K => q6_k(block, out),
            other => unreachable!("no encoder for {other}"),
        }
    }
}

/// Byte offsets of the half floats that all values of a block are multiples of; empty for types without blocks.
pub(crate) fn scale_offsets(quant: QuantType) -> &'static [usize] {
    match quant {
        QuantType::Q8_0 => &[0],
        QuantType::Q3_K => &[108],
        QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
        QuantType::Q6_K => &[208],
        _ => &[],
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, v| v.abs().max(max))
}

/// `value / unit`, rounded into `min..=max`; 0 where the unit is.
#[expect(clippy::cast_possible_truncation, reason = "clamped to a byte's range before")]
fn code(value: f32, unit: f32, (min, max): (f32, f32)) -> i8 {
    if unit == 0.0 { 0 } else { (value / unit).round().clamp(min, max) as i8 }
}

/// The same without a sign.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn level(value: f32, unit: f32, max: f32) -> u8 {
    if unit == 0.0 { 0 } else { (value / unit).round().clamp(0.0, max) as u8 }
}

/// A half float, and what it means.
fn half(value: f32) -> (f32, [u8; 2]) {
    let half = f16::from_f32(value);
    (half.to_f32(), half.to_le_bytes())
}

fn q8_0(block: &[f32], out: &mut Vec<u8>) {
    let (d, bytes) = half(largest(block) / 127.0);
    out.extend_from_slice(&bytes);
    out.extend(block.iter().map(|&v| code(v, d, (-127.0, 127.0)).cast_unsigned()));
}

/// 16 groups of 16: values are `d * scale * (-4..=3)`.
fn q3_k(block: &[f32], out: &mut Vec<u8>) {
    let widths: Vec<f32> = block.chunks_exact(16).map(|group| largest(group) / 3.5).collect();
    let (d, d_bytes) = half(largest(&widths) / 31.0);
    let (mut thirds, mut codes, mut scales) = ([0u8; 32], [0u8; 64], [0u8; 12]);
    for (group, (values, width)) in block.chunks_exact(16).zip(&widths).enumerate() {
        let scale = level(*width, d, 31.0);
        let stored = scale + 32;
        let (at, shift) = if group < 8 { (group, 0) } else { (group - 8, 4) };
        scales[at] |= (stored & 15) << shift;
        scales[8 + group % 4] |= (stored >> 4) << (2 * (group / 4));
        let start = group / 8 * 32 + group % 2 * 16;
        for (i, &value) in values.iter().enumerate() {
            let code = (code(value, d * f32::from(scale), (-4.0, 3.0)) + 4).cast_unsigned();
            codes[start + i] |= (code & 3) << (group % 8 / 2 * 2);
            thirds[start % 32 + i] |= (code >> 2) << (group / 2);
        }
    }
    out.extend_from_slice(&thirds);
    out.extend_from_slice(&codes);
    out.extend_from_slice(&scales);
    out.extend_from_slice(&d_bytes);
}

/// 8 groups of 32: values are `d * scale * (0..=code_max) - dmin * min`; `code_max` 15 is Q4_K, 31 is Q5_K.
fn q45_k(block: &[f32], code_max: f32, out: &mut Vec<u8>) {
    let range = |group: &[f32]| {
        let low = group.iter().fold(0.0f32, |low, &v| low.min(v));
        let high = group.iter().fold(0.0f32, |high, &v| high.max(v));
        ((high - low) / code_max, -low)
    };
    let (widths, lows): (Vec<f32>, Vec<f32>) = block.chunks_exact(32).map(range).unzip();
    let (d, d_bytes) = half(largest(&widths) / 63.0);
    let (dmin, dmin_bytes) = half(largest(&lows) / 63.0);
    let (mut packed, mut fifths, mut codes) = ([0u8; 12], [0u8; 32], [0u8; 128]);
    for (group, values) in block.chunks_exact(32).enumerate() {
        let (scale, min) = (level(widths[group], d, 63.0), level(lows[group], dmin, 63.0));
        if group < 4 {
            packed[group] |= scale;
            packed[group + 4] |= min;
        } else {
            packed[group + 4] |= (scale & 15) | ((min & 15) << 4);
            packed[group - 4] |= (scale >> 4) << 6;
            packed[group] |= (min >> 4) << 6;
        }
        for (i, &value) in values.iter().enumerate() {
            let code = level(value + dmin * f32::from(min), d * f32::from(scale), code_max);
            codes[group / 2 * 32 + i] |= (code & 15) << (group % 2 * 4);
            fifths[i] |= (code >> 4) << group;
        }
    }
    out.extend_from_slice(&d_bytes);
    out.extend_from_slice(&dmin_bytes);
    out.extend_from_slice(&packed);
    if code_max > 15.0 {
        out.extend_from_slice(&fifths);
    }
    out.extend_from_slice(&codes);
}

/// 16 groups of 16: values are `d * scale * (-32..=31)`.
fn q6_k(block: &[f32], out: &mut Vec<u8>) {
    let widths: Vec<f32> = block.chunks_exact(16).map(|group| largest(group) / 31.0).collect();
    let (d, d_bytes) = half(largest(&widths) / 127.0);
    let (mut low, mut high, mut scales) = ([0u8; 128], [0u8; 64], [0u8; 16]);
    for (group, (values, width)) in block.chunks_exact(16).zip(&widths).enumerate() {
        scales[group] = level(*width, d, 127.0);
        let (half, quarter, odd) = (group / 8, group % 8 / 2, group % 2 * 16);
        for (i, &value) in values.iter().enumerate() {
            let unit = d * f32::from(scales[group]);
            let code = (code(value, unit, (-32.0, 31.0)) + 32).cast_unsigned();
            low[half * 64 + quarter % 2 * 32 + odd + i] |= (code & 15) << (quarter / 2 * 4);
            high[half * 32 + odd + i] |= (code >> 4) << (quarter * 2);
        }
    }
    out.extend_from_slice(&low);
    out.extend_from_slice(&high);
    out.extend_from_slice(&scales);
    out.extend_from_slice(&d_bytes);
}

#[cfg(test)]
mod tests {
    use forerun_compute::dequant::dequantise;

    use super::*;
    use crate::chance::{Purpose, bell, stream};

    /// Root of the mean square of what `quant` loses of bell-shaped values of deviation 1.
    fn loss(quant: QuantType) -> f32 {
        let mut rng = stream(3, Purpose::Pool, 0);
        let values: Vec<f32> = (0..256 * 64).map(|_| bell(&mut rng)).collect();
        let mut bytes = Vec::new();
        encode(quant, &values, &mut bytes);
        assert_eq!(Some(bytes.len()), quant.row_bytes(values.len()));
        let mut back = vec![0.0; values.len()];
        dequantise(quant, &bytes, &mut back);
        let squares: f32 = values.iter().zip(&back).map(|(a, b)| (a - b) * (a - b)).sum();
        (squares / 16384.0).sqrt()
    }

    #[test]
    fn values_come_back_as_well_as_their_type_allows() {
        // An even error of one step in `levels` of a range of about 4 deviations, with a margin for coarse scales.
        let bounds = [0.0, 1e-3, 5e-3, 0.01, 0.2, 0.1, 0.05, 0.025];
        for (quant, bound) in SUPPORTED.into_iter().zip(bounds) {
            assert!(loss(quant) <= bound, "{quant}: {}", loss(quant));
        }
    }

    #[test]
    fn zeros_stay_zeros_beside_other_groups() {
        let mut values = [0.0; 256];
        for (i, v) in values[64..128].iter_mut().enumerate() {
            *v = if i % 2 == 0 { 1.0 } else { -0.5 };
        }
        for quant in SUPPORTED {
            let mut bytes = Vec::new();
            encode(quant, &values, &mut bytes);
            let mut back = [1.0; 256];
            dequantise(quant, &bytes, &mut back);
            assert!(back[..64].iter().chain(&back[128..]).all(|v| *v == 0.0), "{quant}");
            assert!((back[64] - 1.0).abs() < 0.2 && (back[65] + 0.5).abs() < 0.2, "{quant}");
        }
    }

    #[test]
    fn bytes_of_zeros_are_values_of_zero() {
        for quant in SUPPORTED {
            let mut back = vec![1.0; quant.block_len()];
            dequantise(quant, &vec![0; quant.block_bytes()], &mut back);
            assert!(back.iter().all(|v| *v == 0.0), "{quant}");
        }
    }
}
