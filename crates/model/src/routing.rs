//! What a router said for the rows of one step: which experts, in which rank, with which weight.

use crate::ExpertId;

/// When a router is asked about the residual stream before its own turn: the later, the better its guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// On the embedding, before any layer has run.
    Begin,
    /// After the mixer of a layer before: that layer's experts are still missing.
    Early,
    /// After a layer before was closed: only the mixers between are missing.
    Closed,
}

/// One row's wish for one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    /// The expert.
    pub expert: ExpertId,
    /// Row of the step.
    pub row: u32,
    /// Position in the row's top-k, best first; results are added in this order.
    pub rank: u32,
    /// Factor of the expert's output.
    pub weight: f32,
}

/// The routing of one layer, for every row of a step; its buffers are reused from layer to layer.
///
/// Filled row by row, then [`Routing::group`]ed by expert; reading before grouping panics.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    top_k: usize,
    n_rows: usize,
    by_row: Vec<(ExpertId, f32)>,
    by_expert: Vec<Use>,
    experts: Vec<(ExpertId, u32)>,
    grouped: bool,
}

impl Routing {
    /// Forgets everything and expects rows of `top_k` experts.
    pub fn reset(&mut self, top_k: usize) {
        self.top_k = top_k;
        self.n_rows = 0;
        self.by_row.clear();
        self.by_expert.clear();
        self.experts.clear();
        self.grouped = false;
    }

    /// Adds the next row's experts and weights, best first.
    ///
    /// # Panics
    /// When the row doesn't have `top_k` entries.
    pub fn push_row(&mut self, chosen: &[(ExpertId, f32)]) {
        assert_eq!(chosen.len(), self.top_k, "a row has top-k experts");
        self.by_row.extend_from_slice(chosen);
        self.n_rows += 1;
        self.grouped = false;
    }

    /// Sorts the uses by expert, then row, so that each expert's rows lie together.
    #[expect(clippy::cast_possible_truncation, reason = "a step has far fewer than 2^32 rows")]
    pub fn group(&mut self) {
        self.by_expert.clear();
        for (row, chosen) in self.by_row.chunks(self.top_k.max(1)).enumerate() {
            for (rank, &(expert, weight)) in chosen.iter().enumerate() {
                self.by_expert.push(Use { expert, row: row as u32, rank: rank as u32, weight });
            }
        }
        self.by_expert.sort_unstable_by_key(|u| (u.expert, u.row, u.rank));
        self.experts.clear();
        for (i, u) in self.by_expert.iter().enumerate() {
            if self.experts.last().is_none_or(|last| last.0 != u.expert) {
                self.experts.push((u.expert, i as u32));
            }
        }
        self.grouped = true;
    }

    /// Experts per row.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Rows of the step.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The experts of one row, best first.
    pub fn row(&self, row: usize) -> &[(ExpertId, f32)] {
        &self.by_row[row * self.top_k..(row + 1) * self.top_k]
    }

    /// Each expert that any row wants, once, in ascending order.
    ///
    /// # Panics
    /// When the rows haven't been [grouped](Self::group).
    pub fn experts(&self) -> impl ExactSizeIterator<Item = ExpertId> + '_ {
        assert!(self.grouped, "group() comes first");
        self.experts.iter().map(|e| e.0)
    }

    /// The uses of `expert`, by row; empty when no row wants it.
    ///
    /// # Panics
    /// When the rows haven't been [grouped](Self::group).
    pub fn uses(&self, expert: ExpertId) -> &[Use] {
        assert!(self.grouped, "group() comes first");
        match self.experts.binary_search_by_key(&expert, |e| e.0) {
            Err(_) => &[],
            Ok(i) => {
                let start = self.experts[i].1 as usize;
                let end = self.experts.get(i + 1).map_or(self.by_expert.len(), |e| e.1 as usize);
                &self.by_expert[start..end]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_lie_together_by_expert() {
        let mut routing = Routing::default();
        routing.reset(2);
        routing.push_row(&[(ExpertId(5), 0.75), (ExpertId(1), 0.25)]);
        routing.push_row(&[(ExpertId(1), 0.5), (ExpertId(9), 0.5)]);
        routing.group();
        assert_eq!(routing.experts().collect::<Vec<_>>(), [ExpertId(1), ExpertId(5), ExpertId(9)]);
        let uses: Vec<_> = routing.uses(ExpertId(1)).iter().map(|u| (u.row, u.rank, u.weight)).collect();
        assert_eq!(uses, [(0, 1, 0.25), (1, 0, 0.5)]);
        assert!(routing.uses(ExpertId(2)).is_empty());
        assert_eq!(routing.row(1)[1], (ExpertId(9), 0.5));
    }

    #[test]
    fn a_reset_routing_remembers_nothing() {
        let mut routing = Routing::default();
        routing.reset(1);
        routing.push_row(&[(ExpertId(0), 1.0)]);
        routing.group();
        routing.reset(1);
        routing.group();
        assert_eq!(routing.experts().len(), 0);
    }
}
