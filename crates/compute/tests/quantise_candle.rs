//! Our blocks against those of candle's encoders.
//!
//! The errors are those of `candle-core` 0.11.1, `QTensor::quantize` and `QTensor::quantize_imatrix`, on the very rows of
//! `rows`. They are written down here because building candle for them takes longer than all tests of this crate.

mod rows;

use forerun_model::QuantType;
use rows::{KINDS, Kind, decoded, encoded, error, weights};

/// Rows of each kind.
const N_ROWS: usize = 32;

/// A type, and candle's relative errors on each of [`KINDS`].
type Errors = (QuantType, [f64; 4]);

/// With all values alike.
const EVEN: [Errors; 10] = [
    (QuantType::Q8_0, [2.7421e-5, 4.4496e-5, 1.4181e-4, 1.3348e-5]),
    (QuantType::Q4_0, [7.1458e-3, 1.1225e-2, 2.4502e-2, 3.3011e-3]),
    (QuantType::Q4_1, [5.9207e-3, 8.3235e-3, 1.2170e-2, 1.4430e-3]),
    (QuantType::Q5_0, [1.7711e-3, 2.8198e-3, 8.7357e-3, 8.6344e-4]),
    (QuantType::Q5_1, [1.3976e-3, 1.9458e-3, 2.7481e-3, 3.3779e-4]),
    (QuantType::Q2_K, [8.2760e-2, 1.0241e-1, 4.7544e-2, 2.7152e-2]),
    (QuantType::Q3_K, [2.2225e-2, 3.1381e-2, 2.4342e-2, 1.0693e-2]),
    (QuantType::Q4_K, [5.3987e-3, 7.6209e-3, 1.1046e-2, 1.6434e-3]),
    (QuantType::Q5_K, [1.3257e-3, 1.8920e-3, 2.6574e-3, 3.9988e-4]),
    (QuantType::Q6_K, [3.2796e-4, 4.8378e-4, 1.1467e-3, 1.5891e-4]),
];

/// With weights. candle has them for the K types only.
const WEIGHTED: [Errors; 5] = [
    (QuantType::Q2_K, [4.0195e-2, 5.0930e-2, 7.2727e-2, 1.4880e-2]),
    (QuantType::Q3_K, [1.6094e-2, 2.1460e-2, 3.5496e-2, 7.3486e-3]),
    (QuantType::Q4_K, [3.2157e-3, 4.4168e-3, 1.4239e-2, 1.0567e-3]),
    (QuantType::Q5_K, [8.8598e-4, 1.2409e-3, 3.7209e-3, 2.7178e-4]),
    (QuantType::Q6_K, [2.4489e-4, 3.4464e-4, 1.6651e-3, 1.2702e-4]),
];

#[test]
fn errors_are_below_candles() {
    let uneven = weights();
    for (table, weights) in [(&EVEN[..], None), (&WEIGHTED[..], Some(&uneven[..]))] {
        for (quant, theirs) in table {
            for (kind, theirs) in KINDS.into_iter().zip(theirs) {
                let values = rows::rows(kind, N_ROWS);
                let ours = error(&values, &decoded(*quant, &encoded(*quant, &values, weights)), weights);
                let limit = theirs * limit(*quant, kind, weights);
                let weighted = if weights.is_some() { ", weighted" } else { "" };
                assert!(ours <= limit, "{quant} of {kind:?}{weighted}: {ours:.4e}, candle has {theirs:.4e}");
            }
        }
    }
}

/// Where candle is better, by how much: few codes, a few large values, and no weights to say which count.
fn limit(quant: QuantType, kind: Kind, weights: Option<&[f32]>) -> f64 {
    match (quant, kind, weights) {
        (QuantType::Q2_K, Kind::Outliers, None) => 1.1,
        _ => 1.0,
    }
}
