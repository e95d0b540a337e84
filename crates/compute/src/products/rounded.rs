//! The definition of a product with 8-bit activations, from decoded weights.
//!
//! Rounding to 8 bits has edges: a difference in the last bit of an input can move a code by one, and a few such
//! moves change logits visibly. So "the same way" must mean the same order of sums, which [`crate::kernels`] states.
//! This module follows that order with nothing but the decoder that the goldens prove: it decodes a block with its
//! scale set to one (and its minimum to zero, and the other way round), which gives exact integers.

use forerun_model::QuantType;

use crate::activation::Q8Row;
use crate::dequant::{dequantise, half_at};

/// Where a block keeps its half-float factors.
#[derive(Clone, Copy)]
struct Factors {
    d: usize,
    dmin: Option<usize>,
}

fn factors(quant: QuantType) -> Factors {
    match quant {
        QuantType::Q3_K => Factors { d: 108, dmin: None },
        QuantType::Q4_K | QuantType::Q5_K => Factors { d: 0, dmin: Some(2) },
        QuantType::Q6_K => Factors { d: 208, dmin: None },
        QuantType::Q8_0 => Factors { d: 0, dmin: None },
        other => unreachable!("{other} multiplies f32 activations"),
    }
}

/// The product of a row of weights and a row of codes.
#[expect(clippy::cast_precision_loss, reason = "the rounding of the sum to f32 is part of the order")]
pub(super) fn dot(quant: QuantType, weights: &[u8], x: Q8Row<'_>) -> f32 {
    let at = factors(quant);
    let len = quant.block_len();
    let mut acc = 0.0;
    for (i, block) in weights.chunks_exact(quant.block_bytes()).enumerate() {
        let codes = &x.codes[i * len..(i + 1) * len];
        let scale = x.scales[i];
        let sum = sum_with(quant, block, at, (1.0, 0.0), codes) as f32;
        let product = (half_at(block, at.d) * scale) * sum;
        acc += match at.dmin {
            None => product,
            Some(dmin) => {
                let min_sum = -sum_with(quant, block, at, (0.0, 1.0), codes) as f32;
                product - (half_at(block, dmin) * scale) * min_sum
            }
        };
    }
    acc
}

/// The exact sum of weights times codes, with the block's factors replaced.
#[expect(
    clippy::cast_possible_truncation,
    reason = "with these factors every decoded weight is a small integer"
)]
fn sum_with(quant: QuantType, block: &[u8], at: Factors, (d, dmin): (f32, f32), codes: &[i8]) -> i64 {
    let mut bytes = [0; 256];
    let bytes = &mut bytes[..block.len()];
    bytes.copy_from_slice(block);
    bytes[at.d..at.d + 2].copy_from_slice(&half::f16::from_f32(d).to_le_bytes());
    if let Some(at) = at.dmin {
        bytes[at..at + 2].copy_from_slice(&half::f16::from_f32(dmin).to_le_bytes());
    }
    let mut values = [0.0; 256];
    let values = &mut values[..codes.len()];
    dequantise(quant, bytes, values);
    values.iter().zip(codes).map(|(w, &x)| *w as i64 * i64::from(x)).sum()
}
