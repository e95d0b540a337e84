//! Mistakes that an engine of this kind could make, made on purpose: the checks of the lossless tests see each of them.

#![cfg(test)]

mod support;

use std::collections::HashMap;
use std::io::Write as _;

use forerun_arena::{Arena, SlotIdx, WriteLease};
use forerun_model::{ExpertId, ExpertKey, LayerId, Nanos, PartOffsets, Routing};
use forerun_scheduler::Ready;
use forerun_sim::{Checker, Faults, Machine, ToyBackend, Watched};
use forerun_storage::{
    DataFile, ExpertStore, Fetched, FileSet, FileStore, Filled, Lent, Mapped, MemoryBackend, Priority,
    Refused, StoreError, StoreStats, Withdrawn,
};
use support::World;
use support::wrong::{Mistake, Wrong};

/// Machines that the lossless test runs too.
fn machines(world: &World) -> impl Iterator<Item = Machine> {
    let n_experts = world.model.n_experts_total();
    (1..=40).map(move |seed| Machine::from_seed(seed, n_experts).faults(Faults::survivable()))
}

/// Even the machine that says what is right adds in the order of arrival: others differ from it.
#[test]
#[should_panic(expected = "first logit that differs")]
fn a_sum_in_the_order_of_arrival_is_seen() {
    let wrong = |toy| Wrong::new(toy, Mistake::ArrivalOrder);
    let world = World::with(24, |toy| Box::new(wrong(toy)));
    for machine in machines(&world) {
        let mut backend = wrong(ToyBackend::new(world.model, 1));
        let (progress, _) = world.run_on(&machine, world.rig(&machine), &mut backend);
        world.assert_calm(&progress, &machine);
    }
}

/// What a device meets that still computes with a slot when the next expert is in it.
#[test]
#[should_panic(expected = "of its slot, is")]
fn an_expert_that_computes_after_its_slot_was_filled_anew_is_seen() {
    let world = World::new();
    let machine = Machine::calm(2);
    let mut backend = Wrong::new(ToyBackend::new(world.model, 1), Mistake::LateRead);
    world.run_on(&machine, world.rig(&machine), &mut backend);
}

/// A scheduler that took a slot under a lease would have to get past the arena.
#[test]
fn no_slot_can_be_overwritten_under_a_lease() {
    let arena = Arena::new(1, 64).unwrap();
    let mut lease = arena.try_write(SlotIdx(0)).unwrap();
    lease.bytes_mut().fill(7);
    let lease = lease.seal();
    let again = lease.clone();
    drop(lease);
    assert!(arena.try_write(SlotIdx(0)).is_none(), "a lease is out");
    assert_eq!(again.bytes()[0], 7);
    drop(again);
    assert!(arena.try_write(SlotIdx(0)).is_some(), "all leases are back");
}

/// The memory under a lease changes: that of a mapped file, from which no arena keeps others away.
#[test]
#[should_panic(expected = "was overwritten while")]
fn bytes_that_change_under_a_lease_are_seen() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.gguf");
    std::fs::write(&path, &world.file).unwrap();
    let files = FileSet::new(vec![DataFile::open(&path).unwrap()]);
    let mapped = Mapped::new(&world.catalog, &files).unwrap();
    let backend = Box::new(MemoryBackend::new(vec![world.file.clone()]));
    let mut store = FileStore::new(world.catalog.clone(), files, backend).lending(mapped);
    let key = ExpertKey::new(0, 3);
    let Lent { lease, parts } = store.lend(key).unwrap();

    let mut routing = Routing::default();
    routing.reset(1);
    routing.push_row(&[(ExpertId(3), 1.0)]);
    routing.group();
    let mut checker = Checker::new(1);
    checker.opening(key.layer, &routing);
    checker.handed_out(&Ready { key, lease, parts });
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&[0xff]).unwrap();
    checker.let_all_go();
}

/// What a store double does otherwise than the real one, or a scheduler that is above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Nothing.
    Right,
    /// A guess that failed half-way is handed out.
    PublishesFailedGuesses,
    /// A guess that was given up is handed out.
    PublishesGivenUp,
    /// The slot of a given-up guess is forgotten: what was in it before passes for the expert.
    PublishesUntouched,
    /// An expert is begun twice.
    FetchesTwice,
    /// An expert comes back twice.
    ReportsTwice,
    /// An expert comes back in the slot of another.
    SwapsSlots,
    /// A guess is begun after a demand that found no room.
    GuessesFirst,
}

/// Reads into slots of its own and copies from there, so that it can do anything to the scheduler's.
struct Double {
    inner: Box<dyn ExpertStore>,
    plan: Plan,
    arena: Arena,
    /// What is in flight, with the scheduler's slots.
    held: HashMap<ExpertKey, (WriteLease, Priority)>,
    parts: HashMap<ExpertKey, PartOffsets>,
}

impl Double {
    fn new(world: &World, machine: &Machine, inner: Box<dyn ExpertStore>, plan: Plan) -> Self {
        let align_bytes = machine.profile.align_bytes;
        let arena = Arena::new(80, world.catalog.slot_bytes(align_bytes)).unwrap();
        let keys = (0..world.model.n_layers)
            .flat_map(|layer| (0..world.model.n_experts).map(move |expert| ExpertKey::new(layer, expert)));
        let parts = |key| (key, world.catalog.placement(key, align_bytes).unwrap().parts);
        Self { inner, plan, arena, held: HashMap::new(), parts: keys.map(parts).collect() }
    }

    /// A free slot of its own.
    fn own(&self) -> WriteLease {
        (0..80).map(SlotIdx).find_map(|slot| self.arena.try_write(slot)).expect("more slots than reads")
    }

