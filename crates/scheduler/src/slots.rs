//! The table: who is in which slot, since when, and who may not be moved.

use std::collections::HashMap;

use forerun_arena::{ReadLease, SlotIdx};
use forerun_model::{ExpertKey, PartOffsets};
use forerun_storage::Filled;

/// Why an expert was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A router asked for it.
    #[default]
    Demand,
    /// A predictor guessed it.
    Guess,
}

/// What a slot holds.
#[derive(Debug, Default)]
pub(crate) enum Content {
    /// Nothing; nobody has a lease.
    #[default]
    Empty,
    /// The store has the write lease.
    Loading,
    /// An expert that can be handed out.
    Resident {
        /// The table's own lease.
        lease: ReadLease,
        /// Where its parts begin.
        parts: PartOffsets,
        /// Bytes that were read for it.
        read_bytes: u64,
    },
    /// An expert that was handed out and shall not be kept: free when the caller's leases are gone.
    Spent {
        /// The table's own lease.
        lease: ReadLease,
    },
}

/// One row of the table.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The expert; meaningless when `content` is empty or spent.
    pub(crate) key: ExpertKey,
    pub(crate) content: Content,
    /// Why it was read.
    pub(crate) origin: Origin,
    /// The turn in which its read was begun.
    pub(crate) turn: u64,
    /// Whether a router ever wanted it since.
    pub(crate) used: bool,
    /// The open turn has still to hand it out.
    pub(crate) promised: bool,
}

impl Slot {
    /// Whether another expert may take the slot: nobody reads it, fills it, or has still to get it.
    pub(crate) fn is_free(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Loading => false,
            Content::Resident { lease, .. } | Content::Spent { lease } => !self.promised && lease.is_last(),
        }
    }

    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.content, Content::Loading)
    }

    /// The expert that can be handed out.
    pub(crate) fn resident(&self) -> Option<ExpertKey> {
        matches!(self.content, Content::Resident { .. }).then_some(self.key)
    }

    /// Bytes that were read for a guess that no router has wanted so far.
    pub(crate) fn unused_bytes(&self) -> u64 {
        match self.content {
            Content::Resident { read_bytes, .. } if self.origin == Origin::Guess && !self.used => read_bytes,
            _ => 0,
        }
    }
}

/// Neighbours in the order of use.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    older: usize,
    newer: usize,
}

/// All slots, in the order of their last use; every operation but [`Slots::break_promises`] takes constant time.
#[derive(Debug)]
pub(crate) struct Slots {
    rows: Vec<Slot>,
    /// A ring; its last entry is no slot but the seam between newest and oldest.
    links: Vec<Link>,
    by_key: HashMap<ExpertKey, SlotIdx>,
    n_loading: usize,
    n_retired: usize,
    turn: u64,
}

impl Slots {
    /// `n_slots` empty slots, slot 0 the longest unused.
    pub(crate) fn new(n_slots: usize) -> Self {
        let n_links = n_slots + 1;
        let link = |i| Link { older: (i + n_links - 1) % n_links, newer: (i + 1) % n_links };
        Self {
            rows: (0..n_slots).map(|_| Slot::default()).collect(),
            links: (0..n_links).map(link).collect(),
            by_key: HashMap::with_capacity(n_slots),
            n_loading: 0,
            n_retired: 0,
            turn: 0,
        }
    }

