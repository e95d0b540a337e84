//! The trait of those who guess which experts will be wanted next.

use forerun_model::{ExpertKey, LayerId, Routing, Stage};

pub mod blend;
pub mod none;
pub mod recent;
pub mod router_ahead;

/// Most guesses that one offer may bring; the rest is cut off.
pub const GUESSES_MAX: usize = 64;

/// Where in a pass a guess is made, and how far ahead it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct View {
    /// How much of the residual stream is known.
    pub stage: Stage,
    /// Layers from here to the one that is guessed: 1 for the next to be opened.
    pub ahead: u16,
}

/// What a router says about a layer that hasn't been reached: probabilities `[n_rows, n_experts]`, row-major.
#[derive(Clone, Copy, Debug)]
pub struct GuessInput<'a> {
    /// Where the router was asked.
    pub view: View,
    /// The layer that was asked about.
    pub layer: LayerId,
    /// Experts per row.
    pub n_experts: usize,
    /// One probability per row and expert; empty when the predictor wants none.
    pub probabilities: &'a [f32],
}

/// An expert that may be wanted soon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// The expert.
    pub key: ExpertKey,
    /// How likely its layer's next routing wants it, 0 to 1, in the predictor's own opinion. The scheduler goes by the order
    /// of guesses, and learns what each rank is worth; only [`Gate::Open`](crate::Gate::Open) looks at it.
    pub probability: f32,
}

/// Guesses which experts to read ahead. Never affects a result: a guess that is wrong, doubled or names an expert
/// that doesn't exist costs time only.
///
/// The scheduler calls [`Predictor::observe`] once per opened layer, in the order of the token loop, and
/// [`Predictor::guess`] once per offer. Whether a guess is read is not the predictor's business: it gives an order, and
/// the scheduler learns for each layer and rank how often such a guess is right.
pub trait Predictor: Send {
    /// The name on the command line and in telemetry.
    fn name(&self) -> &'static str;

    /// Whether an offer at `view` would bring guesses. Where it wouldn't, no router is asked.
    fn listens(&self, view: View) -> bool;

    /// Whether it uses [`GuessInput::probabilities`], which cost a product with a router each.
    fn wants_scores(&self) -> bool;

    /// Learns what the real router of `layer` chose.
    fn observe(&mut self, layer: LayerId, routing: &Routing);

    /// Adds guesses, best first, at most [`GUESSES_MAX`]; `guesses` comes empty.
    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>);
}
