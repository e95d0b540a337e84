//! What decides how predictable and how local the routing of a written model is.

use crate::chance::{Purpose, bell, stream};
use crate::error::SynthError;
use crate::geometry::Geometry;

/// Experts up to which a shape is made like, and compared with, the narrow trained model.
pub(crate) const NARROW_EXPERTS_MAX: usize = 64;

/// The knobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Knobs {
    pub(crate) mixer: f32,
    pub(crate) experts: f32,
    pub(crate) first_mixer: f32,
    pub(crate) first_experts: f32,
    pub(crate) uneven: f32,
    pub(crate) topic_first: f32,
    pub(crate) topic_last: f32,
    pub(crate) turn: f32,
    pub(crate) skew: f32,
    pub(crate) sharpness: f32,
}

/// Set by trial to give the statistics of a trained model with 8 of 256 experts; see `docs/measurements.md`.
const WIDE: Knobs = Knobs {
    mixer: 0.33,
    experts: 0.18,
    first_mixer: 0.53,
    first_experts: 1.5,
    uneven: 0.4,
    topic_first: 0.1,
    topic_last: 0.45,
    turn: 0.35,
    skew: 0.28,
    sharpness: 1.17,
};

/// The same for a trained model with 4 of 32.
const NARROW: Knobs = Knobs {
    mixer: 0.58,
    experts: 0.18,
    first_mixer: 0.24,
    first_experts: 1.0,
    uneven: 0.4,
    topic_first: 0.15,
    topic_last: 0.6,
    turn: 0.35,
    skew: 0.1,
    sharpness: 1.75,
};

/// What replaces single knobs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct KnobArgs {
    /// What a mixer adds to the residual stream, as a share of its size: how far the stream moves between a layer's
    /// last guess and its router
    #[arg(long, value_name = "X")]
    mixer: Option<f32>,

    /// What the experts add, likewise: how much worse an early guess is than the last one
    #[arg(long, value_name = "X")]
    experts: Option<f32>,

    /// The same for the mixer of layer 0: how well its router is guessed from the embedding
    #[arg(long, value_name = "X")]
    first_mixer: Option<f32>,

    /// The same for the experts of layer 0
    #[arg(long, value_name = "X")]
    first_experts: Option<f32>,

    /// How much the layers differ in what they add
    #[arg(long, value_name = "X")]
    uneven: Option<f32>,

    /// Share of a router's scores that follow the topic rather than the token, in layer 0: reuse between tokens
    #[arg(long, value_name = "0..1")]
    topic_first: Option<f32>,

    /// The same in the last layer; those between lie on a line
    #[arg(long, value_name = "0..1")]
    topic_last: Option<f32>,

    /// How far the topic turns from token to token: how soon reuse fades
    #[arg(long, value_name = "0..1")]
    turn: Option<f32>,

    /// Spread of the routers' row norms: how much more popular some experts are
    #[arg(long, value_name = "X")]
    skew: Option<f32>,

    /// Deviation of a router's scores: how much more the best of the chosen experts weighs
    #[arg(long, value_name = "X")]
    sharpness: Option<f32>,
}

impl KnobArgs {
    /// The defaults for a shape with what was given in their place.
    pub(crate) fn over_defaults(&self, geometry: &Geometry) -> Knobs {
        let knobs = if geometry.n_experts <= NARROW_EXPERTS_MAX { NARROW } else { WIDE };
        Knobs {
            mixer: self.mixer.unwrap_or(knobs.mixer),
            experts: self.experts.unwrap_or(knobs.experts),
            first_mixer: self.first_mixer.unwrap_or(knobs.first_mixer),
            first_experts: self.first_experts.unwrap_or(knobs.first_experts),
            uneven: self.uneven.unwrap_or(knobs.uneven),
            topic_first: self.topic_first.unwrap_or(knobs.topic_first),
            topic_last: self.topic_last.unwrap_or(knobs.topic_last),
            turn: self.turn.unwrap_or(knobs.turn),
            skew: self.skew.unwrap_or(knobs.skew),
            sharpness: self.sharpness.unwrap_or(knobs.sharpness),
        }
    }
}

impl Knobs {
    /// The topic's share in `layer` of `n_layers`.
    #[expect(clippy::cast_precision_loss, reason = "there are at most 1024 layers")]
    pub(crate) fn topic(&self, layer: usize, n_layers: usize) -> f32 {
        let at = layer as f32 / (n_layers.max(2) - 1) as f32;
        self.topic_first + (self.topic_last - self.topic_first) * at
    }

