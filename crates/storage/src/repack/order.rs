//! Which experts should lie side by side: those that fire together, so that a token's misses become few long reads.

/// Most experts of a layer for which pairs are counted: a table of as many squared.
const EXPERTS_MAX: usize = 4096;

/// Position of each of `n_experts` experts, chosen for `sets`: the experts that fired together, one set per token.
///
/// Pairs are joined greedily, those that fired together most often first, into chains that never fork; ties go to lower
/// ids. Where that makes more runs of neighbours than the order of the ids does, the ids' order stays. Ids past
/// `n_experts` count for nothing.
///
/// # Panics
/// When there are more than 4096 experts, more than any header may have.
pub fn co_firing_order(n_experts: usize, sets: &[Vec<u16>]) -> Vec<u32> {
    assert!(n_experts <= EXPERTS_MAX, "{n_experts} experts");
    let in_file_order: Vec<u32> = (0..).take(n_experts).collect();
    let mut pairs = pairs(n_experts, sets);
    pairs.sort_unstable_by_key(|&(count, a, b)| (std::cmp::Reverse(count), a, b));
    let mut chains = Chains::new(n_experts);
    for (_, a, b) in pairs {
        chains.join(a, b);
    }
    let mut order = vec![0; n_experts];
    for (position, expert) in (0..).zip(chains.walk()) {
        order[expert] = position;
    }
    if n_runs(&order, sets) < n_runs(&in_file_order, sets) { order } else { in_file_order }
}

/// Runs of adjacent positions over all `sets`: reads that a token's misses would take, added up.
pub fn n_runs(order: &[u32], sets: &[Vec<u16>]) -> usize {
    let runs = |set: &Vec<u16>| {
        let known = set.iter().filter_map(|&expert| order.get(usize::from(expert)));
        let mut positions: Vec<u32> = known.copied().collect();
        positions.sort_unstable();
        positions.dedup();
        let gaps = positions.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
        gaps + usize::from(!positions.is_empty())
    };
    sets.iter().map(runs).sum()
}

/// How often each pair fired together, if ever: count, lower id, higher id.
fn pairs(n_experts: usize, sets: &[Vec<u16>]) -> Vec<(u32, usize, usize)> {
    let mut counts = vec![0_u32; n_experts * n_experts];
    for set in sets {
        let mut ids: Vec<usize> =
            set.iter().map(|&id| usize::from(id)).filter(|id| *id < n_experts).collect();
        ids.sort_unstable();
        ids.dedup();
        for (i, a) in ids.iter().enumerate() {
            for b in &ids[i + 1..] {
                let count = &mut counts[a * n_experts + b];
                *count = count.saturating_add(1);
            }
        }
    }
    let counted = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
    counted.map(|(at, count)| (count, at / n_experts, at % n_experts)).collect()
}

/// Chains of experts, each with at most two neighbours.
struct Chains {
    neighbours: Vec<Vec<usize>>,
    /// A step towards the name of each expert's chain.
    parent: Vec<usize>,
}

impl Chains {
    fn new(n: usize) -> Self {
        Self { neighbours: vec![Vec::new(); n], parent: (0..n).collect() }
    }

    /// Makes `a` and `b` neighbours, if both are at ends, of two chains.
    fn join(&mut self, a: usize, b: usize) {
        if self.neighbours[a].len() > 1 || self.neighbours[b].len() > 1 {
            return;
        }
        let (root_a, root_b) = (self.root(a), self.root(b));
        if root_a != root_b {
            self.parent[root_a] = root_b;
            self.neighbours[a].push(b);
            self.neighbours[b].push(a);
        }
    }

    fn root(&mut self, mut at: usize) -> usize {
        while self.parent[at] != at {
            self.parent[at] = self.parent[self.parent[at]];
            at = self.parent[at];
        }
        at
    }

    /// All experts, chain after chain: the chain whose end has the lowest id first, from that end on.
    fn walk(&self) -> Vec<usize> {
        let (mut walk, mut seen) = (Vec::with_capacity(self.parent.len()), vec![false; self.parent.len()]);
        for start in 0..self.parent.len() {
            if self.neighbours[start].len() > 1 {
                continue;
            }
            let mut next = Some(start).filter(|&start| !seen[start]);
            while let Some(at) = next {
                seen[at] = true;
                walk.push(at);
                next = self.neighbours[at].iter().copied().find(|&neighbour| !seen[neighbour]);
            }
        }
        walk
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packed::check_order;

    #[test]
    fn experts_that_fire_together_become_neighbours() {
        let sets = vec![vec![0, 3], vec![0, 3], vec![1, 4], vec![4, 1], vec![2]];
        let order = co_firing_order(5, &sets);
        assert_eq!(order, [0, 2, 4, 1, 3]);
        assert_eq!((n_runs(&[0, 1, 2, 3, 4], &sets), n_runs(&order, &sets)), (9, 5));
    }

    #[test]
    fn without_counts_the_ids_order_stays() {
        assert_eq!(co_firing_order(3, &[]), [0, 1, 2]);
        assert_eq!(co_firing_order(3, &[vec![0, 9], vec![]]), [0, 1, 2]);
        assert_eq!(co_firing_order(0, &[]), [0_u32; 0]);
    }

    proptest! {
        #[test]
        fn an_order_is_a_permutation_and_never_worse(
            n_experts in 0_usize..40,
            sets in prop::collection::vec(prop::collection::vec(0_u16..48, 0..9), 0..40),
        ) {
            let order = co_firing_order(n_experts, &sets);
            prop_assert_eq!(order.len(), n_experts);
            prop_assert_eq!(check_order(&order), Ok(()));
            prop_assert_eq!(&co_firing_order(n_experts, &sets), &order);
            let ids: Vec<u32> = (0..).take(n_experts).collect();
            prop_assert!(n_runs(&order, &sets) <= n_runs(&ids, &sets));
        }
    }
}
