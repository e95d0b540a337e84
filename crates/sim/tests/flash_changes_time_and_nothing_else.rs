//! Whatever the slots, the flash, the faults and the guesses: the bits that come out are those of a calm machine.

#![cfg(test)]

mod support;

use std::collections::BTreeSet;

use forerun_scheduler::{Gate, PolicyName, SchedulerError, SchedulerStats};
use forerun_sim::{
    Faults, FlashLog, FlashProfile, Guessing, Machine, Progress, Rig, RunError, ToyBackend, Workload,
};
use forerun_storage::StoreError;
use support::World;

/// What all seeds of a test together must have met, or it proves nothing.
#[derive(Debug, Default)]
struct Met {
    n_machines: u64,
    log: FlashLog,
    stats: SchedulerStats,
    predictors: BTreeSet<String>,
    policies: BTreeSet<&'static str>,
    /// Machines with two slots, without a cache, with either gate, without any guess, with bites and without, with a
    /// hint of how long a read takes, with one of how long a guess holds up demands and without.
    settings: [u64; 10],
    /// Machines on which a router wasn't asked that could have been.
    n_dozing: u64,
    /// Tests of what guesses bring that were completed.
    n_trials: u64,
}

impl Met {
    fn add(&mut self, world: &World, machine: &Machine, rig: &Rig) {
        let (log, stats) = (rig.flash.log(), rig.scheduler.stats());
        self.n_machines += 1;
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
        self.stats.guesses_withdrawn += stats.guesses_withdrawn;
        self.stats.bytes_wasted += stats.bytes_wasted;
        let Machine { n_slots, policy, guessing, lookahead, bite_bytes, .. } = *machine;
        if stats.guesses_used > 0 || guessing == Guessing::None {
            let depth = if guessing == (Guessing::RouterAhead { depth: 2 }) { " 2" } else { "" };
            self.predictors.insert(format!("{}{depth}", guessing.predictor(0).name()));
        }
        self.policies.insert(rig.scheduler.policy());
        let settings = [
            n_slots == 2,
            policy == PolicyName::KeepNone,
            lookahead.gate == Gate::Open,
            lookahead.gate == Gate::Paying,
            lookahead.width_max == 0,
            bite_bytes.is_some(),
            bite_bytes.is_none(),
            lookahead.read.is_some(),
            lookahead.hold.is_some(),
            lookahead.hold.is_none(),
        ];
        self.settings.iter_mut().zip(settings).for_each(|(n, is_met)| *n += u64::from(is_met));
        self.n_dozing += u64::from((1..asked_always(world)).contains(&rig.n_asked()));
        self.n_trials += rig.scheduler.stats().trials;
    }

    fn assert_everything(&self) {
        let Self { n_machines, log, stats, .. } = self;
        let n_min = 5 * n_machines;
        assert!(log.n_eio.min(log.n_interrupted).min(log.n_short).min(log.n_stalled) > n_min, "{log:?}");
        let counts = [stats.hits, stats.joins, stats.again, stats.evictions];
        assert!(counts.iter().all(|&n| n > n_min) && stats.bytes_wasted > 0, "{stats:?}");
        assert!(stats.guesses.min(stats.guesses_used) > n_min, "{stats:?}");
        assert!(stats.guesses_given_up.min(stats.guesses_withdrawn) > *n_machines, "{stats:?}");
        let predictors = ["blend", "none", "oracle", "random", "recent", "router-ahead", "router-ahead 2"];
        assert!(self.predictors.iter().eq(predictors), "{:?}", self.predictors);
        assert!(self.policies.iter().eq(&["alike", "lfu", "lru", "none"]), "{:?}", self.policies);
        assert!(self.settings.iter().all(|&n| n > 1), "{:?}", self.settings);
    }
}

/// Times that a predictor that looks one layer ahead is told scores when it always listens.
fn asked_always(world: &World) -> u64 {
    let is_guessed = |tokens: usize| tokens <= forerun_scheduler::ROWS_GUESSED_MAX;
    let n_passes = world.workload.steps.iter().filter(|step| is_guessed(step.tokens.len())).count();
    // Before the first layer, and twice in each but the last.
    n_passes as u64 * (2 * u64::from(world.model.n_layers) - 1)
}

fn check(world: &World, seeds: impl Iterator<Item = u64>) -> Met {
    let mut met = Met::default();
    for seed in seeds {
        let machine = Machine::from_seed(seed, world.model.n_experts_total()).faults(Faults::survivable());
        let (progress, rig) = world.run(&machine);
        world.assert_calm(&progress, &machine);
        met.add(world, &machine, &rig);
    }
    met
}

/// 440 machines; 60 that live longer follow.
#[test]
fn flash_changes_time_and_nothing_else() {
    check(&World::new(), 1..=110).assert_everything();
}

#[test]
fn flash_changes_time_and_nothing_else_2() {
    check(&World::new(), 111..=220).assert_everything();
}

#[test]
fn flash_changes_time_and_nothing_else_3() {
    check(&World::new(), 221..=330).assert_everything();
}

#[test]
fn flash_changes_time_and_nothing_else_4() {
    check(&World::new(), 331..=440).assert_everything();
}

/// Long enough to learn where asking routers takes more time than it saves, and not so long that guesses are tested.
#[test]
fn nor_do_machines_that_learn_what_asking_is_worth() {
    let met = check(&World::of_steps(56), 441..=480);
    assert!(met.n_dozing > 5 && met.n_trials == 0, "{met:?}");
}

/// Long enough for several tests of what guesses bring.
#[test]
fn nor_do_machines_that_test_what_guesses_bring() {
    let met = check(&World::of_steps(200), 481..=500);
    assert!(met.n_trials > 5, "{met:?}");
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