    /// Slots that are in use or may be.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() - self.n_retired
    }

    /// The link that is no slot.
    fn seam(&self) -> usize {
        self.rows.len()
    }

    /// Slots that the store is filling.
    pub(crate) fn n_loading(&self) -> usize {
        self.n_loading
    }

    /// Number of the turn that was opened last.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Begins the next turn.
    pub(crate) fn next_turn(&mut self) {
        self.turn += 1;
    }

    pub(crate) fn get(&self, slot: SlotIdx) -> &Slot {
        &self.rows[slot.0 as usize]
    }

    /// The slot in which `key` is, or will be when its read is over.
    pub(crate) fn find(&self, key: ExpertKey) -> Option<SlotIdx> {
        self.by_key.get(&key).copied()
    }

    /// All slots, longest unused first.
    pub(crate) fn oldest_first(&self) -> impl Iterator<Item = (SlotIdx, &Slot)> {
        let seam = self.seam();
        std::iter::successors(Some(self.links[seam].newer), |&i| Some(self.links[i].newer))
            .take_while(move |&i| i != seam)
            .map(|i| (idx(i), &self.rows[i]))
    }

    /// The experts that can be handed out, with their slots, in no order.
    pub(crate) fn residents(&self) -> impl Iterator<Item = (SlotIdx, ExpertKey)> {
        self.rows.iter().enumerate().filter_map(|(i, row)| Some((idx(i), row.resident()?)))
    }

    /// Promises the expert of `slot` to the open turn, which is a use of it.
    pub(crate) fn promise(&mut self, slot: SlotIdx) {
        let row = &mut self.rows[slot.0 as usize];
        row.promised = true;
        row.used = true;
        self.make_newest(slot);
    }

    /// The expert of `slot` was handed out.
    pub(crate) fn keep_promise(&mut self, slot: SlotIdx) {
        self.rows[slot.0 as usize].promised = false;
    }

    /// Forgets all promises: the turn was abandoned.
    pub(crate) fn break_promises(&mut self) {
        for row in &mut self.rows {
            row.promised = false;
        }
    }

    /// Empties `slot`, which becomes the first to be used again, and drops the table's lease.
    pub(crate) fn vacate(&mut self, slot: SlotIdx) {
        let row = std::mem::take(&mut self.rows[slot.0 as usize]);
        match row.content {
            Content::Empty | Content::Spent { .. } => {}
            Content::Loading => {
                self.n_loading -= 1;
                self.by_key.remove(&row.key);
            }
            Content::Resident { .. } => {
                self.by_key.remove(&row.key);
            }
        }
        self.make_oldest(slot);
    }

    /// The store has begun to fill the empty `slot` with `key`.
    pub(crate) fn begin(&mut self, slot: SlotIdx, key: ExpertKey, origin: Origin) {
        let turn = self.turn;
        self.rows[slot.0 as usize] =
            Slot { key, content: Content::Loading, origin, turn, used: false, promised: false };
        self.by_key.insert(key, slot);
        self.n_loading += 1;
        self.make_newest(slot);
    }

    /// The store has filled `slot`.
    pub(crate) fn fill(&mut self, slot: SlotIdx, filled: Filled) {
        let Filled { lease, parts, read_bytes } = filled;
        self.rows[slot.0 as usize].content = Content::Resident { lease, parts, read_bytes };
        self.n_loading -= 1;
    }

    /// Forgets whom `slot` holds; it is free when the caller's leases are gone, and then the first to be used again.
    pub(crate) fn spend(&mut self, slot: SlotIdx) {
        let row = std::mem::take(&mut self.rows[slot.0 as usize]);
        if let Content::Resident { lease, .. } = row.content {
            self.by_key.remove(&row.key);
            self.rows[slot.0 as usize].content = Content::Spent { lease };
        }
        self.make_oldest(slot);
    }

    /// Takes the free `slot` out of the order for good: nobody finds it again.
    pub(crate) fn retire(&mut self, slot: SlotIdx) {
        self.vacate(slot);
        self.unlink(slot.0 as usize);
        self.n_retired += 1;
    }

    fn make_newest(&mut self, slot: SlotIdx) {
        self.unlink(slot.0 as usize);
        let seam = self.seam();
        self.link_between(self.links[seam].older, slot.0 as usize, seam);
    }

    fn make_oldest(&mut self, slot: SlotIdx) {
        self.unlink(slot.0 as usize);
        let seam = self.seam();
        self.link_between(seam, slot.0 as usize, self.links[seam].newer);
    }

    fn unlink(&mut self, i: usize) {
        let Link { older, newer } = self.links[i];
        self.links[older].newer = newer;
        self.links[newer].older = older;
    }

    fn link_between(&mut self, older: usize, i: usize, newer: usize) {
        self.links[i] = Link { older, newer };
        self.links[older].newer = i;
        self.links[newer].older = i;
    }
}

/// The slot of row `i`.
#[expect(clippy::cast_possible_truncation, reason = "an arena has fewer than 2^32 slots")]
fn idx(i: usize) -> SlotIdx {
    SlotIdx(i as u32)
}

#[cfg(test)]
mod tests {
    use forerun_arena::Arena;

    use super::*;

    fn order(slots: &Slots) -> Vec<u32> {
        slots.oldest_first().map(|(slot, _)| slot.0).collect()
    }

    #[test]
    fn what_was_used_last_is_newest() {
        let mut slots = Slots::new(3);
        assert_eq!(order(&slots), [0, 1, 2]);
        slots.begin(SlotIdx(0), ExpertKey::new(0, 7), Origin::Demand);
        assert_eq!(order(&slots), [1, 2, 0]);
        slots.begin(SlotIdx(2), ExpertKey::new(0, 8), Origin::Demand);
        slots.promise(SlotIdx(0));
        assert_eq!(order(&slots), [1, 2, 0]);
        slots.vacate(SlotIdx(0));
        assert_eq!(order(&slots), [0, 1, 2]);
    }

    #[test]
    fn a_spent_slot_is_free_when_the_caller_let_go() {
        let arena = Arena::new(1, 64).unwrap();
        let (slot, key) = (SlotIdx(0), ExpertKey::new(1, 2));
        let mut slots = Slots::new(1);
        slots.begin(slot, key, Origin::Demand);
        let lease = arena.try_write(slot).unwrap().seal();
        let callers = lease.clone();
        slots.fill(slot, Filled { lease, parts: PartOffsets::default(), read_bytes: 1 });
        slots.spend(slot);
        assert!(slots.find(key).is_none() && !slots.get(slot).is_free());
        drop(callers);
        assert!(slots.get(slot).is_free());
        slots.vacate(slot);
        assert!(arena.try_write(slot).is_some());
    }
}
