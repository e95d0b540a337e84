//! Which tokens may be drawn. Every step has one order, so that the same logits leave the same candidates.

use std::cmp::Ordering;

use forerun_model::TokenId;

/// Logits that are compared with the least candidate at once: whole registers, and one branch for all.
const BLOCK: usize = 64;

/// How many of the most probable candidates top-p looks at first.
const TOP_P_FIRST: usize = 64;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: TokenId,
    pub(super) logit: f32,
}

impl Candidate {
    /// Larger logits first; of equal ones the lower id, so that no two candidates are equal.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

/// The first logit that is NaN or +inf.
pub(super) fn first_bad(logits: &[f32]) -> Option<(usize, f32)> {
    // Without an early end, so that the loop has no branch a value.
    let is_bad = |logits: &[f32]| logits.iter().fold(false, |bad, &logit| bad | !is_good(logit));
    let block = logits.chunks(BLOCK).position(is_bad)? * BLOCK;
    let bad = (block..).zip(&logits[block..]).find(|(_, logit)| !is_good(**logit));
    bad.map(|(token, &logit)| (token, logit))
}

/// Neither NaN nor +inf.
fn is_good(logit: f32) -> bool {
    logit < f32::INFINITY
}

/// Fills `out` with the `k` most probable tokens that aren't banned or masked, most probable first; with 0 with all of
/// them, in the order of their ids.
pub(super) fn most_probable(logits: &[f32], banned: &[TokenId], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if k == 0 || k > logits.len() / 4 {
        out.reserve(logits.len());
        push_above(logits, 0, f32::NEG_INFINITY, banned, out);
        return if k > 0 {
            keep_first(out, k)
        };
    }
    // As many again are taken in before the least are thrown out, so that each of them is moved a few times at most.
    let n_max = 2 * k.max(BLOCK);
    out.reserve(n_max + BLOCK);
    let mut least = f32::NEG_INFINITY;
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        if logits.iter().fold(false, |any, &logit| any | (logit > least)) {
            push_above(logits, block * BLOCK, least, banned, out);
            if out.len() >= n_max {
                out.select_nth_unstable_by(k - 1, Candidate::order);
                out.truncate(k);
                // A later one that is equal has a higher id.
                least = out[k - 1].logit;
            }
        }
    }
    keep_first(out, k);
}

/// Adds the tokens from `first` on whose logits are above `least` and that aren't banned.
#[expect(clippy::cast_possible_truncation, reason = "token ids are u32")]
fn push_above(logits: &[f32], first: usize, least: f32, banned: &[TokenId], out: &mut Vec<Candidate>) {
    let from = banned.partition_point(|ban| ban.idx() < first);
    let mut banned = banned[from..].iter().peekable();
    for (token, &logit) in (first..).zip(logits) {
        let id = TokenId(token as u32);
        if banned.next_if(|&&ban| ban == id).is_none() && logit > least {
            // Makes -0 a 0: they are equal, so the lower id wins.
            out.push(Candidate { token: id, logit: logit + 0.0 });
        }
    }
}

/// Keeps the `k` most probable, most probable first.
fn keep_first(candidates: &mut Vec<Candidate>, k: usize) {
    sort_first(candidates, k);
    candidates.truncate(k);
}

/// Keeps the fewest most probable ones whose probabilities sum to `p`, among the candidates there are.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.is_empty() {
        return;
    }
    let mut n_sorted = TOP_P_FIRST;
    sort_first(candidates, n_sorted);
    let largest = candidates[0].logit;
    let weight = |candidate: &Candidate| libm::exp(f64::from(candidate.logit) - f64::from(largest));
    let enough = f64::from(p) * candidates.iter().map(weight).sum::<f64>();
    let (mut sum, mut n_kept) = (0.0, 0);
    while n_kept < candidates.len() && sum < enough {
        if n_kept == n_sorted {
            sort_first(&mut candidates[n_kept..], n_sorted * 3);
            n_sorted *= 4;
        }
        sum += weight(&candidates[n_kept]);
        n_kept += 1;
    }
    candidates.truncate(n_kept.max(1));
}

/// Keeps those whose probability is at least `p` times the largest.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    let Some(largest) = candidates.iter().map(|candidate| candidate.logit).reduce(f32::max) else { return };
    if p > 0.0 {
        let least = f64::from(largest) + libm::log(f64::from(p));
        candidates.retain(|candidate| f64::from(candidate.logit) >= least);
    }
}

