//! Keeps what was wanted after tokens that were routed like the present one: the shipped policy.
//!
//! A count of uses, however it decays, asks what a layer wanted lately. But a text goes back and forth between things:
//! what a token wanted that was routed like this one says more about what comes next than the tokens in between. So
//! each remembered token of a layer gets a weight by how many experts it shares with the present token, that weight
//! passes on to the tokens that followed it and fades with each, and an expert is worth the weights of the tokens that
//! used it, as a share of all weights:
//!
//! ```text
//! weight(s) = FADE * weight(s - 1) + e^(LIKENESS * shared(s - 1, now) / top_k)
//! worth(x)  = sum over s that used x of weight(s) * RECENT^age(s)  /  sum over all s of the same
//! ```
//!
//! With `LIKENESS` 0 it is a count of uses with decay. The fading matters as much as the likeness: a slot must pay for
//! many tokens, so what follows at some distance counts too. `docs/measurements.md` has the figures, what else was
//! tried, and on which traces the three constants were chosen.

use forerun_model::{ExpertId, ExpertKey, LayerId, Routing};

use crate::CachePolicy;

/// Tokens of a layer that are remembered.
pub const N_REMEMBERED: usize = 512;

/// How much more a token counts whose experts are all the present one's, as a power of e.
const LIKENESS: f32 = 11.0;
/// What is left of a token's weight at the next one.
const FADE: f32 = 0.85;
/// What a token counts after each further one.
const RECENT: f32 = 0.995;

/// An expert is worth its share of uses after tokens like the present one.
///
/// It remembers `N_REMEMBERED * top_k` ids per layer, two bytes each, and looks through them once per token and layer,
/// if it is asked about that layer at all: some 8,000 additions where `top_k` is 8. A chunk of many rows is remembered row
/// by row, and looked through once, for its last row.
#[derive(Clone, Debug)]
pub struct Alike {
    layers: Vec<Layer>,
    /// `RECENT` to the power of the index.
    recent: Vec<f32>,
    /// By expert: whether the present token uses it.
    present: Vec<bool>,
}

#[derive(Clone, Debug, Default)]
struct Layer {
    top_k: usize,
    /// Experts of the remembered tokens, `[N_REMEMBERED, top_k]`, a ring.
    rows: Vec<ExpertId>,
    /// Tokens that were ever observed.
    n_seen: usize,
    /// By number of shared experts: the weight that it gives.
    weight: Vec<f32>,
    /// By expert, of the last token if `is_current`.
    worth: Vec<f32>,
    is_current: bool,
}

impl Default for Alike {
    fn default() -> Self {
        let recent = std::iter::successors(Some(1.0), |power| Some(power * RECENT));
        Self { layers: Vec::new(), recent: recent.take(N_REMEMBERED).collect(), present: Vec::new() }
    }
}

impl Layer {
    #[expect(clippy::cast_precision_loss, reason = "a few experts")]
    fn new(top_k: usize) -> Self {
        let weight = |shared: usize| (LIKENESS * shared as f32 / top_k.max(1) as f32).exp();
        Self {
            top_k,
            rows: vec![ExpertId(0); N_REMEMBERED * top_k],
            weight: (0..=top_k).map(weight).collect(),
            ..Self::default()
        }
    }

    fn push(&mut self, row: &[(ExpertId, f32)]) {
        let at = self.n_seen % N_REMEMBERED * self.top_k;
        for (kept, (expert, _)) in self.rows[at..].iter_mut().zip(row) {
            *kept = *expert;
        }
        let largest = row.iter().map(|(expert, _)| usize::from(expert.0)).max().unwrap_or(0);
        if self.worth.len() <= largest {
            self.worth.resize((largest + 1).next_power_of_two(), 0.0);
        }
        self.n_seen += 1;
        self.is_current = false;
    }

    /// The experts of token `seen`, which is remembered.
    fn row(&self, seen: usize) -> &[ExpertId] {
        let at = seen % N_REMEMBERED * self.top_k;
        &self.rows[at..at + self.top_k]
    }

    /// Works out what every expert is worth after the last token.
    fn look_back(&mut self, recent: &[f32], present: &mut Vec<bool>) {
        self.is_current = true;
        let Some(last) = self.n_seen.checked_sub(1) else { return };
        let mut worth = std::mem::take(&mut self.worth);
        worth.fill(0.0);
        present.clear();
        present.resize(worth.len(), false);
        self.row(last).iter().for_each(|id| present[usize::from(id.0)] = true);
        let (mut weight, mut total) = (0.0, 0.0);
        for seen in self.n_seen.saturating_sub(N_REMEMBERED)..last {
            let shared = self.row(seen).iter().filter(|id| present[usize::from(id.0)]).count();
            weight = FADE * weight + self.weight[shared];
            let counted = weight * recent[last - 1 - seen];
            total += counted;
            self.row(seen + 1).iter().for_each(|id| worth[usize::from(id.0)] += counted);
        }
        if total > 0.0 {
            worth.iter_mut().for_each(|worth| *worth /= total);
        }
        self.worth = worth;
    }
}

