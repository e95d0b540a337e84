//! Which tokens may be drawn. Every step has one order, so that the same logits leave the same candidates.

use std::cmp::Ordering;

use forerun_model::TokenId;

use super::SamplerError;

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

/// Fills `out` with all tokens that aren't banned or masked, in the order of their ids.
#[expect(clippy::cast_possible_truncation, reason = "token ids are u32")]
pub(super) fn collect(
    logits: &[f32],
    banned: &[TokenId],
    out: &mut Vec<Candidate>,
) -> Result<(), SamplerError> {
    out.clear();
    out.reserve(logits.len());
    let mut banned = banned.iter().peekable();
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplerError::NotFinite { token, value: logit });
        }
        let id = TokenId(token as u32);
        if banned.next_if(|&&ban| ban == id).is_none() && logit != f32::NEG_INFINITY {
            // Makes -0 a 0: they are equal, so the lower id wins.
            out.push(Candidate { token: id, logit: logit + 0.0 });
        }
    }
    Ok(())
}

/// Keeps the `k` most probable, most probable first; 0 keeps all, in any order.
pub(super) fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || candidates.is_empty() {
        return;
    }
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
    use super::*;

    /// Logits as natural logarithms of `weights`, filtered; what is left, by id.
    #[track_caller]
    fn check(weights: &[f32], filter: impl Fn(&mut Vec<Candidate>), expect: &[u32]) {
        let logits: Vec<f32> = weights.iter().map(|w| w.ln()).collect();
        let mut candidates = Vec::new();
        collect(&logits, &[], &mut candidates).unwrap();
        filter(&mut candidates);
        let mut left: Vec<u32> = candidates.iter().map(|candidate| candidate.token.0).collect();
        left.sort_unstable();
        assert_eq!(left, expect);
    }

    #[test]
    fn top_k_keeps_the_largest_and_of_equal_ones_the_first() {
        check(&[1.0, 3.0, 2.0, 3.0], |c| top_k(c, 1), &[1]);
        check(&[1.0, 3.0, 2.0, 3.0], |c| top_k(c, 3), &[1, 2, 3]);
        check(&[1.0, 3.0], |c| top_k(c, 0), &[0, 1]);
        check(&[1.0, 3.0], |c| top_k(c, 9), &[0, 1]);
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
        collect(&[1.0, f32::NEG_INFINITY, 2.0, 3.0], &[TokenId(2), TokenId(9)], &mut candidates).unwrap();
        let left: Vec<u32> = candidates.iter().map(|candidate| candidate.token.0).collect();
        assert_eq!(left, [0, 3]);
    }
}
