//! Watching routers at work: what they choose, and what they say ahead of their turn.

pub use forerun_compute::Row;
use forerun_model::{LayerId, Routing};
pub use forerun_scheduler::{GuessInput, View};

/// Hears what routers say in every step. It is asked nothing that could change a result or a schedule, so what it
/// hears is what happens without it.
///
/// A step begins; then, for each layer, what its router chose and what later layers' routers said at the places where
/// a scheduler would be offered their scores. A step that fails ends early.
pub trait RoutingObserver: Send {
    /// A step over `rows` begins.
    fn begin(&mut self, rows: &[Row]);

    /// Whether it wants to hear routers at `view`, each of which costs a product.
    fn asks(&self, view: View) -> bool;

    /// What the router of `layer` chose.
    fn routed(&mut self, layer: LayerId, routing: &Routing);

    /// What a router says about a layer that hasn't been reached.
    fn told(&mut self, input: &GuessInput<'_>);
}