    /// What mixer and experts of `layer` add. The first layer is as its knobs say, the others differ by the seed.
    pub(crate) fn updates(&self, seed: u64, layer: usize) -> (f32, f32) {
        if layer == 0 {
            return (self.first_mixer, self.first_experts);
        }
        let mut rng = stream(seed, Purpose::Uneven, layer as u64);
        // The mean square of the factors is 1.
        let mut factor = || libm::expf(self.uneven * bell(&mut rng) - self.uneven * self.uneven);
        (self.mixer * factor(), self.experts * factor())
    }

    /// Refuses what would not be a model.
    ///
    /// # Errors
    /// [`SynthError::Knob`] names the knob and its range.
    pub(crate) fn check(&self) -> Result<(), SynthError> {
        let within = |what, value: f32, max: f32, right| {
            let ok = (0.0..=max).contains(&value);
            if ok { Ok(()) } else { Err(SynthError::Knob { what, value, right }) }
        };
        within("mixer", self.mixer, 1.0, "0 to 1")?;
        within("experts", self.experts, 1.0, "0 to 1")?;
        within("first-mixer", self.first_mixer, 10.0, "0 to 10")?;
        within("first-experts", self.first_experts, 10.0, "0 to 10")?;
        within("uneven", self.uneven, 1.0, "0 to 1")?;
        within("topic-first", self.topic_first, 1.0, "0 to 1")?;
        within("topic-last", self.topic_last, 1.0, "0 to 1")?;
        within("turn", self.turn, 1.0, "0 to 1")?;
        within("skew", self.skew, 1.0, "0 to 1")?;
        within("sharpness", self.sharpness, 10.0, "0 to 10")
    }

    /// As one would type them.
    pub(crate) fn text(&self) -> String {
        let all = [
            ("mixer", self.mixer),
            ("experts", self.experts),
            ("first-mixer", self.first_mixer),
            ("first-experts", self.first_experts),
            ("uneven", self.uneven),
            ("topic-first", self.topic_first),
            ("topic-last", self.topic_last),
            ("turn", self.turn),
            ("skew", self.skew),
            ("sharpness", self.sharpness),
        ];
        all.map(|(name, value)| format!("--{name} {value}")).join(" ")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Knobs for tests, whatever the defaults are.
    pub(crate) fn plain() -> Knobs {
        Knobs {
            mixer: 0.3,
            experts: 0.2,
            first_mixer: 0.5,
            first_experts: 1.0,
            uneven: 0.0,
            topic_first: 0.2,
            topic_last: 0.6,
            turn: 0.1,
            skew: 0.1,
            sharpness: 1.0,
        }
    }

    #[test]
    fn the_topic_grows_along_a_line() {
        let share = |layer| plain().topic(layer, 9);
        assert_eq!((share(0), share(8)), (0.2, 0.6));
        assert!((share(4) - 0.4).abs() < 1e-6);
        assert_eq!(plain().topic(0, 1), 0.2);
    }

    #[test]
    fn uneven_layers_differ_by_the_seed() {
        let knobs = Knobs { uneven: 0.5, ..plain() };
        assert_eq!(knobs.updates(1, 0), (0.5, 1.0));
        assert_eq!(knobs.updates(1, 3), knobs.updates(1, 3));
        assert_ne!(knobs.updates(1, 3), knobs.updates(2, 3));
        assert_eq!(plain().updates(1, 3), (0.3, 0.2));
    }

    #[test]
    fn a_knob_out_of_range_is_named() {
        let error = Knobs { turn: 1.5, ..plain() }.check().unwrap_err().to_string();
        assert_eq!(error, "--turn 1.5 makes no sense; it must be 0 to 1");
        assert!(Knobs { skew: f32::NAN, ..plain() }.check().is_err());
    }

    #[test]
    fn given_knobs_replace_defaults() {
        let pico = Geometry::named("pico").unwrap();
        let knobs = KnobArgs { turn: Some(0.9), ..KnobArgs::default() }.over_defaults(&pico);
        assert_eq!(knobs, Knobs { turn: 0.9, ..NARROW });
    }

    #[test]
    fn the_defaults_make_sense() {
        WIDE.check().and(NARROW.check()).unwrap();
    }
}
