//! From fetches to reads: what is read together, and what in pieces.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use forerun_arena::{Arena, SLOT_ALIGN_BYTES, SlotIdx, Window};
use forerun_model::{ExpertKey, LayerId};

use super::in_flight::{InFlight, Piece, Role};
use super::{FetchId, FileStore};
use crate::merge::merge;
use crate::placement::{Placed, Placement};
use crate::{MergeLimits, Priority, Read, Tag};

/// Gaps that can be read at once; when they are used up, ranges with a gap between them are reads of their own.
const N_GAPS: usize = 16;

/// One guess takes one of so many parts of the queue at most, and so much is kept for demands.
const GUESS_SHARE: usize = 4;

/// Memory for bytes that nobody wants.
pub(super) struct Gaps(Option<Arena>);

impl Gaps {
    /// Room for gaps of up to [`MergeLimits::gap_bytes_max`]. Without it, no gap is read.
    pub(super) fn new(limits: MergeLimits) -> Self {
        Self(Arena::new(N_GAPS, limits.gap_bytes_max as usize).ok())
    }

    pub(super) fn bytes(limits: MergeLimits) -> u64 {
        N_GAPS as u64 * u64::from(limits.gap_bytes_max).next_multiple_of(SLOT_ALIGN_BYTES as u64)
    }

    fn window(&self, len_bytes: usize) -> Option<Window> {
        let arena = self.0.as_ref()?;
        let slots = (0..).take(arena.n_slots()).map(SlotIdx);
        let lease = slots.into_iter().find_map(|slot| arena.try_write(slot))?;
        Some(lease.window(0..len_bytes))
    }
}

/// A range that a fetch needs.
#[derive(Clone, Copy)]
struct Wanted {
    fetch: FetchId,
    placed: Placed,
    /// Bytes at its front that the read brings for the range before it.
    shared_bytes: u32,
}

impl FileStore {
    /// `placement` as it is read: a guess in pieces.
    pub(super) fn in_bites(&self, placement: Placement, priority: Priority) -> Placement {
        let (Priority::Guess, Some(bite_bytes)) = (priority, self.config.bite_bytes) else {
            return placement;
        };
        let limits = self.port.limits();
        // One guess is no more of the queue than its share, however small the bites.
        let n_bites_max = (limits.depth / GUESS_SHARE).max(1) as u64;
        let longest = u32::try_from(placement.read_bytes().div_ceil(n_bites_max)).unwrap_or(u32::MAX);
        placement.in_bites(bite_bytes.max(longest.next_multiple_of(limits.align_bytes)), limits.align_bytes)
    }

    /// Whether a guess of `n_bites` would take places that are kept for demands, which otherwise found the queue full
    /// of the pieces of a few guesses. An idle store takes any.
    pub(super) fn is_crowded(&self, priority: Priority, n_reads: usize, n_bites: usize) -> bool {
        let depth = self.port.limits().depth;
        let in_bites = priority == Priority::Guess && self.config.bite_bytes.is_some();
        in_bites && n_reads > 0 && n_reads + n_bites > depth - depth / GUESS_SHARE
    }

    /// Reads what was begun.
    pub(super) fn start_batch(&mut self, batch: &[FetchId]) {
        // Only experts of one layer and priority are read together: a guess must not hold up a demand, and what is
        // taken back is taken back layer by layer.
        let mut groups: BTreeMap<(Priority, LayerId), Vec<FetchId>> = BTreeMap::new();
        for id in batch {
            let fetch = &self.fetches[id];
            groups.entry((fetch.priority, fetch.key.layer)).or_default().push(*id);
        }
        for ((priority, _), ids) in groups {
            match (priority, self.config.bite_bytes) {
                // What is read together is given up together, if at all.
                (Priority::Guess, Some(_)) => ids.iter().for_each(|&id| self.start_alone(id)),
                _ => self.start_group(priority, &ids, self.config.merge),
            }
        }
    }

    /// Reads one fetch on its own.
    pub(super) fn start_alone(&mut self, id: FetchId) {
        let priority = self.fetches[&id].priority;
        self.start_group(priority, &[id], MergeLimits::NONE);
    }

    fn start_group(&mut self, priority: Priority, ids: &[FetchId], limits: MergeLimits) {
        let mut wanted: Vec<Wanted> = Vec::new();
        for &fetch in ids {
            let ranges = &self.fetches[&fetch].placement.ranges;
            wanted.extend(ranges.iter().map(|&placed| Wanted { fetch, placed, shared_bytes: 0 }));
        }
        wanted.sort_by_key(|wanted| wanted.placed.range);
        let ranges: Vec<_> = wanted.iter().map(|wanted| wanted.placed.range).collect();
        let runs = merge(&ranges, self.port.limits().align_bytes, limits);
        for run in &runs {
            for i in run.start + 1..run.end {
                let shared = ranges[i - 1].end_bytes().saturating_sub(ranges[i].offset_bytes);
                wanted[i].shared_bytes = u32::try_from(shared).expect("less than a range");
            }
        }
        let mut windows = self.split_slots(ids, &wanted);
        for run in runs {
            self.start_run(priority, &wanted[run], &mut windows);
        }
    }