/// Puts the first `n` of the order in front, sorted.
fn sort_first(candidates: &mut [Candidate], n: usize) {
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n, Candidate::order);
    }
    let n = n.min(candidates.len());
    candidates[..n].sort_unstable_by(Candidate::order);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Logits as natural logarithms of `weights`, filtered; what is left, by id.
    #[track_caller]
    fn check(weights: &[f32], filter: impl Fn(&mut Vec<Candidate>), expect: &[u32]) {
        let logits: Vec<f32> = weights.iter().map(|w| w.ln()).collect();
        let mut candidates = Vec::new();
        most_probable(&logits, &[], 0, &mut candidates);
        filter(&mut candidates);
        let mut left: Vec<u32> = candidates.iter().map(|candidate| candidate.token.0).collect();
        left.sort_unstable();
        assert_eq!(left, expect);
    }

    #[test]
    fn top_k_keeps_the_largest_and_of_equal_ones_the_first() {
        check(&[1.0, 3.0, 2.0, 3.0], |c| keep_first(c, 1), &[1]);
        check(&[1.0, 3.0, 2.0, 3.0], |c| keep_first(c, 3), &[1, 2, 3]);
        check(&[1.0, 3.0], |c| keep_first(c, 9), &[0, 1]);
    }

    proptest! {
        /// Sorting all of them is the definition.
        #[test]
        fn the_most_probable_are_those_of_a_full_sort(
            logits in prop::collection::vec(
                prop_oneof![(-9..9_i8).prop_map(f32::from), Just(-0.0), Just(f32::NEG_INFINITY)],
                1..2000,
            ),
            rising: bool,
            banned in prop::collection::btree_set(0_u32..2000, 0..80),
            k in 1_usize..600,
        ) {
            let mut logits = logits;
            if rising {
                logits.sort_unstable_by(f32::total_cmp);
            }
            let banned: Vec<_> = banned.into_iter().map(TokenId).collect();
            let (mut all, mut found) = (Vec::new(), Vec::new());
            push_above(&logits, 0, f32::NEG_INFINITY, &banned, &mut all);
            all.sort_by(Candidate::order);
            most_probable(&logits, &banned, k, &mut found);
            prop_assert_eq!(&all[..k.min(all.len())], &found[..]);
        }
    }

    #[test]
    fn the_first_bad_logit_is_found() {
        let mut logits = vec![0.0; 200];
        logits[3] = f32::NEG_INFINITY;
        assert_eq!(first_bad(&logits), None);
        logits[150] = f32::INFINITY;
        assert_eq!(first_bad(&logits), Some((150, f32::INFINITY)));
        logits[130] = f32::NAN;
        assert_eq!(first_bad(&logits).unwrap().0, 130);
    }

    #[test]
    fn top_p_keeps_the_fewest_that_reach_the_sum() {
        check(&[0.1, 0.5, 0.4], |c| top_p(c, 0.45), &[1]);
        check(&[0.1, 0.5, 0.4], |c| top_p(c, 0.6), &[1, 2]);
        check(&[0.1, 0.5, 0.4], |c| top_p(c, 1.0), &[0, 1, 2]);
        check(&[0.1, 0.5, 0.4], |c| top_p(c, 1e-9), &[1]);
    }

    #[test]
    fn top_p_goes_past_its_first_look() {
        let n = 1000;
        let expect: Vec<u32> = (0..n / 2).collect();
        check(&vec![1.0; n as usize], |c| top_p(c, 0.4999), &expect);
    }

    #[test]
    fn min_p_compares_with_the_largest() {
        check(&[0.1, 0.5, 0.4], |c| min_p(c, 0.5), &[1, 2]);
        check(&[0.1, 0.5, 0.4], |c| min_p(c, 1.0), &[1]);
        check(&[0.1, 0.5, 0.4], |c| min_p(c, 0.0), &[0, 1, 2]);
    }

    #[test]
    fn banned_and_masked_tokens_are_no_candidates() {
        let mut candidates = Vec::new();
        let banned = [TokenId(2), TokenId(9)];
        most_probable(&[1.0, f32::NEG_INFINITY, 2.0, 3.0], &banned, 0, &mut candidates);
        let left: Vec<u32> = candidates.iter().map(|candidate| candidate.token.0).collect();
        assert_eq!(left, [0, 3]);
    }
}
