//! Case 94: a cache smaller than what a token wants must not cost more than no cache.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use forerun_model::{Clock, Nanos};
use forerun_scheduler::PolicyName;
use forerun_sim::{FlashProfile, Machine, Progress, ToyBackend, ToyModel, Workload};

/// Virtual time of a run, and its hit rate.
fn run(machine: &Machine, workload: &Workload) -> (Nanos, f64) {
    let model = ToyModel::small();
    let catalog = Arc::new(model.catalog().unwrap());
    let mut rig = machine.rig(&catalog, vec![model.file()]).unwrap();
    let mut backend = ToyBackend::new(model, 1);
    rig.run(&mut backend, workload, &mut Progress::default()).unwrap();
    (rig.clock.now(), rig.scheduler.stats().hit_rate())
}

#[test]
fn a_cache_of_any_size_is_no_slower_than_none() {
    let model = ToyModel::small();
    let working_set = usize::from(model.n_layers) * model.top_k;
    let workload = Workload::random(11, model.n_vocab, 200);
    for permille in [250, 500, 900, 1100, 2000] {
        let n_slots = (working_set * permille).div_ceil(1000);
        for depth in [1, 4] {
            let profile = FlashProfile { depth, bytes_per_second: 50_000_000, ..FlashProfile::calm() };
            let with = Machine { profile, compute: Nanos::from_micros(60), ..Machine::calm(n_slots) };
            let without = Machine { policy: PolicyName::KeepNone, ..with };
            let ((cached, hits), (bare, no_hits)) = (run(&with, &workload), run(&without, &workload));
            assert!(no_hits == 0.0);
            let limit = bare + Nanos(bare.0 / 100);
            assert!(
                cached <= limit,
                "{n_slots} slots, {hits:.2} hits: {cached} with a cache, {bare} without"
            );
            assert!(permille < 2000 || hits > 0.2, "a cache of two working sets has {hits:.2} hits");
        }
    }
}
