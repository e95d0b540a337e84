//! Blocks of every stored type, turned back into the f32 values that they mean.
//!
//! Formats: ggml's block structures. Each decoder reads bytes as they lie in the file, at any alignment, and is
//! held to the values of the `gguf` package by `tests/dequant.rs`.

mod k;
mod small;

use forerun_model::QuantType;
use half::f16;

pub(crate) use small::MXFP4_VALUES;

/// The types that [`dequantise`] knows, for an error message.
pub const SUPPORTED: &str =
    "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4";

/// Whether [`dequantise`] knows `quant`.
pub fn is_supported(quant: QuantType) -> bool {
    decoder(quant).is_some()
}

/// Writes the values of `bytes`, whole blocks of `quant`, to `out`.
///
/// # Panics
/// When the type isn't [supported](is_supported), or `bytes` and `out` don't hold the same whole blocks.
pub fn dequantise(quant: QuantType, bytes: &[u8], out: &mut [f32]) {
    let (block_bytes, block_len) = (quant.block_bytes(), quant.block_len());
    assert_eq!(bytes.len() % block_bytes, 0, "whole blocks");
    assert_eq!(bytes.len() / block_bytes * block_len, out.len(), "as many values as the blocks hold");
    match decoder(quant).expect("the caller checked is_supported") {
        Decoder::Words(decode) => decode(bytes, out),
        Decoder::Blocks(decode) => {
            for (block, values) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(block_len)) {
                decode(block, values);
            }
        }
    }
}

enum Decoder {
    /// Values that stand alone: the whole slice in one call.
    Words(fn(&[u8], &mut [f32])),
    /// One block a call.
    Blocks(fn(&[u8], &mut [f32])),
}

fn decoder(quant: QuantType) -> Option<Decoder> {
    Some(match quant {
        QuantType::F32 => Decoder::Words(words_f32),
        QuantType::F16 => Decoder::Words(words_f16),
        QuantType::BF16 => Decoder::Words(words_bf16),
        QuantType::Q8_0 => Decoder::Blocks(small::q8_0),
        QuantType::Q4_0 => Decoder::Blocks(small::q4_0),
        QuantType::Q4_1 => Decoder::Blocks(small::q4_1),
        QuantType::Q5_0 => Decoder::Blocks(small::q5_0),
        QuantType::Q5_1 => Decoder::Blocks(small::q5_1),
        QuantType::IQ4_NL => Decoder::Blocks(small::iq4_nl),
        QuantType::MXFP4 => Decoder::Blocks(small::mxfp4),
        QuantType::Q2_K => Decoder::Blocks(k::q2_k),
        QuantType::Q3_K => Decoder::Blocks(k::q3_k),
        QuantType::Q4_K => Decoder::Blocks(k::q4_k),
        QuantType::Q5_K => Decoder::Blocks(k::q5_k),
        QuantType::Q6_K => Decoder::Blocks(k::q6_k),
        QuantType::IQ4_XS => Decoder::Blocks(k::iq4_xs),
        _ => return None,
    })
}

fn words_f32(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks::<4>().0.iter().zip(out) {
        *y = f32::from_le_bytes(*b);
    }
}

fn words_f16(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *y = f16::from_le_bytes(*b).to_f32();
    }
}

fn words_bf16(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *y = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
    }
}

/// The half float at byte `at`.
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Scale `j` of 8 and minimum `j` of 8 in the 12 packed bytes of Q4_K and Q5_K, each of 6 bits.
pub(crate) fn scale_min_k4(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        let min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
        (scale, min)
    }
}

/// What the minima of a Q4_K or Q5_K block add: each of the 8 times the sum of its 32 codes; `sums` are of 16 codes.
pub(crate) fn min_sum_k4(packed: &[u8], sums: &[i16; 16]) -> i32 {
    let pairs = sums.as_chunks::<2>().0.iter().enumerate();
    pairs.map(|(j, [a, b])| i32::from(scale_min_k4(packed, j).1) * (i32::from(*a) + i32::from(*b))).sum()
}

/// The 16 scales in the 12 packed bytes of Q3_K, each in -32..=31.
pub(crate) fn scales_q3_k(packed: &[u8]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        let high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
        (low | (high << 4)).cast_signed() - 32
    })
}

/// The values that the 4-bit codes of IQ4_NL and IQ4_XS stand for.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
