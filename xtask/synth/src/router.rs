//! Routers: random rows, with a gain on the topic that gives it its share of the scores.

use crate::chance::{Purpose, bell, stream};
use crate::knobs::Knobs;
use crate::script::{CARRIER_SIZE, Channels};
use crate::sizes::Sizes;

/// One layer's router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Router {
    seed: u64,
    layer: usize,
    channels: Channels,
    skew: f32,
    /// Deviations of the weights of free channels and of those of the topic, before the skew.
    free: f32,
    topic: f32,
}

impl Router {
    /// The router of a seed's layer: scores have the deviation and the share of the topic that knobs and sizes say.
    #[expect(clippy::cast_precision_loss, reason = "channels of a model")]
    pub(crate) fn new((seed, layer): (u64, usize), knobs: &Knobs, channels: Channels, sizes: &Sizes) -> Self {
        let part = |share: f32, n: usize, size: f32| {
            // The norm has divided the stream by its total size.
            knobs.sharpness * (share / n as f32).sqrt() * sizes.total / size
        };
        Self {
            seed,
            layer,
            channels,
            skew: knobs.skew,
            free: part(1.0 - sizes.topic, channels.n_free, sizes.free),
            topic: part(sizes.topic, channels.n_topic, CARRIER_SIZE),
        }
    }

    /// The rows of `n_experts` experts, one after the other.
    pub(crate) fn rows(&self, n_experts: usize) -> Vec<f32> {
        let Channels { n_free, n_topic, n_token } = self.channels;
        let mut rng = stream(self.seed, Purpose::Router, self.layer as u64);
        let mut rows = Vec::with_capacity(n_experts * (n_free + n_topic + n_token));
        for _ in 0..n_experts {
            // The mean square of the factors is 1.
            let norm = libm::expf(self.skew * bell(&mut rng) - self.skew * self.skew);
            rows.extend((0..n_free).map(|_| norm * self.free * bell(&mut rng)));
            rows.extend((0..n_topic).map(|_| norm * self.topic * bell(&mut rng)));
            rows.extend((0..n_token).map(|_| 0.0));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::tests::plain;

    #[test]
    fn scores_have_the_deviation_and_the_share_that_were_asked_for() {
        let channels = Channels::of(1024);
        let knobs = Knobs { skew: 0.0, sharpness: 1.5, ..plain() };
        let sizes = Sizes { mixer: 0.0, free: 3.0, total: 2.9, experts: 0.0, topic: 0.3 };
        let rows = Router::new((1, 0), &knobs, channels, &sizes).rows(512);
        let square = |from: usize, n: usize, size: f32| {
            let squares = rows.chunks_exact(1024).flat_map(|row| &row[from..from + n]).map(|v| v * v);
            squares.sum::<f32>() / 512.0 * (size / 2.9) * (size / 2.9)
        };
        let (free, topic) = (square(0, 928, 3.0), square(928, 32, CARRIER_SIZE));
        assert!((free + topic - 2.25).abs() < 0.05, "{free} {topic}");
        assert!((topic / (free + topic) - 0.3).abs() < 0.02, "{free} {topic}");
    }
}
