//! Where the sequence can be cut back to without reading it anew.

use std::num::NonZeroUsize;

use forerun_compute::Checkpoint;

use crate::config::CheckpointConfig;

/// The checkpoints of one sequence, by their length.
#[derive(Debug)]
pub(super) struct Checkpoints {
    config: CheckpointConfig,
    /// Ascending by length.
    kept: Vec<Checkpoint>,
    /// Those that hold nothing now, for their memory.
    spare: Vec<Checkpoint>,
    /// The length of one that makes room only when it is alone: the last prompt's.
    pinned: Option<usize>,
}

impl Checkpoints {
    pub(super) fn new(config: CheckpointConfig) -> Self {
        Self { config, kept: Vec::new(), spare: Vec::new(), pinned: None }
    }

    /// Tokens from one to the next; `None` when none are kept on the way.
    pub(super) fn every(&self) -> Option<NonZeroUsize> {
        self.config.every.filter(|_| self.config.n_max > 0)
    }

    /// Room for a checkpoint of `len` tokens, to be given back to [`Self::keep`]; `None` when there is one of that length, or
    /// none may be kept.
    pub(super) fn room(&mut self, len: usize) -> Option<Checkpoint> {
        if self.config.n_max == 0 || self.kept.iter().any(|kept| kept.len == len) {
            return None;
        }
        if self.kept.len() < self.config.n_max {
            return Some(self.spare.pop().unwrap_or_default());
        }
        Some(self.kept.remove(self.least_missed(len)))
    }

    /// From now on the checkpoint of `len` tokens is the one that stays.
    pub(super) fn pin(&mut self, len: usize) {
        self.pinned = Some(len);
    }

    /// Keeps `checkpoint`.
    pub(super) fn keep(&mut self, checkpoint: Checkpoint) {
        let at = self.kept.partition_point(|kept| kept.len < checkpoint.len);
        self.kept.insert(at, checkpoint);
    }

    /// The longest of at most `len` tokens.
    pub(super) fn best(&self, len: usize) -> Option<&Checkpoint> {
        self.kept.iter().rfind(|kept| kept.len <= len)
    }

    /// The one that stays, if it is there; else the longest of fewer than `len` tokens.
    pub(super) fn pinned_before(&self, len: usize) -> Option<&Checkpoint> {
        let pinned = self.kept.iter().find(|kept| Some(kept.len) == self.pinned && kept.len < len);
        pinned.or_else(|| self.best(len.saturating_sub(1)))
    }

    /// Forgets those of more than `len` tokens: the sequence goes on otherwise from there.
    pub(super) fn forget_after(&mut self, len: usize) {
        let first = self.kept.partition_point(|kept| kept.len <= len);
        self.spare.extend(self.kept.drain(first..));
    }

    /// The one whose neighbours are nearest to each other, when one of `len` tokens joins: without it the fewest tokens
    /// would have to be read anew.
    fn least_missed(&self, len: usize) -> usize {
        let end = |i: usize| self.kept.get(i + 1).map_or(len, |next| next.len).max(self.kept[i].len);
        let start = |i: usize| i.checked_sub(1).map_or(0, |before| self.kept[before].len);
        let is_free = |i: &usize| self.kept.len() == 1 || Some(self.kept[*i].len) != self.pinned;
        (0..self.kept.len()).filter(is_free).min_by_key(|&i| end(i) - start(i)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(n_max: usize, lens: &[usize]) -> Checkpoints {
        let mut checkpoints =
            Checkpoints::new(CheckpointConfig { n_max, every: NonZeroUsize::new(10), is_asked: true });
        for &len in lens {
            if let Some(room) = checkpoints.room(len) {
                checkpoints.keep(Checkpoint { len, ..room });
            }
        }
        checkpoints
    }

    fn lens(checkpoints: &Checkpoints) -> Vec<usize> {
        checkpoints.kept.iter().map(|kept| kept.len).collect()
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        assert!(lens(&with(0, &[10, 20])).is_empty());
        assert_eq!(with(0, &[]).every(), None);
        assert_eq!(lens(&with(1, &[10, 20, 30])), [30]);
        assert_eq!(lens(&with(2, &[10, 10, 20])), [10, 20]);
    }

    #[test]
    fn those_that_stay_are_spread() {
        let kept = lens(&with(4, &(1..=16).map(|i| 10 * i).collect::<Vec<_>>()));
        assert_eq!(kept.len(), 4);
        assert_eq!(kept.last(), Some(&160), "the newest is there");
        let gaps = [0].iter().chain(&kept).zip(&kept).map(|(a, b)| b - a);
        assert!(gaps.max() <= Some(80), "{kept:?}");
    }

    #[test]
    fn a_prompts_checkpoint_stays() {
        let mut checkpoints = with(3, &[64, 100]);
        checkpoints.pin(100);
        for len in [128, 192, 256, 320, 384] {
            let room = checkpoints.room(len).unwrap();
            checkpoints.keep(Checkpoint { len, ..room });
        }
        assert!(lens(&checkpoints).contains(&100), "{:?}", lens(&checkpoints));
        assert_eq!(checkpoints.kept.len(), 3);
    }

    #[test]
    fn what_is_cut_off_is_forgotten_and_its_memory_kept() {
        let mut checkpoints = with(3, &[10, 20, 30]);
        assert_eq!(checkpoints.best(25).map(|kept| kept.len), Some(20));
        assert!(checkpoints.best(9).is_none());
        checkpoints.forget_after(15);
        assert_eq!((lens(&checkpoints), checkpoints.spare.len()), (vec![10], 2));
    }
}
