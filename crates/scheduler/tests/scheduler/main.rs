//! The scheduler over a store of chance: what a turn promises, and what no order, failure or guess may change.

mod any_order;
#[cfg(test)]
mod guesses;
#[cfg(test)]
mod lending;
#[cfg(test)]
mod support;
#[cfg(test)]
mod sweep;
mod turns;
#[cfg(test)]
mod wire;
