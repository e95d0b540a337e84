//! Random numbers that are the same on every system: integers and exact divisions only.

use forerun_sim::Rng;
use forerun_sim::rng::hash;

/// What a stream of numbers is for, so that two purposes never share one.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Purpose {
    /// Values of a pool of blocks.
    Pool = 1,
    /// Where a tensor begins in its pool.
    Start,
    /// Rows of a router.
    Router,
    /// The walk of the topic.
    Topic,
    /// What tells one script token from the others.
    Token,
    /// Small vectors of a layer.
    Vector,
    /// How layers differ.
    Uneven,
}

/// A stream of numbers that follows from the seed, the purpose and an index.
pub(crate) fn stream(seed: u64, purpose: Purpose, idx: u64) -> Rng {
    Rng::new(hash(&[seed, purpose as u64, idx]))
}

/// A number of mean 0 and deviation 1, bell-shaped: the sum of four even ones. Nothing lies beyond 3.47.
#[expect(clippy::cast_precision_loss, reason = "18 bits fit an f32")]
pub(crate) fn bell(rng: &mut Rng) -> f32 {
    /// Four times the mean of 16 random bits, in halves.
    const MEAN_TWICE: i32 = 4 * 65535;
    /// The deviation of the sum: 65536 * sqrt(4 / 12).
    const DEVIATION: f32 = 37_837.23;
    let bits = rng.next_u64();
    let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
    let twice = 2 * i32::try_from(sum).unwrap_or(0) - MEAN_TWICE;
    twice as f32 / (2.0 * DEVIATION)
}

/// A number in 0..1.
#[expect(clippy::cast_precision_loss, reason = "24 bits fit an f32")]
pub(crate) fn even(rng: &mut Rng) -> f32 {
    (rng.next_u64() >> 40) as f32 / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_has_mean_0_and_deviation_1() {
        let mut rng = stream(1, Purpose::Pool, 0);
        let values: Vec<f32> = (0..100_000).map(|_| bell(&mut rng)).collect();
        let mean = values.iter().sum::<f32>() / 1e5;
        let square = values.iter().map(|v| v * v).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.02 && (square - 1.0).abs() < 0.02, "{mean} {square}");
    }

    #[test]
    fn streams_differ_by_seed_purpose_and_index() {
        let first = |seed, purpose, idx| stream(seed, purpose, idx).next_u64();
        let all = [
            first(1, Purpose::Pool, 0),
            first(2, Purpose::Pool, 0),
            first(1, Purpose::Router, 0),
            first(1, Purpose::Pool, 1),
        ];
        assert!(all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| a != b)));
    }
}
