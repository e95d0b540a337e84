//! Routers in 8 bits, for guesses only: a quarter of the bytes.
//!
//! A guess changes nothing but time, so it need not have the router's own bits; and the routers of a large model are read
//! twice a token for guesses.

use forerun_model::QuantType;
use half::f16;

use super::{LayerWeights, Weights};
use crate::tensor::Tensor;

/// Weights per block of [`QuantType::Q8_0`].
const BLOCK: usize = 32;
/// Bytes of a block: a scale, and a byte a weight.
const BLOCK_BYTES: usize = 2 + BLOCK;
/// Smaller routers stay in a core's cache as they are.
const ROUTER_BYTES_MIN: usize = 256 << 10;

impl Weights {
    /// Bytes that [`Self::add_guess_routers`] takes.
    pub fn guess_router_bytes(&self) -> u64 {
        self.layers.iter().filter(|layer| pays(&layer.router)).map(|layer| size(&layer.router) as u64).sum()
    }

    /// Copies the large routers in 8 bits, for guesses.
    pub fn add_guess_routers(&mut self) {
        for layer in self.layers.iter_mut().filter(|layer| pays(&layer.router)) {
            layer.guess_router = Some(coded(&layer.router));
        }
    }
}

impl LayerWeights {
    /// The router that guesses are made with.
    pub fn guess_router(&self) -> &Tensor {
        self.guess_router.as_ref().unwrap_or(&self.router)
    }
}

fn pays(router: &Tensor) -> bool {
    let layout = router.matrix().layout;
    let is_wide = matches!(layout.quant, QuantType::F32 | QuantType::F16 | QuantType::BF16);
    is_wide && layout.n_cols.is_multiple_of(BLOCK) && layout.bytes() >= ROUTER_BYTES_MIN
}

fn size(router: &Tensor) -> usize {
    let layout = router.matrix().layout;
    layout.n_rows * layout.n_cols / BLOCK * BLOCK_BYTES
}

/// The router as Q8_0: of each 32 weights the largest becomes 127 or -127.
#[expect(clippy::cast_possible_truncation, reason = "rounded values are within -127 to 127")]
fn coded(router: &Tensor) -> Tensor {
    let layout = router.matrix().layout;
    let mut bytes = Vec::with_capacity(size(router));
    for block in router.values().chunks_exact(BLOCK) {
        let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        bytes.extend_from_slice(&f16::from_f32(scale).to_le_bytes());
        bytes.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
    }
    let name = format!("{} for guesses", router.name());
    Tensor::new(&name, QuantType::Q8_0, layout.n_rows, layout.n_cols, bytes.into())
        .expect("as many whole blocks as the router has")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(n_rows: usize, n_cols: usize) -> Tensor {
        let value = |i: usize| ((i * 7919 % 1000) as f32 / 500.0 - 1.0) * (1 + i / n_cols) as f32;
        let bytes: Vec<u8> = (0..n_rows * n_cols).flat_map(|i| value(i).to_le_bytes()).collect();
        Tensor::new("router", QuantType::F32, n_rows, n_cols, bytes.into()).unwrap()
    }

    #[test]
    fn a_coded_router_is_near_the_router() {
        let router = router(8, 64);
        let (values, coded) = (router.values(), coded(&router).values());
        for (block, near) in values.chunks(BLOCK).zip(coded.chunks(BLOCK)) {
            let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            assert!(block.iter().zip(near).all(|(a, b)| (a - b).abs() <= largest / 200.0));
        }
    }

    #[test]
    fn only_large_routers_are_copied() {
        assert!(!pays(&router(8, 64)) && pays(&router(128, 512)));
        assert_eq!(size(&router(128, 512)), 128 * 16 * 34);
    }
}
