//! The order in which slots are given up: worked out when a turn first needs one, for as many as it may need.

use forerun_arena::SlotIdx;
use forerun_model::{ExpertKey, LayerId, Routing};

use crate::CachePolicy;
use crate::slots::{Slot, Slots};

/// Experts that a layer keeps whatever others are worth, so that a pass over many rows can't empty the other layers.
const FLOOR: usize = 2;
/// A layer's floor is at most this part of an even share.
const FLOOR_PART: usize = 4;
/// Slots that are ranked beyond those that are wanted at once: for reads that begin later in the turn.
const N_SPARE: usize = 64;

/// How dear a slot is before worth is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Nothing speaks against it.
    Open,
    /// The last ones of their layer.
    Floor,
    /// A guess whose layer is still to come.
    Awaited,
    /// Used in this turn.
    Own,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    class: Class,
    worth: f32,
    last_used: u64,
    slot: SlotIdx,
    key: ExpertKey,
}

impl Candidate {
    fn is_free(&self, slots: &Slots) -> bool {
        let row = slots.get(self.slot);
        row.resident() == Some(self.key) && row.is_free()
    }

    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let by_worth = || self.worth.total_cmp(&other.worth);
        self.class.cmp(&other.class).then_with(by_worth).then(self.last_used.cmp(&other.last_used))
    }
}

/// Ranks residents by what a policy says.
pub(crate) struct Ranking {
    policy: Box<dyn CachePolicy>,
    /// The cheapest, ascending; those before `next` are gone.
    order: Vec<Candidate>,
    next: usize,
    // Buffers.
    victims: Vec<SlotIdx>,
    /// By layer: experts above the floor.
    n_above: Vec<usize>,
}

impl Ranking {
    /// For `n_slots` slots.
    pub(crate) fn new(policy: Box<dyn CachePolicy>, n_slots: usize) -> Self {
        Self { policy, order: Vec::with_capacity(n_slots), next: 0, victims: Vec::new(), n_above: Vec::new() }
    }

    pub(crate) fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// A new turn: what was ranked before no longer counts.
    pub(crate) fn observe(&mut self, layer: LayerId, routing: &Routing) {
        self.policy.observe(layer, routing);
        self.order.clear();
        self.next = 0;
    }

    /// Up to `n` slots that may be taken now, each once: vacant ones, then residents, cheapest first. Those that
    /// `spares` names come last, or not at all if `is_spared_free` is false; none is in `wanted`, which is ascending.
    pub(crate) fn victims(
        &mut self,
        slots: &Slots,
        (wanted, n): (&[ExpertKey], usize),
        spares: impl Fn(&Slot) -> bool,
        is_spared_free: bool,
    ) -> &[SlotIdx] {
        self.victims.clear();
        self.victims.extend(slots.vacant().take(n));
        let n_vacant = self.victims.len();
        if n_vacant < n {
            self.skip_taken(slots);
            self.add_residents(slots, n, &spares, is_spared_free);
            if self.victims.len() < n {
                self.victims.truncate(n_vacant);
                self.rank(slots, wanted, n);
                self.add_residents(slots, n, &spares, is_spared_free);
            }
        }
        &self.victims
    }

    fn add_residents(
        &mut self,
        slots: &Slots,
        n: usize,
        spares: impl Fn(&Slot) -> bool,
        is_spared_free: bool,
    ) {
        let Self { order, next, victims, .. } = self;
        let free = order[*next..].iter().filter(|candidate| candidate.is_free(slots));
        let spared = |candidate: &&Candidate| spares(slots.get(candidate.slot));
        victims.extend(free.clone().filter(|c| !spared(c)).map(|c| c.slot).take(n - victims.len()));
        if is_spared_free {
            victims.extend(free.filter(spared).map(|c| c.slot).take(n - victims.len()));
        }
    }

