//! Softmax over all experts, the largest `top_k`, and their weights, which may be renormalised to sum 1.

use forerun_model::{ExpertId, MoeShape};

/// Writes the best `moe.top_k` experts and their weights to `chosen`, best first; of equals the lower index. Weights are
/// the probabilities, divided by their sum if the model renormalises. Returns `false` when a probability isn't finite.
#[expect(clippy::cast_possible_truncation, reason = "the header allows at most 4096 experts")]
pub fn choose(probabilities: &[f32], moe: &MoeShape, chosen: &mut Vec<(ExpertId, f32)>) -> bool {
    let top_k = moe.top_k;
    chosen.clear();
    if probabilities.iter().any(|p| !p.is_finite()) {
        return false;
    }
    for (expert, &p) in probabilities.iter().enumerate() {
        if chosen.len() == top_k && chosen[top_k - 1].1 >= p {
            continue;
        }
        chosen.truncate(top_k - 1);
        let at = chosen.partition_point(|c| c.1 >= p);
        chosen.insert(at, (ExpertId(expert as u16), p));
    }
    if moe.renormalises {
        let sum: f32 = chosen.iter().map(|c| c.1).sum();
        chosen.iter_mut().for_each(|c| c.1 /= sum);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::softmax;

    fn route(logits: &mut [f32], moe: &MoeShape, chosen: &mut Vec<(ExpertId, f32)>) -> bool {
        softmax(logits);
        choose(logits, moe, chosen)
    }

    fn moe(n_experts: usize, top_k: usize) -> MoeShape {
        MoeShape { n_experts, top_k, expert_ff: 1, shared_ff: None, renormalises: true }
    }

    #[test]
    fn the_best_come_first_and_ties_go_to_the_lower_index() {
        let mut chosen = Vec::new();
        assert!(route(&mut [1.0, 3.0, 1.0, 3.0, 0.0], &moe(5, 3), &mut chosen));
        assert_eq!(chosen.iter().map(|c| c.0.0).collect::<Vec<_>>(), [1, 3, 0]);
        assert!((chosen.iter().map(|c| c.1).sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn probabilities_stay_where_the_model_keeps_them() {
        let mut chosen = Vec::new();
        let kept = MoeShape { renormalises: false, ..moe(4, 1) };
        assert!(route(&mut [0.0; 4], &kept, &mut chosen));
        assert_eq!(chosen, [(ExpertId(0), 0.25)]);
    }

    #[test]
    fn all_experts_can_be_chosen() {
        let mut chosen = Vec::new();
        assert!(route(&mut [0.0, 1.0], &moe(2, 2), &mut chosen));
        assert_eq!(chosen.iter().map(|c| c.0.0).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn numbers_that_are_none_are_seen() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!route(&mut [0.0, bad, 1.0], &moe(3, 2), &mut Vec::new()), "{bad}");
        }
    }
}
