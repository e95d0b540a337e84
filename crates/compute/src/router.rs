//! Softmax over all experts, the largest `top_k`, weights renormalised to sum 1.

use forerun_model::ExpertId;

/// Writes the `top_k` best experts and their renormalised weights to `chosen`, best first; of equals the lower index.
/// Returns `false` when a probability isn't finite.
#[expect(clippy::cast_possible_truncation, reason = "the header allows at most 4096 experts")]
pub fn choose(probabilities: &[f32], top_k: usize, chosen: &mut Vec<(ExpertId, f32)>) -> bool {
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
    let sum: f32 = chosen.iter().map(|c| c.1).sum();
    for (_, weight) in chosen.iter_mut() {
        *weight /= sum;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::softmax;

    fn route(logits: &mut [f32], top_k: usize, chosen: &mut Vec<(ExpertId, f32)>) -> bool {
        softmax(logits);
        choose(logits, top_k, chosen)
    }

    #[test]
    fn the_best_come_first_and_ties_go_to_the_lower_index() {
        let mut chosen = Vec::new();
        assert!(route(&mut [1.0, 3.0, 1.0, 3.0, 0.0], 3, &mut chosen));
        assert_eq!(chosen.iter().map(|c| c.0.0).collect::<Vec<_>>(), [1, 3, 0]);
        assert!((chosen.iter().map(|c| c.1).sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn all_experts_can_be_chosen() {
        let mut chosen = Vec::new();
        assert!(route(&mut [0.0, 1.0], 2, &mut chosen));
        assert_eq!(chosen.iter().map(|c| c.0.0).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn numbers_that_are_none_are_seen() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!route(&mut [0.0, bad, 1.0], 2, &mut Vec::new()), "{bad}");
        }
    }
}
