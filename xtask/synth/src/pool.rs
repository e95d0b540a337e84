//! Random blocks of one type, made once and written over and over: a file at the speed of its disk.

use std::collections::HashMap;

use forerun_compute::dequant::dequantise;
use forerun_model::QuantType;
use half::f16;

use crate::chance::{Purpose, bell, stream};
use crate::encode::{encode, scale_offsets};

/// Blocks of a pool, and values of a pool of single values. Primes: matrices have powers of two, so no two of a
/// tensor begin at the same place of the pool until it has begun at every place.
const N_BLOCKS: usize = 65_537;
const N_VALUES: usize = 1_048_583;

/// The pools of one seed.
#[derive(Debug)]
pub(crate) struct Pools {
    seed: u64,
    by_type: HashMap<QuantType, Vec<u8>>,
}

impl Pools {
    /// No pool yet; each is made when it is first asked for.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, by_type: HashMap::new() }
    }

    /// Random blocks of `quant` whose values have mean 0 and deviation `deviation`.
    pub(crate) fn scaled(&mut self, quant: QuantType, deviation: f32) -> Vec<u8> {
        let seed = self.seed;
        let mut bytes = self.by_type.entry(quant).or_insert_with(|| pool(seed, quant)).clone();
        let offsets = scale_offsets(quant);
        if offsets.is_empty() {
            let mut values = vec![0.0; bytes.len() / quant.block_bytes()];
            dequantise(quant, &bytes, &mut values);
            values.iter_mut().for_each(|v| *v *= deviation);
            bytes.clear();
            encode(quant, &values, &mut bytes);
            return bytes;
        }
        for block in bytes.chunks_exact_mut(quant.block_bytes()) {
            for &at in offsets {
                let scale = f16::from_le_bytes([block[at], block[at + 1]]).to_f32() * deviation;
                block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            }
        }
        bytes
    }
}

fn pool(seed: u64, quant: QuantType) -> Vec<u8> {
    let n_blocks = if quant.block_len() == 1 { N_VALUES } else { N_BLOCKS };
    let mut rng = stream(seed, Purpose::Pool, quant.id().into());
    let mut bytes = Vec::with_capacity(n_blocks * quant.block_bytes());
    let mut block = vec![0.0; quant.block_len()];
    for _ in 0..n_blocks {
        block.fill_with(|| bell(&mut rng));
        encode(quant, &block, &mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::SUPPORTED;

    #[test]
    fn a_pool_has_the_deviation_that_it_was_asked_for() {
        let mut pools = Pools::new(5);
        for quant in SUPPORTED {
            let bytes = pools.scaled(quant, 0.02);
            let mut values = vec![0.0; bytes.len() / quant.block_bytes() * quant.block_len()];
            dequantise(quant, &bytes, &mut values);
            let squares: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            #[expect(clippy::cast_precision_loss, reason = "a pool has far fewer values than 2^52")]
            let deviation = (squares / values.len() as f64).sqrt();
            assert!((deviation - 0.02).abs() < 0.001, "{quant}: {deviation}");
        }
    }
}
