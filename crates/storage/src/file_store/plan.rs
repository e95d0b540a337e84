//! From fetches to reads and back: what is read together, and which guesses can still be taken back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use forerun_arena::{Arena, SLOT_ALIGN_BYTES, SlotIdx, Window};
use forerun_model::{ExpertKey, LayerId};

use super::in_flight::{InFlight, Piece, Role};
use super::{FetchId, FileStore};
use crate::merge::merge;
use crate::placement::Placed;
use crate::{MergeLimits, Priority, Read, Tag, Withdrawn};

/// Gaps that can be read at once; when they are used up, ranges with a gap between them are reads of their own.
const N_GAPS: usize = 16;

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
            self.start_group(priority, &ids, self.config.merge);
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
                pieces.push(Piece { fetch: wanted.fetch, placed: wanted.placed, head, done: vec![], n_left });
                at = wanted.placed.range.end_bytes();
            }
            let n = pieces.len();
            self.submit(read, InFlight::new(pieces, roles));
            rest = &rest[n..];
        }
    }

    /// Makes a fetch, and the reads for it that haven't begun, demands.
    pub(super) fn promote_fetch(&mut self, key: ExpertKey) {
        let found = self.fetches.iter_mut().find(|(_, fetch)| fetch.key == key);
        let Some((&id, fetch)) = found else { return };
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

    /// Takes back guesses that weren't started.
    pub(super) fn withdraw_batched(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        let Self { batch, fetches, n_batch_reads, .. } = self;
        batch.retain(|id| {
            let fetch = &fetches[id];
            let leaves =
                fetch.priority == Priority::Guess && layer.is_none_or(|layer| fetch.key.layer == layer);
            if leaves {
                let fetch = fetches.remove(id).expect("it was there a moment ago");
                *n_batch_reads -= fetch.placement.ranges.len();
                let lease = fetch.lease.expect("a fetch of the batch has its slot");
                withdrawn.push(Withdrawn { key: fetch.key, lease });
            }
            !leaves
        });
    }

    /// Takes back guesses none of whose reads has begun.
    pub(super) fn withdraw_started(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        let leaves = |piece: &Piece| {
            let fetch = &self.fetches[&piece.fetch];
            fetch.priority == Priority::Guess
                && layer.is_none_or(|layer| fetch.key.layer == layer)
                && fetch.n_pieces == fetch.placement.ranges.len()
        };
        let reads = self.in_flight.iter().filter(|(_, state)| state.pieces.iter().all(leaves));
        let mut tags: Vec<Tag> = reads.map(|(&tag, _)| tag).collect();
        tags.sort_unstable();
        let mut taken: Vec<Read> = tags.into_iter().filter_map(|tag| self.port.withdraw(tag)).collect();
        // A fetch of which another read has begun is read to its end, and so is what shares a read with it.
        while let Some(at) = taken.iter().position(|read| self.is_partial(read, &taken)) {
            let read = taken.remove(at);
            self.port.submit(read);
        }
        for read in taken {
            let state = self.in_flight.remove(&read.tag).expect("a read of ours");
            for piece in state.into_pieces(read.windows) {
                self.forget(piece, withdrawn);
            }
        }
    }

    /// Whether a fetch that `read` serves needs a read that isn't among `taken`.
    fn is_partial(&self, read: &Read, taken: &[Read]) -> bool {
        let serves = |read: &Read, id| {
            self.in_flight[&read.tag].pieces.iter().filter(|piece| piece.fetch == id).count()
        };
        self.in_flight[&read.tag].pieces.iter().any(|piece| {
            let n: usize = taken.iter().map(|read| serves(read, piece.fetch)).sum();
            n < self.fetches[&piece.fetch].n_pieces
        })
    }

    /// Ends a piece of a guess that was taken back.
    fn forget(&mut self, piece: Piece, withdrawn: &mut Vec<Withdrawn>) {
        let lease = piece.done.into_iter().filter_map(Window::join).last();
        let fetch = self.fetches.get_mut(&piece.fetch).expect("a piece's fetch isn't over");
        fetch.n_pieces -= 1;
        if let Some(lease) = lease {
            let fetch = self.fetches.remove(&piece.fetch).expect("it was there a moment ago");
            withdrawn.push(Withdrawn { key: fetch.key, lease });
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
