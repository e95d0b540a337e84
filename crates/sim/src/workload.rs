//! What a machine is asked to do: tokens for a backend, or made-up routings alone.

use forerun_model::{ExpertId, LayerId, Routing, TokenId};

use crate::Rng;

/// One pass through the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkStep {
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// How many of them are accepted: fewer than all, as after a rejected draft.
    pub n_accepted: usize,
}

/// The steps of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The steps, in order.
    pub steps: Vec<WorkStep>,
}

impl Workload {
    /// A prompt of some length, then `n_steps` steps of one token, or of a few of which some are rejected.
    pub fn random(seed: u64, n_vocab: usize, n_steps: usize) -> Self {
        let mut rng = Rng::new(seed);
        let step = |n_tokens: usize, n_accepted: usize, rng: &mut Rng| {
            let token = |_| TokenId(u32::try_from(rng.index(n_vocab)).unwrap_or(0));
            WorkStep { tokens: (0..n_tokens).map(token).collect(), n_accepted }
        };
        let n_prompt = 4 + rng.index(16);
        let mut steps = vec![step(n_prompt, n_prompt, &mut rng)];
        for _ in 0..n_steps {
            let n_tokens = if rng.happens(300) { 2 + rng.index(5) } else { 1 };
            let n_accepted = 1 + rng.index(n_tokens);
            steps.push(step(n_tokens, n_accepted, &mut rng));
        }
        Self { steps }
    }
}

/// Makes up routings whose rows keep some experts of the row before.
#[derive(Clone, Debug)]
pub struct Synthetic {
    rng: Rng,
    n_experts: u16,
    top_k: usize,
    reuse_permille: u32,
    /// The last row of each layer.
    last: Vec<Vec<ExpertId>>,
}

impl Synthetic {
    /// Routings of `top_k` of `n_experts` experts, each kept from the row before with `reuse_permille`.
    ///
    /// # Panics
    /// When a row asks for more experts than there are.
    pub fn new(seed: u64, n_experts: u16, top_k: usize, reuse_permille: u32) -> Self {
        assert!(top_k <= n_experts.into(), "a row of {top_k} of {n_experts} experts");
        Self { rng: Rng::new(seed), n_experts, top_k, reuse_permille, last: Vec::new() }
    }

    /// Replaces `routing` by the next `n_rows` rows of `layer`, grouped.
    pub fn next(&mut self, layer: LayerId, n_rows: usize, routing: &mut Routing) {
        if self.last.len() <= layer.idx() {
            self.last.resize(layer.idx() + 1, Vec::new());
        }
        routing.reset(self.top_k);
        for _ in 0..n_rows {
            let mut row = std::mem::take(&mut self.last[layer.idx()]);
            row.retain(|_| self.rng.happens(self.reuse_permille));
            while row.len() < self.top_k {
                let expert = ExpertId(u16::try_from(self.rng.below(self.n_experts.into())).unwrap_or(0));
                if !row.contains(&expert) {
                    row.push(expert);
                }
            }
            routing.push_row(&row.iter().map(|&expert| (expert, 1.0)).collect::<Vec<_>>());
            self.last[layer.idx()] = row;
        }
        routing.group();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuse_keeps_experts_from_row_to_row() {
        let kept = |reuse_permille| {
            let mut routings = Synthetic::new(1, 64, 8, reuse_permille);
            let mut routing = Routing::default();
            routings.next(LayerId(0), 100, &mut routing);
            let wants = |row: usize, e: ExpertId| routing.row(row).iter().any(|x| x.0 == e);
            (1..100)
                .flat_map(|r| routing.row(r).iter().map(move |e| (r, e.0)))
                .filter(|&(r, e)| wants(r - 1, e))
                .count()
        };
        assert!(kept(900) > 700 && kept(100) < 200, "{} {}", kept(900), kept(100));
    }
}