    /// Passes over those that were overwritten.
    fn skip_taken(&mut self, slots: &Slots) {
        let is_taken = |c: &Candidate| slots.get(c.slot).resident() != Some(c.key);
        self.next += self.order[self.next..].iter().take_while(|c| is_taken(c)).count();
    }

    /// Ranks anew: the cheapest `n` and some more, none of which is in `wanted`.
    fn rank(&mut self, slots: &Slots, wanted: &[ExpertKey], n: usize) {
        let Self { policy, order, next, n_above, .. } = self;
        let floor = floor(slots);
        n_above.clear();
        n_above.extend(slots.n_of_layers().map(|n_residents| n_residents.saturating_sub(floor)));
        *next = 0;
        order.clear();
        order.extend(slots.all().filter_map(|(slot, row)| {
            let key = row.resident().filter(|key| !row.promised && wanted.binary_search(key).is_err())?;
            Some(Candidate {
                class: class(slots, row),
                worth: policy.worth(key),
                last_used: row.last_used,
                slot,
                key,
            })
        }));
        // Every layer's last ones may be among the cheapest, and still there must be enough.
        let n = n + N_SPARE + floor * n_above.len();
        if n < order.len() {
            order.select_nth_unstable_by(n, Candidate::compare);
            order.truncate(n);
        }
        order.sort_unstable_by(Candidate::compare);
        for candidate in order.iter_mut().filter(|c| c.class == Class::Open) {
            let layer = candidate.key.layer;
            match &mut n_above[layer.idx()] {
                _ if slots.is_open(layer) => {}
                0 => candidate.class = Class::Floor,
                n => *n -= 1,
            }
        }
        order.sort_unstable_by(Candidate::compare);
    }
}

fn class(slots: &Slots, row: &Slot) -> Class {
    if row.turn_used == slots.turn() {
        Class::Own
    } else if slots.is_awaited_guess(row) {
        Class::Awaited
    } else {
        Class::Open
    }
}

fn floor(slots: &Slots) -> usize {
    let n_layers = slots.n_of_layers().len().max(1);
    FLOOR.min(slots.len() / (FLOOR_PART * n_layers))
}

#[cfg(test)]
mod tests {
    use forerun_arena::Arena;
    use forerun_model::PartOffsets;
    use forerun_storage::Filled;

    use super::*;
    use crate::slots::Origin;

    /// Experts with odd numbers are worth their number, the others nothing.
    struct Odd;

    impl CachePolicy for Odd {
        fn name(&self) -> &'static str {
            "odd"
        }

        fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

        fn worth(&mut self, key: ExpertKey) -> f32 {
            if key.expert.0 % 2 == 1 { f32::from(key.expert.0) } else { 0.0 }
        }
    }

    /// More are taken one by one than are ranked at once.
    #[test]
    fn the_cheapest_goes_however_many_went_before() {
        const N: u16 = 300;
        let arena = Arena::new(N.into(), 1).unwrap();
        let mut slots = Slots::new(N.into());
        slots.next_turn(LayerId(1));
        let next = |slots: &mut Slots, ranking: &mut Ranking| {
            let victim = *ranking.victims(slots, (&[], 1), |_| false, true).first()?;
            let gone = slots.get(victim).resident();
            slots.vacate(victim);
            slots.begin(victim, ExpertKey::new(1, gone?.expert.0), Origin::Demand);
            gone
        };
        for expert in 0..N {
            let slot = SlotIdx(expert.into());
            slots.begin(slot, ExpertKey::new(0, expert), Origin::Demand);
            let lease = arena.try_write(slot).unwrap().seal();
            slots.fill(slot, Filled { lease, parts: PartOffsets::default(), read_bytes: 1 });
        }
        let mut ranking = Ranking::new(Box::new(Odd), N.into());
        let gone: Vec<u16> =
            std::iter::from_fn(|| next(&mut slots, &mut ranking)).map(|k| k.expert.0).collect();
        let (even, odd) = ((0..N).step_by(2), (1..N).step_by(2));
        assert_eq!(gone, even.chain(odd).collect::<Vec<_>>());
    }
}
