//! Real routings through the real scheduler: what a cache of some size makes of them.

#![cfg(test)]

use std::path::PathBuf;
use std::sync::Arc;

use forerun_model::{Clock as _, LayerId, Nanos, Routing};
use forerun_scheduler::PolicyName;
use forerun_sim::{FlashProfile, Guessing, Machine, Synthetic, ToyModel, Trace};

/// The experts are toys, but as many as the trace's model has.
fn pico() -> (Trace, ToyModel) {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", "traces"].iter().collect();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let trace = Trace::parse(&read("pico-chat.json"), &read("pico-chat.bin")).unwrap();
    let (n_layers, n_experts) =
        (u16::try_from(trace.n_layers).unwrap(), u16::try_from(trace.n_experts).unwrap());
    let model = ToyModel { n_layers, n_experts, top_k: trace.top_k, ..ToyModel::small() };
    (trace, model)
}

#[test]
fn more_slots_mean_more_hits_and_fewer_bytes() {
    let (trace, model) = pico();
    let catalog = Arc::new(model.catalog().unwrap());
    let n_per_token = trace.n_layers * trace.top_k;
    let mut last: Option<(f64, u64)> = None;
    for n_slots in [0, n_per_token, 2 * n_per_token, 4 * n_per_token, model.n_experts_total()] {
        let machine = Machine::from_seed(1, model.n_experts_total()).slots(n_slots).guessing(Guessing::None);
        let mut scheduler = machine.rig(&catalog, vec![model.file()]).unwrap().scheduler;
        let mut routing = Routing::default();
        for token in 0..trace.n_tokens {
            for layer in (0..model.n_layers).map(LayerId) {
                trace.routing(token, layer, &mut routing);
                let mut turn = scheduler.open_layer(layer, &routing).unwrap();
                while turn.next_ready().unwrap().is_some() {}
            }
        }
        let stats = scheduler.stats();
        let wanted = trace.n_tokens * n_per_token;
        assert_eq!(stats.wanted(), wanted as u64, "a token wants top-k experts of each layer");
        if let Some((hit_rate, bytes)) = last {
            assert!(
                stats.hit_rate() >= hit_rate && stats.bytes_demand <= bytes,
                "{n_slots} slots: {stats:?}"
            );
        }
        last = Some((stats.hit_rate(), stats.bytes_demand));
    }
    assert!(last.is_some_and(|(hit_rate, _)| hit_rate > 0.99), "all experts fit: {last:?}");
}

/// Virtual time of `n_tokens` tokens whose routings `route` makes, on a machine whose experts compute for a while.
fn elapsed(
    (model, policy, n_slots): (&ToyModel, PolicyName, usize),
    n_tokens: usize,
    mut route: impl FnMut(usize, LayerId, &mut Routing),
) -> Nanos {
    let profile = FlashProfile { depth: 8, ..FlashProfile::calm() };
    let machine = Machine { profile, policy, compute: Nanos::from_micros(20), ..Machine::calm(n_slots) };
    let mut rig = machine.rig(&Arc::new(model.catalog().unwrap()), vec![model.file()]).unwrap();
    let mut routing = Routing::default();
    for token in 0..n_tokens {
        for layer in (0..model.n_layers).map(LayerId) {
            route(token, layer, &mut routing);
            let mut turn = rig.scheduler.open_layer(layer, &routing).unwrap();
            while let Some(_computed_with) = turn.next_ready().unwrap() {
                rig.clock.advance(machine.compute);
            }
        }
    }
    rig.clock.now()
}

/// Case 94: whatever the budget, a cache costs no time that no cache would save.
///
/// A hit takes no read, and a read that isn't needed moves the others forward; on a flash without jitter nothing can
/// be later, so the bound is exact.
#[test]
fn a_cache_is_never_slower_than_no_cache() {
    let (trace, model) = pico();
    let n_per_token = trace.n_layers * trace.top_k;
    for percent in [25, 50, 90, 110, 200] {
        let n_slots = n_per_token * percent / 100;
        for reuse_permille in [None, Some(0), Some(500), Some(1000)] {
            let [cached, uncached] = [PolicyName::Lru, PolicyName::KeepNone].map(|policy| {
                let machine = (&model, policy, n_slots);
                let Some(reuse_permille) = reuse_permille else {
                    return elapsed(machine, 400, |token, layer, routing| {
                        trace.routing(token, layer, routing)
                    });
                };
                let mut made_up = Synthetic::new(1, model.n_experts, model.top_k, reuse_permille);
                elapsed(machine, 400, |_, layer, routing| made_up.next(layer, 1, routing))
            });
            let what =
                format!("{percent} % of a working set, reuse {reuse_permille:?}: {cached}, {uncached}");
            assert!(cached <= uncached, "slower with a cache: {what}");
            // The trap of a cache that drops each expert just before it is wanted ends at one working set.
            let pays = percent > 100 && reuse_permille != Some(0);
            assert!(!pays || cached.0 < uncached.0 * 95 / 100, "no faster with a cache: {what}");
        }
    }
}
