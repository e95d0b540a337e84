//! From f32 values to blocks: the opposite of [`dequant`](crate::dequant), with care for the columns that matter.

use forerun_model::QuantType;
use half::{bf16, f16};

/// Whether [`quantise`] can write blocks of this type.
pub fn is_encodable(quant: QuantType) -> bool {
    matches!(quant, QuantType::F32 | QuantType::F16 | QuantType::BF16)
}

/// Encodes the values of one row as blocks of `quant` into `out`. `importance`, one weight per value and none negative,
/// says how much the square of each value's error counts; without it all count alike.
///
/// # Panics
/// When the type isn't [encodable](is_encodable), or lengths don't fit: `values` fill whole blocks, `out` holds just these
/// blocks, `importance` is as long as `values`.
pub fn quantise(quant: QuantType, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    assert_eq!(quant.row_bytes(values.len()), Some(out.len()), "whole blocks, and room for just these");
    assert!(importance.is_none_or(|weights| weights.len() == values.len()), "a weight for every value");
    match quant {
        QuantType::F32 => words(values, out, f32::to_le_bytes),
        QuantType::F16 => words(values, out, |v| f16::from_f32(v).to_le_bytes()),
        QuantType::BF16 => words(values, out, |v| bf16::from_f32(v).to_le_bytes()),
        _ => panic!("{quant} can't be encoded: ask is_encodable first"),
    }
}

fn words<const N: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        *bytes = encode(*value);
    }
}
