//! Real routings through the real scheduler: what a cache of some size makes of them.

#![cfg(test)]

use std::path::PathBuf;
use std::sync::Arc;

use forerun_model::{LayerId, Routing};
use forerun_sim::{Guessing, Machine, ToyModel, Trace};

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
