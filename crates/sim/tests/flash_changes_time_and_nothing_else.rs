//! Whatever the slots, the flash, the faults and the guesses: the bits that come out are those of a calm machine.

#![cfg(test)]

use std::sync::Arc;

use bytes::Bytes;
use forerun_scheduler::{PolicyName, SchedulerError, SchedulerStats};
use forerun_sim::{
    Faults, FlashLog, FlashProfile, Guessing, Machine, Progress, Rig, RunError, ToyBackend, ToyModel,
    Workload,
};
use forerun_storage::{Catalog, StoreError};

struct World {
    model: ToyModel,
    catalog: Arc<Catalog>,
    file: Bytes,
    workload: Workload,
    /// What a calm machine with room for everything says.
    calm: Progress,
}

impl World {
    fn new() -> Self {
        let model = ToyModel::small();
        let catalog = Arc::new(model.catalog().unwrap());
        let workload = Workload::random(42, model.n_vocab, 24);
        let mut world = Self { model, catalog, file: model.file(), workload, calm: Progress::default() };
        world.calm = world.run(&Machine::calm(model.n_experts_total())).0;
        assert!(world.calm.logits_bits.iter().any(|&bits| bits != world.calm.logits_bits[0]));
        world
    }

    fn rig(&self, machine: &Machine) -> Rig {
        machine.rig(&self.catalog, vec![self.file.clone()]).unwrap()
    }

    fn run(&self, machine: &Machine) -> (Progress, Rig) {
        let (mut rig, mut progress) = (self.rig(machine), Progress::default());
        let mut backend = ToyBackend::new(self.model, 1);
        let result = rig.run(&mut backend, &self.workload, &mut progress);
        result.unwrap_or_else(|error| panic!("seed {}: {error}; {machine:?}", machine.seed));
        (progress, rig)
    }

    fn assert_calm(&self, progress: &Progress, machine: &Machine) {
        assert_eq!(progress.n_steps, self.calm.n_steps, "seed {}", machine.seed);
        let differs =
            (0..self.calm.logits_bits.len()).find(|&i| progress.logits_bits[i] != self.calm.logits_bits[i]);
        assert_eq!(differs, None, "seed {}: first logit that differs; {machine:?}", machine.seed);
        assert_eq!(progress, &self.calm, "seed {}", machine.seed);
    }
}

/// What all seeds together must have met, or the test proves nothing.
#[derive(Default)]
struct Met {
    log: FlashLog,
    stats: SchedulerStats,
    n_two_slots: u32,
    n_keep_none: u32,
}

impl Met {
    fn add(&mut self, machine: &Machine, rig: &Rig) {
        let (log, stats) = (rig.flash.log(), rig.scheduler.stats());
        self.log.n_eio += log.n_eio;
        self.log.n_interrupted += log.n_interrupted;
        self.log.n_short += log.n_short;
        self.log.n_stalled += log.n_stalled;
        self.stats.hits += stats.hits;
        self.stats.joins += stats.joins;
        self.stats.again += stats.again;
        self.stats.evictions += stats.evictions;
        self.stats.guesses += stats.guesses;
        self.stats.guesses_used += stats.guesses_used;
        self.stats.guesses_given_up += stats.guesses_given_up;
        self.stats.bytes_wasted += stats.bytes_wasted;
        self.n_two_slots += u32::from(machine.n_slots == 2);
        self.n_keep_none += u32::from(machine.policy == PolicyName::KeepNone);
    }

    fn assert_everything(&self) {
        let Self { log, stats, .. } = self;
        assert!(log.n_eio.min(log.n_interrupted).min(log.n_short).min(log.n_stalled) > 1000, "{log:?}");
        let SchedulerStats { guesses, guesses_used, guesses_given_up, .. } = *stats;
        let counts = [stats.hits, stats.joins, stats.again, stats.evictions, guesses, guesses_used];
        assert!(guesses_given_up > 300, "{stats:?}");
        assert!(counts.iter().all(|&n| n > 1000) && stats.bytes_wasted > 0, "{stats:?}");
        assert!(self.n_two_slots.min(self.n_keep_none) > 5, "{} {}", self.n_two_slots, self.n_keep_none);
    }
}

#[test]
fn flash_changes_time_and_nothing_else() {
    let world = World::new();
    let mut met = Met::default();
    for seed in 1..=200 {
        let machine = Machine::from_seed(seed, world.model.n_experts_total()).faults(Faults::survivable());
        let (progress, rig) = world.run(&machine);
        world.assert_calm(&progress, &machine);
        met.add(&machine, &rig);
    }
    met.assert_everything();
}

