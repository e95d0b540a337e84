//! What decides how predictable and how local the routing of a written model is.

use crate::error::SynthError;

/// The knobs; defaults give the statistics of a trained model, see `docs/measurements.md`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Knobs {
    /// What a mixer adds to the residual stream, as a share of its size: how far the stream moves between a layer's
    /// last guess and its router
    #[arg(long, value_name = "X", default_value_t = 0.27)]
    pub(crate) mixer: f32,

    /// What the experts add, likewise: how much worse an early guess is than the last one
    #[arg(long, value_name = "X", default_value_t = 0.2)]
    pub(crate) experts: f32,

    /// The same for the mixer of layer 0: how well its router is guessed from the embedding
    #[arg(long, value_name = "X", default_value_t = 0.7)]
    pub(crate) first_mixer: f32,

    /// The same for the experts of layer 0
    #[arg(long, value_name = "X", default_value_t = 1.5)]
    pub(crate) first_experts: f32,

    /// Share of a router's scores that follow the topic rather than the token, in layer 0: reuse between tokens
    #[arg(long, value_name = "0..1", default_value_t = 0.25)]
    pub(crate) topic_first: f32,

    /// The same in the last layer; those between lie on a line
    #[arg(long, value_name = "0..1", default_value_t = 0.55)]
    pub(crate) topic_last: f32,

    /// How far the topic turns from token to token: how soon reuse fades
    #[arg(long, value_name = "0..1", default_value_t = 0.2)]
    pub(crate) turn: f32,

    /// Spread of the routers' row norms: how much more popular some experts are
    #[arg(long, value_name = "X", default_value_t = 0.15)]
    pub(crate) skew: f32,

    /// Deviation of a router's scores: how much more the best of the chosen experts weighs
    #[arg(long, value_name = "X", default_value_t = 1.3)]
    pub(crate) sharpness: f32,
}

impl Knobs {
    /// The topic's share in `layer` of `n_layers`.
    #[expect(clippy::cast_precision_loss, reason = "there are at most 1024 layers")]
    pub(crate) fn topic(&self, layer: usize, n_layers: usize) -> f32 {
        let at = layer as f32 / (n_layers.max(2) - 1) as f32;
        self.topic_first + (self.topic_last - self.topic_first) * at
    }

    /// What mixer and experts of `layer` add.
    pub(crate) fn updates(&self, layer: usize) -> (f32, f32) {
        if layer == 0 { (self.first_mixer, self.first_experts) } else { (self.mixer, self.experts) }
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
        within("mixer", self.mixer, 2.0, "0 to 2")?;
        within("experts", self.experts, 2.0, "0 to 2")?;
        within("first-mixer", self.first_mixer, 10.0, "0 to 10")?;
        within("first-experts", self.first_experts, 10.0, "0 to 10")?;
        within("topic-first", self.topic_first, 1.0, "0 to 1")?;
        within("topic-last", self.topic_last, 1.0, "0 to 1")?;
        within("turn", self.turn, 1.0, "0 to 1")?;
        within("skew", self.skew, 2.0, "0 to 2")?;
        within("sharpness", self.sharpness, 10.0, "0 to 10")
    }

    /// As one would type them.
    pub(crate) fn text(&self) -> String {
        format!(
            "--mixer {} --experts {} --first-mixer {} --first-experts {} --topic-first {} --topic-last {} \
             --turn {} --skew {} --sharpness {}",
            self.mixer,
            self.experts,
            self.first_mixer,
            self.first_experts,
            self.topic_first,
            self.topic_last,
            self.turn,
            self.skew,
            self.sharpness
        )
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
    fn a_knob_out_of_range_is_named() {
        let error = Knobs { turn: 1.5, ..plain() }.check().unwrap_err().to_string();
        assert_eq!(error, "--turn 1.5 makes no sense; it must be 0 to 1");
        assert!(Knobs { skew: f32::NAN, ..plain() }.check().is_err());
    }
}
