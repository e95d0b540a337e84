//! Rows of values to encode, and what encoding leaves of them.

use forerun_compute::dequant::dequantise;
use forerun_compute::quantise::quantise;
use forerun_model::QuantType;

/// Values of a row: the longest of a small expert's, two or more blocks of every type.
pub(crate) const ROW: usize = 512;

/// Kinds of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Gaussian,
    Laplace,
    /// Gaussian, and one value in 64 is twenty times larger.
    Outliers,
    /// What a model of the fixtures is made of.
    Model,
}

pub(crate) const KINDS: [Kind; 4] = [Kind::Gaussian, Kind::Laplace, Kind::Outliers, Kind::Model];

/// Numbers from a seed.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 to 1.
    pub(crate) fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        u16::try_from((z ^ (z >> 31)) >> 48).map_or(0.0, f32::from) / 65536.0
    }

    /// The sum of twelve uniform numbers is near enough.
    pub(crate) fn gaussian(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    pub(crate) fn laplace(&mut self) -> f32 {
        let size = -(1.0 - self.uniform()).ln();
        if self.uniform() < 0.5 { -size } else { size }
    }
}

/// `n` rows, one after the other.
pub(crate) fn rows(kind: Kind, n: usize) -> Vec<f32> {
    let mut noise = Noise::new(7);
    let n = n * ROW;
    match kind {
        Kind::Gaussian => (0..n).map(|_| noise.gaussian() * 0.02).collect(),
        Kind::Laplace => (0..n).map(|_| noise.laplace() * 0.02).collect(),
        Kind::Outliers => (0..n).map(|i| noise.gaussian() * if i % 64 == 21 { 0.4 } else { 0.02 }).collect(),
        Kind::Model => {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-a-f32.gguf");
            let file = std::fs::read(path).expect("the fixtures are there");
            // The last tensors are matrices of F32.
            let words = file[file.len() - n * 4..].as_chunks::<4>().0;
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
    }
}

/// Weights as uneven as an importance matrix's.
pub(crate) fn weights() -> Vec<f32> {
    let mut noise = Noise::new(11);
    (0..ROW).map(|_| (1.5 * noise.gaussian()).exp()).collect()
}

/// The bytes of rows.
pub(crate) fn encoded(quant: QuantType, values: &[f32], weights: Option<&[f32]>) -> Vec<u8> {
    let row_bytes = quant.row_bytes(ROW).expect("whole blocks");
    let mut bytes = vec![0; values.len() / ROW * row_bytes];
    for (row, out) in values.chunks(ROW).zip(bytes.chunks_mut(row_bytes)) {
        quantise(quant, row, weights, out);
    }
    bytes
}

/// The values of blocks.
pub(crate) fn decoded(quant: QuantType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; bytes.len() / quant.block_bytes() * quant.block_len()];
    dequantise(quant, bytes, &mut values);
    values
}

/// The sum of the squares of the errors, weighted, over that of the values: 0 is perfect.
pub(crate) fn error(values: &[f32], found: &[f32], weights: Option<&[f32]>) -> f64 {
    assert_eq!(values.len(), found.len());
    let weight = |i: usize| weights.map_or(1.0, |w| f64::from(w[i % w.len()]));
    let sum = |f: &dyn Fn(usize) -> f64| (0..values.len()).map(|i| weight(i) * f(i).powi(2)).sum::<f64>();
    sum(&|i| f64::from(values[i]) - f64::from(found[i])) / sum(&|i| f64::from(values[i]))
}