#[test]
fn every_number_of_slots_gives_the_same_bits() {
    let world = World::new();
    let n_all = world.model.n_experts_total();
    for n_slots in [0, 2, 3, 4, 5, 8, 13, n_all / 2, n_all, n_all + 9] {
        for guessing in [Guessing::None, Guessing::Random { n_guesses_max: 9 }, Guessing::Oracle] {
            let machine = Machine::from_seed(7, n_all).slots(n_slots).guessing(guessing);
            world.assert_calm(&world.run(&machine).0, &machine);
        }
    }
}

#[test]
fn a_cache_and_an_oracle_save_time() {
    let world = World::new();
    let profile = FlashProfile { depth: 8, ..FlashProfile::calm() };
    let time = |n_slots, guessing| {
        let machine = Machine { profile, ..Machine::calm(2) }.slots(n_slots).guessing(guessing);
        let machine = Machine { compute: forerun_model::Nanos::from_micros(50), ..machine };
        world.run(&machine).1.scheduler.stats().stall
    };
    let (none, few, many) = (time(0, Guessing::None), time(16, Guessing::None), time(64, Guessing::None));
    assert!(none > few && few > many, "stalls of {none}, {few}, {many}");
    assert!(time(16, Guessing::Oracle) < few, "an oracle hides reads behind computing");
}

/// The device fails for good in the middle of a session, comes back, and the session goes on with the same bits.
#[test]
fn a_dead_flash_is_a_typed_error_and_the_session_goes_on_after_it() {
    let world = World::new();
    let (mut n_failed, mut n_failed_late) = (0, 0);
    for seed in 1..=60 {
        let machine = Machine::from_seed(seed, world.model.n_experts_total()).faults(Faults::survivable());
        let (mut rig, mut progress) = (world.rig(&machine), Progress::default());
        let mut backend = ToyBackend::new(world.model, 1);
        for n_steps in [usize::try_from(seed % 20).unwrap(), world.workload.steps.len()] {
            let part = Workload { steps: world.workload.steps[..n_steps].to_vec() };
            rig.flash.set_faults(Faults::dead(300));
            if let Err(error) = rig.run(&mut backend, &part, &mut progress) {
                assert_names_its_expert(&error, &world, seed);
                n_failed += 1;
                n_failed_late += u32::from(progress.n_steps > 0);
            }
            rig.flash.set_faults(Faults::survivable());
            let result = rig.run(&mut backend, &part, &mut progress);
            result.unwrap_or_else(|error| panic!("seed {seed}: the device is back, and still: {error}"));
        }
        world.assert_calm(&progress, &machine);
    }
    assert!(n_failed > 80 && n_failed_late > 30, "{n_failed} failures met, {n_failed_late} in mid-session");
}

fn assert_names_its_expert(error: &RunError, world: &World, seed: u64) {
    let RunError::Scheduler(SchedulerError::Fetch { key, source }) = error else {
        panic!("seed {seed}: another error: {error}");
    };
    let (StoreError::Io { key: read, offset_bytes, .. }
    | StoreError::Truncated { key: read, offset_bytes, .. }) = source
    else {
        panic!("seed {seed}: another source: {source}");
    };
    assert_eq!(key, read, "seed {seed}");
    let ranges = world.catalog.placement(*key, 512).unwrap().ranges;
    let holds = ranges.iter().any(|p| (p.range.offset_bytes..p.range.end_bytes()).contains(offset_bytes));
    assert!(holds, "seed {seed}: byte {offset_bytes} is none of {key}");
    assert!(error.to_string().contains(&key.to_string()), "seed {seed}: {error}");
}

#[test]
fn a_truncated_file_is_a_typed_error_until_it_is_whole_again() {
    let world = World::new();
    for seed in 1..=20 {
        let machine = Machine::from_seed(seed, world.model.n_experts_total());
        let (mut rig, mut progress) = (world.rig(&machine), Progress::default());
        let mut backend = ToyBackend::new(world.model, 1);
        rig.flash.set_faults(Faults::truncated(world.file.len() as u64 / 2));
        let error = rig.run(&mut backend, &world.workload, &mut progress).unwrap_err();
        assert_names_its_expert(&error, &world, seed);
        let RunError::Scheduler(SchedulerError::Fetch { source: StoreError::Truncated { .. }, .. }) = error
        else {
            panic!("seed {seed}: another error: {error}");
        };
        rig.flash.set_faults(Faults::none());
        rig.run(&mut backend, &world.workload, &mut progress).unwrap();
        world.assert_calm(&progress, &machine);
    }
}

/// Without checksums nobody can know, but the toy does: the test of the tests.
#[test]
#[should_panic(expected = "of its slot, is")]
fn the_toy_sees_a_single_flipped_bit() {
    let world = World::new();
    world.run(&Machine::calm(8).faults(Faults::flips(20)));
}
