//! The trait of those who guess which experts will be wanted next.

use forerun_model::{ExpertKey, LayerId, Routing};

pub mod none;

/// Most guesses that one offer may bring; the rest is cut off.
pub const GUESSES_MAX: usize = 64;

/// What a router says about a layer that hasn't been reached: probabilities `[n_rows, n_experts]`, row-major.
#[derive(Clone, Copy, Debug)]
pub struct GuessInput<'a> {
    /// The layer that was asked about.
    pub layer: LayerId,
    /// Experts per row.
    pub n_experts: usize,
    /// One probability per row and expert.
    pub probabilities: &'a [f32],
}

/// An expert that may be wanted soon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// The expert.
    pub key: ExpertKey,
    /// How likely its layer's next routing wants it, 0 to 1.
    pub probability: f32,
}

/// Guesses which experts to read ahead. Never affects a result: a guess that is wrong, doubled or names an expert
/// that doesn't exist costs time only.
///
/// The scheduler calls [`Predictor::observe`] once per opened layer, in the order of the token loop, and
/// [`Predictor::guess`] once per offer.
pub trait Predictor: Send {
    /// Learns what the real router of `layer` chose.
    fn observe(&mut self, layer: LayerId, routing: &Routing);

    /// Adds guesses, best first, at most [`GUESSES_MAX`]; `guesses` comes empty.
    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>);
}
