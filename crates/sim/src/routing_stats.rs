//! What a recorded routing says about caches and guesses: pure functions over a [`Trace`], one layer at a time.

use forerun_model::{ExpertId, LayerId};

use crate::Trace;

/// Guesses of one kind for every token and layer of a trace, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guesses {
    n_layers: usize,
    n_each: usize,
    ids: Vec<u8>,
}

impl Guesses {
    /// No token yet; `n_each` guesses for each of `n_layers` layers are to follow.
    pub fn new(n_layers: usize, n_each: usize) -> Self {
        Self { n_layers, n_each, ids: Vec::new() }
    }

    /// The guesses `ids`, `[n_tokens, n_layers, n_each]`.
    pub(crate) fn of(n_layers: usize, n_each: usize, ids: Vec<u8>) -> Self {
        Self { n_layers, n_each, ids }
    }

    /// Adds the guesses of the next layer of the token, and after the last layer those of the next token's first.
    ///
    /// # Panics
    /// When there are other than `n_each`, or one is above 255.
    pub fn push(&mut self, best_first: &[ExpertId]) {
        assert_eq!(best_first.len(), self.n_each, "as many guesses for every layer");
        let byte = |expert: &ExpertId| u8::try_from(expert.0).expect("ids of a trace are bytes");
        self.ids.extend(best_first.iter().map(byte));
    }

    /// The guesses for `layer` of `token`.
    ///
    /// # Panics
    /// When there are none.
    pub fn row(&self, token: usize, layer: LayerId) -> &[u8] {
        let at = (token * self.n_layers + layer.idx()) * self.n_each;
        &self.ids[at..at + self.n_each]
    }

    /// Guesses of one layer.
    pub fn n_each(&self) -> usize {
        self.n_each
    }

    /// All ids, `[n_tokens, n_layers, n_each]`.
    pub fn ids(&self) -> &[u8] {
        &self.ids
    }
}

/// The mean of `of` over `layers`; 0 without layers.
pub fn mean(layers: impl Iterator<Item = LayerId>, of: impl Fn(LayerId) -> f64) -> f64 {
    let (n, sum) = layers.fold((0, 0.0), |(n, sum), layer| (n + 1, sum + of(layer)));
    if n == 0 { 0.0 } else { sum / f64::from(n) }
}

/// Share of the experts of `layer` that are among the first `n` guesses.
pub fn recall(trace: &Trace, guesses: &Guesses, layer: LayerId, n: usize) -> f64 {
    let found = |token| {
        let row = guesses.row(token, layer);
        common(trace.row(token, layer), &row[..n.min(row.len())])
    };
    share((0..trace.n_tokens).map(found).sum(), trace.n_tokens * trace.top_k)
}

/// Share of the experts of `layer` that one of the `window` tokens before used too; tokens with fewer before them
/// don't count.
pub fn reuse(trace: &Trace, layer: LayerId, window: usize) -> f64 {
    let again = |token: usize| {
        let before = |id: &&u8| (token - window..token).any(|t| trace.row(t, layer).contains(id));
        trace.row(token, layer).iter().filter(before).count()
    };
    let n_tokens = trace.n_tokens.saturating_sub(window);
    share((window..trace.n_tokens).map(again).sum(), n_tokens * trace.top_k)
}

/// Mean number of different experts of `layer` in a block of `n` tokens; blocks don't overlap.
pub fn union(trace: &Trace, layer: LayerId, n: usize) -> f64 {
    let n_blocks = trace.n_tokens / n.max(1);
    let different = |block: usize| {
        let mut seen = vec![false; trace.n_experts];
        (block * n..(block + 1) * n)
            .flat_map(|t| trace.row(t, layer))
            .for_each(|&id| seen[usize::from(id)] = true);
        seen.iter().filter(|seen| **seen).count()
    };
    share((0..n_blocks).map(different).sum(), n_blocks)
}

/// How often the most used expert of `layer` is used, in multiples of its fair share.
pub fn busiest(trace: &Trace, layer: LayerId) -> f64 {
    let mut uses = vec![0usize; trace.n_experts];
    (0..trace.n_tokens).flat_map(|t| trace.row(t, layer)).for_each(|&id| uses[usize::from(id)] += 1);
    let most = uses.iter().max().copied().unwrap_or(0);
    share(most * trace.n_experts, trace.n_tokens * trace.top_k)
}

/// Share of the uses in `layer` that hit a cache of the `slots` experts used last, counted from token `from` on: those
/// before fill it. A token's hits are found before its misses push anything out.
pub fn lru_hits(trace: &Trace, layer: LayerId, slots: usize, from: usize) -> f64 {
    let mut kept: Vec<u8> = Vec::new();
    let mut hits = 0;
    for token in 0..trace.n_tokens {
        let row = trace.row(token, layer);
        hits += if token >= from { common(row, &kept) } else { 0 };
        kept.retain(|id| !row.contains(id));
        kept.splice(0..0, row.iter().copied());
        kept.truncate(slots);
    }
    share(hits, trace.n_tokens.saturating_sub(from) * trace.top_k)
}