    /// Fills the scheduler's slot as its own was filled, or as the plan wants it.
    fn hand_over(&mut self, Fetched { key, result }: Fetched, done: &mut Vec<Fetched>) {
        let Some((mut lease, priority)) = self.held.remove(&key) else { return };
        let is_guess = priority == Priority::Guess;
        let filled = match (self.plan, result) {
            (Plan::PublishesGivenUp | Plan::PublishesUntouched, Err(StoreError::GivenUp { .. })) => {
                if self.plan == Plan::PublishesGivenUp {
                    lease.bytes_mut().fill(0xa5);
                }
                Filled { lease: lease.seal(), parts: self.parts[&key], read_bytes: 1 }
            }
            (_, Err(error)) => {
                drop(lease);
                return done.push(Fetched { key, result: Err(error) });
            }
            (plan, Ok(filled)) => {
                let n = filled.lease.bytes().len();
                let n = if is_guess && plan == Plan::PublishesFailedGuesses { n / 16 } else { n };
                lease.bytes_mut()[..n].copy_from_slice(&filled.lease.bytes()[..n]);
                Filled { lease: lease.seal(), ..filled }
            }
        };
        if self.plan == Plan::ReportsTwice {
            done.push(Fetched { key, result: Ok(filled.clone()) });
        }
        done.push(Fetched { key, result: Ok(filled) });
    }
}

#[deny(clippy::missing_trait_methods, reason = "a double stands for the whole store")]
impl ExpertStore for Double {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused> {
        let begun = self.inner.begin(key, self.own(), priority);
        if self.plan == Plan::FetchesTwice && begun.is_ok() {
            let _ = self.inner.begin(key, self.own(), priority);
        }
        if self.plan == Plan::GuessesFirst && begun.is_err() && priority == Priority::Demand {
            let other = self.parts.keys().filter(|other| !self.held.contains_key(other)).min();
            let _ = self.inner.begin(*other.unwrap(), self.own(), Priority::Guess);
        }
        match begun {
            Ok(()) => {
                self.held.insert(key, (slot, priority));
                Ok(())
            }
            Err(Refused { reason, .. }) => Err(Refused { lease: slot, reason }),
        }
    }

    fn start(&mut self) {
        self.inner.start();
    }

    fn promote(&mut self, key: ExpertKey) {
        self.inner.promote(key);
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        let before = withdrawn.len();
        self.inner.withdraw_guesses(layer, withdrawn);
        for back in &mut withdrawn[before..] {
            back.lease = self.held.remove(&back.key).expect("it was begun").0;
        }
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        let mut back = Vec::new();
        self.inner.wait(until, &mut back);
        if self.plan == Plan::SwapsSlots && back.len() > 1 {
            let (a, b) = (back[0].key, back[1].key);
            if let (Some(of_a), Some(of_b)) = (self.held.remove(&a), self.held.remove(&b)) {
                self.held.extend([(a, of_b), (b, of_a)]);
            }
        }
        back.into_iter().for_each(|one| self.hand_over(one, done));
    }

    fn lend(&mut self, key: ExpertKey) -> Option<Lent> {
        self.inner.lend(key)
    }

    fn can_lend(&self, key: ExpertKey) -> bool {
        self.inner.can_lend(key)
    }

    fn check_lent(&mut self) -> Result<(), StoreError> {
        self.inner.check_lent()
    }

    fn stop_lending(&mut self) {
        self.inner.stop_lending();
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}

/// The check of the lossless test over a store with a mistake; `is_above`: the mistake is the caller's.
fn check_plan(plan: Plan, is_above: bool) {
    let world = World::new();
    for machine in machines(&world) {
        let rig = machine.rig_with(&world.catalog, vec![world.file.clone()], |store| {
            let double = |inner| Double::new(&world, &machine, inner, plan);
            match is_above {
                true => Box::new(double(Box::new(Watched::new(store)))),
                false => Box::new(Watched::new(Box::new(double(store)))),
            }
        });
        let mut toy = ToyBackend::new(world.model, 1);
        let (progress, _) = world.run_on(&machine, rig.unwrap(), &mut toy);
        world.assert_calm(&progress, &machine);
    }
}

#[test]
fn a_double_without_a_mistake_passes() {
    check_plan(Plan::Right, false);
    check_plan(Plan::Right, true);
}

#[test]
#[should_panic(expected = "of its slot, is")]
fn a_failed_guess_that_is_handed_out_is_seen() {
    check_plan(Plan::PublishesFailedGuesses, false);
}

#[test]
#[should_panic(expected = "of its slot, is")]
fn a_guess_that_was_given_up_and_is_handed_out_is_seen() {
    check_plan(Plan::PublishesGivenUp, false);
}

#[test]
#[should_panic(expected = "of its slot, is")]
fn what_was_in_the_slot_before_a_guess_is_seen() {
    check_plan(Plan::PublishesUntouched, false);
}

#[test]
#[should_panic(expected = "is begun while its last fetch is in flight")]
fn an_expert_that_is_fetched_twice_is_seen() {
    check_plan(Plan::FetchesTwice, true);
}

#[test]
#[should_panic(expected = "came back twice, or was never begun")]
fn an_expert_that_comes_back_twice_is_seen() {
    check_plan(Plan::ReportsTwice, false);
}

#[test]
#[should_panic(expected = "came back in another slot than was given for it")]
fn an_expert_in_the_slot_of_another_is_seen() {
    check_plan(Plan::SwapsSlots, false);
}

#[test]
#[should_panic(expected = "waits for room")]
fn a_guess_that_goes_before_a_demand_is_seen() {
    check_plan(Plan::GuessesFirst, true);
}
