//! How large the residual stream is, layer by layer, and what each part of a layer must add to it.

use crate::geometry::Geometry;
use crate::knobs::Knobs;
use crate::script::{CARRIER_SIZE, Channels};

/// One layer's sizes, as roots of mean squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizes {
    /// What the mixer adds.
    pub(crate) mixer: f32,
    /// The free channels at the router.
    pub(crate) free: f32,
    /// All channels at the router, which the norm divides by.
    pub(crate) total: f32,
    /// What the experts add.
    pub(crate) experts: f32,
    /// Share of the scores that follow the topic.
    pub(crate) topic: f32,
}

/// The sizes of all layers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AllSizes {
    pub(crate) layers: Vec<Sizes>,
    /// All channels at the head.
    pub(crate) total_last: f32,
}

/// Follows the stream through the layers: what is added points anywhere, so squares add up.
pub(crate) fn sizes(geometry: &Geometry, knobs: &Knobs, seed: u64) -> AllSizes {
    let channels = Channels::of(geometry.hidden);
    let mut free = 1.0f32;
    let layer = |idx| {
        let (mixer, experts) = knobs.updates(seed, idx);
        let mixer = mixer * free;
        free = free.hypot(mixer);
        let at_router = free;
        let experts = experts * free;
        free = free.hypot(experts);
        let topic = knobs.topic(idx, geometry.n_layers);
        Sizes { mixer, free: at_router, total: total(at_router, channels), experts, topic }
    };
    let layers = (0..geometry.n_layers).map(layer).collect();
    AllSizes { layers, total_last: total(free, channels) }
}

#[expect(clippy::cast_precision_loss, reason = "channels of a model")]
fn total(free: f32, channels: Channels) -> f32 {
    let (n_free, n_carriers) = (channels.n_free as f32, channels.n_carriers() as f32);
    let squares = n_free * free * free + n_carriers * CARRIER_SIZE * CARRIER_SIZE;
    (squares / (n_free + n_carriers)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::tests::plain;

    #[test]
    fn squares_add_up() {
        let geometry = Geometry::named("pico").unwrap();
        let knobs = Knobs { first_mixer: 0.75, first_experts: 1.0, ..plain() };
        let all = sizes(&geometry, &knobs, 1);
        let first = all.layers[0];
        assert_eq!((first.mixer, first.free, first.experts), (0.75, 1.25, 1.25));
        assert_eq!(first.total, ((160.0 * 1.5625 + 96.0 * 4.0) / 256.0f32).sqrt());
        assert!((all.layers[1].mixer - 0.3 * 1.25 * 2.0f32.sqrt()).abs() < 1e-6);
    }
}