/// The largest share that any cache of `slots` experts could reach that, as ours, keeps all experts of a token until
/// the next: what is wanted last, or never again, goes first (Belady, 1966). Counted as [`lru_hits`] counts; fewer slots
/// than a token has experts hold the first of them.
pub fn belady_hits(trace: &Trace, layer: LayerId, slots: usize, from: usize) -> f64 {
    const NEVER: usize = usize::MAX;
    let (k, n_tokens) = (trace.top_k, trace.n_tokens);
    // For each use the token that uses the expert next.
    let mut next_use = vec![NEVER; n_tokens * k];
    let mut upcoming = vec![NEVER; trace.n_experts];
    for token in (0..n_tokens).rev() {
        for (rank, &id) in trace.row(token, layer).iter().enumerate() {
            next_use[token * k + rank] = std::mem::replace(&mut upcoming[usize::from(id)], token);
        }
    }
    let mut kept: Vec<(u8, usize)> = Vec::new();
    let mut hits = 0;
    for token in 0..n_tokens {
        let row = trace.row(token, layer);
        let n_before = kept.len();
        kept.retain(|(id, _)| !row.contains(id));
        hits += if token >= from { n_before - kept.len() } else { 0 };
        kept.sort_unstable_by_key(|&(_, next)| next);
        kept.truncate(slots.saturating_sub(k));
        kept.extend(row.iter().copied().zip(next_use[token * k..].iter().copied()).take(slots));
    }
    share(hits, n_tokens.saturating_sub(from) * k)
}

/// How much of the way from `worst` to `best` is `found`, in percent; 0 when there is no way.
pub fn percent_of_gap(worst: f64, found: f64, best: f64) -> f64 {
    if best > worst { 100.0 * (found - worst) / (best - worst) } else { 0.0 }
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().filter(|id| b.contains(id)).count()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a trace")]
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceShape;

    const LAYER: LayerId = LayerId(0);

    /// One layer of 8 experts; a token is a word, an expert a digit.
    fn trace(tokens: &str) -> Trace {
        let words: Vec<&str> = tokens.split(' ').collect();
        let ids = words.iter().flat_map(|word| word.bytes().map(|b| b - b'0')).collect();
        Trace::new(TraceShape { n_layers: 1, n_experts: 8, top_k: words[0].len() }, ids).unwrap()
    }

    fn guesses(tokens: &str) -> Guesses {
        let words: Vec<&str> = tokens.split(' ').collect();
        let mut guesses = Guesses::new(1, words[0].len());
        for word in words {
            guesses.push(&word.bytes().map(|b| ExpertId(u16::from(b - b'0'))).collect::<Vec<_>>());
        }
        guesses
    }

    #[test]
    fn recall_counts_what_was_guessed_among_the_first() {
        let (trace, guesses) = (trace("01 23"), guesses("105 726"));
        assert_eq!(recall(&trace, &guesses, LAYER, 2), 0.75);
        assert_eq!(recall(&trace, &guesses, LAYER, 1), 0.25);
        assert_eq!(recall(&trace, &guesses, LAYER, 9), 0.75);
    }

    #[test]
    fn reuse_looks_back_so_far_and_no_further() {
        let trace = trace("01 12 34 15");
        assert_eq!(reuse(&trace, LAYER, 1), 1.0 / 6.0);
        assert_eq!(reuse(&trace, LAYER, 2), 1.0 / 4.0);
        assert_eq!(reuse(&trace, LAYER, 3), 1.0 / 2.0);
        assert_eq!(reuse(&trace, LAYER, 4), 0.0);
    }

    #[test]
    fn a_union_counts_each_expert_once() {
        let trace = trace("01 12 34 43 56");
        assert_eq!(union(&trace, LAYER, 1), 2.0);
        assert_eq!(union(&trace, LAYER, 2), 2.5);
    }

    #[test]
    fn the_busiest_is_measured_against_a_fair_share() {
        assert_eq!(busiest(&trace("01 02 03 45"), LAYER), 3.0);
        assert_eq!(busiest(&trace("01 23 45 67"), LAYER), 1.0);
    }

    #[test]
    fn a_cache_keeps_what_was_used_last() {
        let trace = trace("01 23 01 31");
        assert_eq!(lru_hits(&trace, LAYER, 2, 0), 1.0 / 8.0);
        assert_eq!(lru_hits(&trace, LAYER, 4, 0), 4.0 / 8.0);
        assert_eq!(lru_hits(&trace, LAYER, 4, 2), 1.0);
        assert_eq!(lru_hits(&trace, LAYER, 0, 0), 0.0);
    }

    #[test]
    fn who_knows_the_future_keeps_what_comes_next() {
        let trace = trace("0 1 2 0 1 3 1 0");
        assert_eq!(belady_hits(&trace, LAYER, 2, 0), 2.0 / 8.0);
        assert_eq!(lru_hits(&trace, LAYER, 2, 0), 1.0 / 8.0);
        assert_eq!(belady_hits(&trace, LAYER, 3, 0), 4.0 / 8.0);
        assert_eq!(belady_hits(&trace, LAYER, 3, 6), 1.0);
        assert_eq!(belady_hits(&trace, LAYER, 0, 0), 0.0);
    }

    #[test]
    fn without_room_for_more_than_a_token_there_is_no_choice() {
        let trace = trace("012 123 612 245");
        assert_eq!(belady_hits(&trace, LAYER, 3, 0), lru_hits(&trace, LAYER, 3, 0));
        assert_eq!(belady_hits(&trace, LAYER, 2, 0), lru_hits(&trace, LAYER, 2, 0));
    }

    #[test]
    fn a_gap_is_measured_from_its_worse_end() {
        assert_eq!(percent_of_gap(0.5, 0.75, 1.0), 50.0);
        assert_eq!(percent_of_gap(0.5, 0.5, 0.5), 0.0);
    }

    #[test]
    fn a_cache_as_large_as_a_token_is_the_reuse_of_the_last_one() {
        let trace = trace("012 123 612 245");
        assert_eq!(lru_hits(&trace, LAYER, 3, 1), reuse(&trace, LAYER, 1));
    }

    #[test]
    fn a_mean_over_no_layers_is_zero() {
        assert_eq!(mean(trace("01").layers().skip(1), |_| 1.0), 0.0);
        assert_eq!(mean(trace("01").layers(), |_| 1.0), 1.0);
    }
}
