//! A computer as one speed and how it is spent.

use forerun_model::Nanos;

/// How the compute time of a token is spent, as shares that are scaled to sum 1, and what guessing costs on top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Attention, delta-net and routers of all layers.
    pub mixer: f64,
    /// Routed experts.
    pub experts: f64,
    /// Shared experts.
    pub shared: f64,
    /// Final norm, logits, sampling.
    pub head: f64,
    /// One question to the router of each layer; not part of the sum, for only who guesses asks.
    pub scores: f64,
}

impl Default for Shares {
    /// Near to a 35B-A3B model on a CPU. A router of 256 experts is a sixth as many products as one of 8 experts of 512.
    fn default() -> Self {
        Self { mixer: 0.30, experts: 0.45, shared: 0.05, head: 0.20, scores: 0.02 }
    }
}

/// How fast a computer would be if every expert were in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// Tokens a second when nothing is read.
    pub tokens_per_second: f64,
    /// What they are spent on.
    pub shares: Shares,
}

impl Compute {
    /// So many tokens a second, spent as usual.
    pub fn of_rate(tokens_per_second: f64) -> Self {
        Self { tokens_per_second, shares: Shares::default() }
    }

    /// The times of one token, layer by layer.
    pub(super) fn spans(&self, n_layers: usize, top_k: usize) -> Spans {
        let Shares { mixer, experts, shared, head, scores } = self.shares;
        let token_ns = 1e9 / self.tokens_per_second / (mixer + experts + shared + head);
        let layer_ns = token_ns / count(n_layers);
        Spans {
            mixer: nanos(mixer * layer_ns),
            scores: nanos(scores * layer_ns),
            shared: nanos(shared * layer_ns),
            expert: nanos(experts * layer_ns / count(top_k)),
            head: nanos(head * token_ns),
        }
    }
}

/// How long each part takes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spans {
    pub(super) mixer: Nanos,
    pub(super) scores: Nanos,
    pub(super) shared: Nanos,
    pub(super) expert: Nanos,
    pub(super) head: Nanos,
}

#[expect(clippy::cast_precision_loss, reason = "counts of layers and experts")]
fn count(n: usize) -> f64 {
    n.max(1) as f64
}

/// Whole nanoseconds; none for what is no time, such as that of an endless speed.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
fn nanos(ns: f64) -> Nanos {
    Nanos(ns.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_token_sum_up_to_it() {
        let Spans { mixer, shared, expert, head, scores } = Compute::of_rate(10.0).spans(40, 8);
        assert_eq!(40 * (mixer.0 + shared.0 + 8 * expert.0) + head.0, 100_000_000);
        assert_eq!((mixer.0, scores.0), (750_000, 50_000));
    }

    #[test]
    fn an_endless_speed_takes_no_time() {
        let Spans { mixer, shared, expert, head, scores } = Compute::of_rate(f64::INFINITY).spans(40, 8);
        assert_eq!(mixer.0 + shared.0 + expert.0 + head.0 + scores.0, 0);
    }
}
