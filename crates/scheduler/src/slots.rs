//! The table: who is in which slot, since when, and who may not be moved.

use std::collections::HashMap;

use forerun_arena::{ReadLease, SlotIdx};
use forerun_model::{ExpertKey, LayerId, PartOffsets};
use forerun_storage::Filled;

/// Why an expert was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A router asked for it.
    #[default]
    Demand,
    /// A predictor guessed it.
    Guess,
    /// A pass of many rows reads its next layer, at no cost to what guesses may.
    Sweep,
}

impl Origin {
    /// Whether it was read before a router asked.
    pub(crate) fn is_ahead(self) -> bool {
        self != Self::Demand
    }
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
    /// The turn that wanted it last; 0 before the first.
    pub(crate) turn_used: u64,
    /// Grows from use to use, over all slots.
    pub(crate) last_used: u64,
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
            Content::Resident { read_bytes, .. } if self.origin.is_ahead() && !self.used => read_bytes,
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
    n_uses: u64,
    layers: Vec<OfLayer>,
    open: Option<LayerId>,
}

/// What the table counts per layer.
#[derive(Clone, Copy, Debug, Default)]
struct OfLayer {
    /// Experts that are in a slot, or on their way.
    n_experts: usize,
    /// The turn in which it was opened last.
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
            n_uses: 0,
            layers: Vec::new(),
            open: None,
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

    /// Begins the next turn, which is that of `layer`.
    pub(crate) fn next_turn(&mut self, layer: LayerId) {
        self.turn += 1;
        self.open = Some(layer);
        self.of_layer(layer).turn = self.turn;
    }

    /// Whether the turn is that of `layer`.
    pub(crate) fn is_open(&self, layer: LayerId) -> bool {
        self.open == Some(layer)
    }

    /// By layer: experts that are in a slot, or on their way. Layers that never had one may lack.
    pub(crate) fn n_of_layers(&self) -> impl ExactSizeIterator<Item = usize> {
        self.layers.iter().map(|layer| layer.n_experts)
    }

    /// Whether `row` is a guess whose layer wasn't opened since it was begun.
    pub(crate) fn is_awaited_guess(&self, row: &Slot) -> bool {
        let opened = self.layers.get(row.key.layer.idx()).map_or(0, |layer| layer.turn);
        row.origin.is_ahead() && !row.used && opened <= row.turn
    }

    fn of_layer(&mut self, layer: LayerId) -> &mut OfLayer {
        if self.layers.len() <= layer.idx() {
            self.layers.resize_with(layer.idx() + 1, OfLayer::default);
        }
        &mut self.layers[layer.idx()]
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

    /// Free slots without an expert worth keeping, the first to be used first: they are always the oldest.
    pub(crate) fn vacant(&self) -> impl Iterator<Item = SlotIdx> {
        let is_vacant = |slot: &Slot| matches!(slot.content, Content::Empty | Content::Spent { .. });
        let vacant = self.oldest_first().take_while(move |(_, slot)| is_vacant(slot));
        vacant.filter(|(_, slot)| slot.is_free()).map(|(slot, _)| slot)
    }

    /// All slots, in the order of the arena.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SlotIdx, &Slot)> {
        self.rows.iter().enumerate().map(|(i, row)| (idx(i), row))
    }

    /// The experts that can be handed out, with their slots, in no order.
    pub(crate) fn residents(&self) -> impl Iterator<Item = (SlotIdx, ExpertKey)> {
        self.rows.iter().enumerate().filter_map(|(i, row)| Some((idx(i), row.resident()?)))
    }

    /// Promises the expert of `slot` to the open turn, which is a use of it.
    pub(crate) fn promise(&mut self, slot: SlotIdx) {
        let turn = self.turn;
        let row = &mut self.rows[slot.0 as usize];
        row.promised = true;
        row.used = true;
        row.turn_used = turn;
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
                self.forget(row.key);
            }
            Content::Resident { .. } => self.forget(row.key),
        }
        self.make_oldest(slot);
    }

    /// The store has begun to fill the empty `slot` with `key`.
    pub(crate) fn begin(&mut self, slot: SlotIdx, key: ExpertKey, origin: Origin) {
        let turn = self.turn;
        self.rows[slot.0 as usize] = Slot { key, content: Content::Loading, origin, turn, ..Slot::default() };
        self.by_key.insert(key, slot);
        self.of_layer(key.layer).n_experts += 1;
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
            self.forget(row.key);
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

    fn forget(&mut self, key: ExpertKey) {
        self.by_key.remove(&key);
        self.of_layer(key.layer).n_experts -= 1;
    }

    fn make_newest(&mut self, slot: SlotIdx) {
        self.n_uses += 1;
        self.rows[slot.0 as usize].last_used = self.n_uses;
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
    fn a_guess_is_awaited_until_its_layer_is_opened() {
        let mut slots = Slots::new(2);
        slots.next_turn(LayerId(0));
        slots.begin(SlotIdx(0), ExpertKey::new(1, 7), Origin::Guess);
        slots.begin(SlotIdx(1), ExpertKey::new(1, 8), Origin::Demand);
        let awaited = |slots: &Slots| [0, 1].map(|i| slots.is_awaited_guess(slots.get(SlotIdx(i))));
        assert_eq!(awaited(&slots), [true, false]);
        slots.next_turn(LayerId(1));
        assert_eq!(awaited(&slots), [false, false]);
        assert_eq!(slots.n_of_layers().collect::<Vec<_>>(), [0, 2]);
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
