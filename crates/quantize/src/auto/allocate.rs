//! How a number of bytes is best spread over groups that each have a few sizes to choose from. Pure.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// One size that a group can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Offer {
    /// What it takes.
    pub(super) bytes: u64,
    /// What it loses; finite, and not below zero.
    pub(super) loss: f64,
}

/// Chooses an offer for each group, by its place in the group's list, so that all together take at most `budget_bytes`
/// and lose little; `None` when even the smallest take more.
///
/// Of each group only the offers on the lower convex hull of loss over bytes are looked at: those that are best for some
/// price of a byte. Steps along the hulls are taken in the order of what they save per byte, so before what is left is
/// too small for a step, no choice of as many bytes loses less (the fractional knapsack). Then the best step that fits
/// is taken until none does.
pub(super) fn allocate(groups: &[Vec<Offer>], budget_bytes: u64) -> Option<Vec<usize>> {
    let hulls: Vec<Vec<usize>> = groups.iter().map(|offers| hull(offers)).collect();
    let mut at = vec![0; groups.len()];
    let used: u64 = groups.iter().zip(&hulls).map(|(offers, hull)| offers[hull[0]].bytes).sum();
    let mut left = budget_bytes.checked_sub(used)?;
    let step = |group: usize, at: usize| {
        let (offers, hull) = (&groups[group], &hulls[group]);
        let (from, to) = (offers[hull[at]], offers[*hull.get(at + 1)?]);
        let bytes = to.bytes - from.bytes;
        #[expect(clippy::cast_precision_loss, reason = "a price, and no file has 2^53 bytes")]
        let saved_per_byte = (from.loss - to.loss) / bytes as f64;
        Some(Step { saved_per_byte, group, bytes })
    };
    let mut steps: BinaryHeap<Step> = (0..groups.len()).filter_map(|group| step(group, 0)).collect();
    while let Some(Step { group, bytes, .. }) = steps.pop() {
        // Later steps of a group save less per byte, so one that doesn't fit ends it.
        if bytes <= left {
            left -= bytes;
            at[group] += 1;
            steps.extend(step(group, at[group]));
        }
    }
    Some(at.iter().zip(&hulls).map(|(&at, hull)| hull[at]).collect())
}

/// A group's next larger offer.
#[derive(Clone, Copy, Debug)]
struct Step {
    saved_per_byte: f64,
    group: usize,
    bytes: u64,
}

impl Ord for Step {
    /// The most saved per byte first; of equals the first group.
    fn cmp(&self, other: &Self) -> Ordering {
        self.saved_per_byte.total_cmp(&other.saved_per_byte).then(other.group.cmp(&self.group))
    }
}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Step {}

/// Places of the offers on the lower convex hull, smallest first; each loses less than the one before.
fn hull(offers: &[Offer]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..offers.len()).collect();
    order.sort_by(|&a, &b| {
        offers[a].bytes.cmp(&offers[b].bytes).then(offers[a].loss.total_cmp(&offers[b].loss))
    });
    let mut hull: Vec<usize> = Vec::with_capacity(offers.len());
    for place in order {
        if hull.last().is_some_and(|&last| offers[place].loss >= offers[last].loss) {
            continue;
        }
        while let [.., first, middle] = hull[..]
            && is_above(offers[first], offers[middle], offers[place])
        {
            hull.pop();
        }
        hull.push(place);
    }
    hull
}

/// Whether `middle` lies on or above the line from `first` to `last`.
#[expect(clippy::cast_precision_loss, reason = "no file has 2^53 bytes")]
fn is_above(first: Offer, middle: Offer, last: Offer) -> bool {
    let (near, far) = ((middle.bytes - first.bytes) as f64, (last.bytes - first.bytes) as f64);
    (first.loss - middle.loss) * far <= (first.loss - last.loss) * near
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offers(list: &[(u64, f64)]) -> Vec<Offer> {
        list.iter().map(|&(bytes, loss)| Offer { bytes, loss }).collect()
    }

    #[test]
    fn bytes_go_where_they_save_most() {
        let groups = [offers(&[(10, 8.0), (20, 1.0)]), offers(&[(10, 8.0), (20, 5.0)])];
        assert_eq!(allocate(&groups, 19), None);
        assert_eq!(allocate(&groups, 20), Some(vec![0, 0]));
        assert_eq!(allocate(&groups, 30), Some(vec![1, 0]));
        assert_eq!(allocate(&groups, 40), Some(vec![1, 1]));
    }

    #[test]
    fn what_a_large_step_leaves_goes_to_smaller_ones() {
        let groups = [offers(&[(10, 90.0), (50, 1.0)]), offers(&[(10, 3.0), (12, 2.0)])];
        assert_eq!(allocate(&groups, 45), Some(vec![0, 1]));
    }

    #[test]
    fn offers_off_the_hull_are_never_taken() {
        // The second saves little, the third costs more and loses more.
        let list = offers(&[(10, 8.0), (20, 7.9), (25, 9.0), (30, 1.0)]);
        assert_eq!(hull(&list), [0, 3]);
        assert_eq!(allocate(&[list], 25), Some(vec![0]));
    }

    fn a_group() -> impl Strategy<Value = Vec<Offer>> {
        let offer = (1_u64..50, 0_u32..100).prop_map(|(bytes, loss)| Offer { bytes, loss: f64::from(loss) });
        prop::collection::vec(offer, 1..5)
    }

    /// The least loss for a budget, by trying all choices.
    fn best(groups: &[Vec<Offer>], budget_bytes: u64) -> Option<f64> {
        let Some((first, rest)) = groups.split_first() else { return Some(0.0) };
        let with = |offer: &Offer| Some(offer.loss + best(rest, budget_bytes.checked_sub(offer.bytes)?)?);
        first.iter().filter_map(with).min_by(f64::total_cmp)
    }

    proptest! {
        /// The budget holds, and a choice is never worse than the best one of a budget that lacks one step.
        #[test]
        fn a_choice_is_within_a_step_of_the_best(
            groups in prop::collection::vec(a_group(), 1..5),
            budget_bytes in 1_u64..200,
        ) {
            let step_max = groups.iter().flatten().map(|offer| offer.bytes).max().unwrap();
            match allocate(&groups, budget_bytes) {
                None => prop_assert_eq!(best(&groups, budget_bytes), None),
                Some(places) => {
                    let chosen = groups.iter().zip(&places).map(|(offers, &place)| offers[place]);
                    let (bytes, loss) = chosen.fold((0, 0.0), |sum, o| (sum.0 + o.bytes, sum.1 + o.loss));
                    prop_assert!(bytes <= budget_bytes);
                    if let Some(best) = budget_bytes.checked_sub(step_max).and_then(|b| best(&groups, b)) {
                        prop_assert!(loss <= best + 1e-9, "{} against {}", loss, best);
                    }
                }
            }
        }
    }
}