impl CachePolicy for Alike {
    fn name(&self) -> &'static str {
        "alike"
    }

    fn observe(&mut self, layer: LayerId, routing: &Routing) {
        if self.layers.len() <= layer.idx() {
            self.layers.resize_with(layer.idx() + 1, Layer::default);
        }
        let of_layer = &mut self.layers[layer.idx()];
        if of_layer.top_k != routing.top_k() {
            *of_layer = Layer::new(routing.top_k());
        }
        // Of a chunk that is longer than the memory only the end would be left.
        for row in routing.n_rows().saturating_sub(N_REMEMBERED)..routing.n_rows() {
            of_layer.push(routing.row(row));
        }
    }

    fn worth(&mut self, key: ExpertKey) -> f32 {
        let Some(layer) = self.layers.get_mut(key.layer.idx()) else { return 0.0 };
        if !layer.is_current {
            layer.look_back(&self.recent, &mut self.present);
        }
        layer.worth.get(usize::from(key.expert.0)).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A grouped routing: one row per slice.
    pub(crate) fn routing(rows: &[&[u16]]) -> Routing {
        let mut routing = Routing::default();
        routing.reset(rows[0].len());
        for row in rows {
            routing.push_row(&row.iter().map(|&id| (ExpertId(id), 0.5)).collect::<Vec<_>>());
        }
        routing.group();
        routing
    }

    const LAYER: LayerId = LayerId(2);

    fn worths(policy: &mut Alike, experts: &[u16]) -> Vec<f32> {
        experts.iter().map(|&id| policy.worth(ExpertKey { layer: LAYER, expert: ExpertId(id) })).collect()
    }

    fn after(rows: &[&[u16]]) -> Alike {
        let mut policy = Alike::default();
        policy.observe(LAYER, &routing(rows));
        policy
    }

    #[test]
    fn what_followed_a_token_like_this_one_is_worth_most() {
        let worth = worths(&mut after(&[&[1, 2], &[3, 4], &[5, 6], &[7, 8], &[1, 2]]), &[3, 5, 7, 9]);
        assert!(worth.is_sorted_by(|a, b| a > b) && worth[3] == 0.0, "{worth:?}");
    }

    #[test]
    fn worths_are_shares_of_uses() {
        let worth = worths(&mut after(&[&[1, 2], &[2, 3], &[4, 1], &[3, 2]]), &[0, 1, 2, 3, 4]);
        assert!((worth.iter().sum::<f32>() - 2.0).abs() < 1e-5, "two experts a token: {worth:?}");
    }

    #[test]
    fn a_chunk_counts_as_its_rows() {
        let rows: [&[u16]; 4] = [&[1, 2], &[3, 4], &[300, 6], &[1, 2]];
        let mut one_by_one = Alike::default();
        for row in rows {
            one_by_one.observe(LAYER, &routing(&[row]));
            worths(&mut one_by_one, &[1]);
        }
        let ids = [1, 2, 3, 4, 6, 300];
        assert_eq!(worths(&mut one_by_one, &ids), worths(&mut after(&rows), &ids));
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let mut policy = after(&[&[9]]);
        let rows: Vec<&[u16]> = vec![&[1]; N_REMEMBERED + 1];
        policy.observe(LAYER, &routing(&rows[..N_REMEMBERED - 2]));
        assert!(worths(&mut policy, &[9])[0] == 0.0, "nothing came before the first");
        policy.observe(LAYER, &routing(&[&[8]]));
        policy.observe(LAYER, &routing(&rows[..1]));
        assert!(worths(&mut policy, &[8])[0] > 0.0);
        policy.observe(LAYER, &routing(&rows));
        assert_eq!(worths(&mut policy, &[8, 9]), [0.0, 0.0]);
    }

    #[test]
    fn what_was_never_seen_is_worth_nothing() {
        let mut policy = after(&[&[1], &[1]]);
        assert_eq!(policy.worth(ExpertKey::new(7, 1)), 0.0);
        assert_eq!(worths(&mut policy, &[1, 60_000]), [1.0, 0.0]);
    }
}