    /// Splits the slot of each fetch into the windows of its ranges, one or two each: `[shared][own]`.
    fn split_slots(
        &mut self,
        ids: &[FetchId],
        wanted: &[Wanted],
    ) -> BTreeMap<(FetchId, u32), VecDeque<Window>> {
        let mut windows = BTreeMap::new();
        for id in ids {
            let mut mine: Vec<&Wanted> = wanted.iter().filter(|wanted| wanted.fetch == *id).collect();
            mine.sort_by_key(|wanted| wanted.placed.slot_offset_bytes);
            let fetch = self.fetches.get_mut(id).expect("a fetch of the batch isn't over");
            fetch.n_pieces = mine.len();
            let lease = fetch.lease.take().expect("a fetch of the batch has its slot");
            let mut split = lease.split(mine.iter().flat_map(|wanted| parts(wanted))).into_iter();
            for wanted in mine {
                let n = parts(wanted).count();
                windows.insert((*id, wanted.placed.slot_offset_bytes), split.by_ref().take(n).collect());
            }
        }
        windows
    }

    fn start_run(
        &mut self,
        priority: Priority,
        run: &[Wanted],
        windows: &mut BTreeMap<(FetchId, u32), VecDeque<Window>>,
    ) {
        let mut rest = run;
        while let Some(first) = rest.first() {
            let range = first.placed.range;
            let tag = Tag(self.next_id());
            let mut read =
                Read { tag, priority, file: range.file, offset_bytes: range.offset_bytes, windows: vec![] };
            let (mut pieces, mut roles, mut at) = (Vec::new(), VecDeque::new(), range.offset_bytes);
            for wanted in rest {
                let gap_bytes = wanted.placed.range.offset_bytes.saturating_sub(at);
                if gap_bytes > 0 {
                    let gap = usize::try_from(gap_bytes).ok().and_then(|len| self.gaps.window(len));
                    let Some(gap) = gap else { break };
                    read.windows.push(gap);
                    roles.push_back(Role::Gap);
                }
                let key = (wanted.fetch, wanted.placed.slot_offset_bytes);
                let mut mine = windows.remove(&key).expect("every range has its windows");
                let head =
                    if wanted.shared_bytes > 0 && !pieces.is_empty() { mine.pop_front() } else { None };
                let n_left = mine.len();
                roles.extend(mine.iter().map(|_| Role::Of(pieces.len())));
                read.windows.extend(mine);
                pieces.push(Piece {
                    fetch: wanted.fetch,
                    placed: wanted.placed,
                    head,
                    done: vec![],
                    n_left,
                    left_bytes: 0,
                });
                at = wanted.placed.range.end_bytes();
            }
            let n = pieces.len();
            self.submit(read, InFlight::new(pieces, roles));
            rest = &rest[n..];
        }
    }

    /// Makes a fetch, and the reads for it that haven't begun, demands.
    pub(super) fn promote_fetch(&mut self, key: ExpertKey) {
        let found = self.fetches.iter_mut().find(|(_, fetch)| fetch.key == key && !fetch.given_up);
        let Some((&id, fetch)) = found.filter(|(_, fetch)| fetch.priority == Priority::Guess) else { return };
        fetch.priority = Priority::Demand;
        let serves = |state: &InFlight| state.pieces.iter().any(|piece| piece.fetch == id);
        let reads = self.in_flight.iter().filter(|(_, state)| serves(state));
        let mut tags: Vec<Tag> = reads.map(|(&tag, _)| tag).collect();
        tags.sort_unstable();
        for tag in tags {
            if let Some(mut read) = self.port.withdraw(tag) {
                read.priority = Priority::Demand;
                self.port.submit(read);
            }
        }
    }
}

/// The windows of a range in its slot.
fn parts(wanted: &Wanted) -> impl Iterator<Item = Range<usize>> + use<> {
    let start = wanted.placed.slot_offset_bytes as usize;
    let own = start + wanted.shared_bytes as usize;
    let end = start + wanted.placed.range.len_bytes as usize;
    let head = (wanted.shared_bytes > 0).then_some(start..own);
    head.into_iter().chain(std::iter::once(own..end))
}
