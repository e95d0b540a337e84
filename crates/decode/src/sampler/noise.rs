//! Noise that is a function of its place: the same seed, choice, position and token give the same value.

use forerun_model::TokenId;

use super::Draw;

/// The noise of one draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    key: u64,
}

impl Noise {
    /// The noise of the tokens at `draw`.
    pub(super) fn new(seed: u64, draw: Draw) -> Self {
        let key = mix(mix(mix(seed) ^ u64::from(draw.choice)) ^ draw.position);
        Self { key }
    }

    /// Gumbel noise for `token`: the largest of `ln p + gumbel` falls on each token with probability p.
    pub(super) fn gumbel(self, token: TokenId) -> f64 {
        -libm::log(-libm::log(self.uniform(token)))
    }

    /// No less than [`Self::gumbel`], without its logarithms: `-ln(-ln u) <= -ln(1 - u)`, and `1 - u`, which is exact, is
    /// at least 2 to the power of its exponent.
    pub(super) fn gumbel_max(self, token: TokenId) -> f64 {
        const BIAS: u32 = 1023;
        let biased = ((1.0 - self.uniform(token)).to_bits() >> 52) as u32;
        // More than the logarithms' errors.
        let slack = 1e-6;
        f64::from(BIAS - biased) * std::f64::consts::LN_2 + slack
    }

    /// A number above 0 and below 1.
    #[expect(clippy::cast_precision_loss, reason = "52 bits and a half fit an f64 exactly")]
    fn uniform(self, token: TokenId) -> f64 {
        /// 2^-52.
        const STEP: f64 = 1.0 / (1u64 << 52) as f64;
        let bits = mix(self.key ^ mix(u64::from(token.0))) >> 12;
        (bits as f64 + 0.5) * STEP
    }
}

/// The step of SplitMix64: each input bit changes half of the output bits.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_a_place_never_changes() {
        // Results that were drawn with a seed must stay as they were: these bits are part of the interface.
        let noise = Noise::new(7, Draw { choice: 1, position: 42 });
        assert_eq!(noise.key, mix(mix(mix(7) ^ 1) ^ 42));
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert!(noise.gumbel(TokenId(0)).is_finite());
    }

    #[test]
    fn the_bound_holds_and_is_near() {
        let noise = Noise::new(3, Draw::default());
        for token in (0..200_000).map(TokenId) {
            let (found, bound) = (noise.gumbel(token), noise.gumbel_max(token));
            assert!(found <= bound, "{found} {bound}");
            assert!(found < 1.0 || bound - found < 1.3, "{found} {bound}");
        }
    }

    #[test]
    fn noise_is_uniform_over_tokens_positions_and_seeds() {
        let mut counts = [0u32; 16];
        let n = 64_000;
        for i in 0..n {
            let draw = Draw { choice: i % 3, position: u64::from(i / 40) };
            let u = Noise::new(u64::from(i % 5), draw).uniform(TokenId(i));
            assert!(u > 0.0 && u < 1.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bucket")]
            let bucket = (u * 16.0) as usize;
            counts[bucket] += 1;
        }
        let expect = f64::from(n) / 16.0;
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - expect).powi(2) / expect).sum();
        // 15 degrees of freedom: above 37.7 once in a thousand.
        assert!(chi < 37.7, "{chi}");
    }
}
