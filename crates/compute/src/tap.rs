//! What matrices are multiplied with, for those who measure which columns matter.

use std::fmt;

use forerun_model::LayerId;

use crate::activation::{Activations, Rows};

/// Which products of a layer share an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Inputs {
    /// The mixer's first products: queries, keys, values, gates, and a delta-net's decays and corrections.
    Mixer,
    /// The mixer's last product.
    MixerOutput,
    /// The router, and the first products of the shared expert.
    Router,
    /// The last product of the shared expert.
    SharedDown,
    /// The first products of a routed expert, for the rows that want it.
    Experts,
    /// The last product of a routed expert.
    ExpertsDown,
    /// The head, after the last layer.
    Head,
}

/// Where a tap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapPoint {
    /// The layer; the last one for the head.
    pub layer: LayerId,
    /// The products.
    pub inputs: Inputs,
    /// The routed expert; 0 elsewhere.
    pub matrix: usize,
}

/// Hears the inputs of products in every step. It can change no result.
///
/// At each point the rows of a step come in their order, and steps follow each other as the tokens do; which expert comes
/// first is a matter of schedule. So what is kept apart for each point doesn't depend on steps, threads or slots. A step
/// that fails was heard in part.
pub trait InputTap: Send + fmt::Debug {
    /// Whether it wants to hear the head's inputs, which cost a norm for every row.
    fn asks_head(&self) -> bool;

    /// `rows` of `x` are multiplied at `point`.
    fn inputs(&mut self, point: TapPoint, x: &Activations, rows: Rows<'_>);
}

/// Where a stack keeps its tap, or none.
#[derive(Debug, Default)]
pub(crate) struct Tap(Option<Box<dyn InputTap>>);

impl Tap {
    pub(crate) fn new(tap: Box<dyn InputTap>) -> Self {
        Self(Some(tap))
    }

    pub(crate) fn asks_head(&self) -> bool {
        self.0.as_ref().is_some_and(|tap| tap.asks_head())
    }

    /// Tells the tap, if there is one.
    pub(crate) fn hear(
        &mut self,
        layer: LayerId,
        inputs: Inputs,
        x: &Activations,
        matrix: usize,
        rows: Rows<'_>,
    ) {
        if let Some(tap) = &mut self.0 {
            tap.inputs(TapPoint { layer, inputs, matrix }, x, rows);
        }
    }
}
