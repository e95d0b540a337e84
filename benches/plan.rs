//! Turns of the scheduler over a store that has every expert at once. Unit of work: turns, so that time per item is
//! what the scheduler itself costs a layer.

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_arena::Arena;
use forerun_model::{LayerId, Routing, SystemClock};
use forerun_scheduler::{LookaheadConfig, NoPredictor, PolicyName, Scheduler, SchedulerConfig};
use forerun_sim::Synthetic;
use forerun_sim::hits::AtOnce;

/// The shape of a 35B model.
const N_LAYERS: u16 = 40;
const N_EXPERTS: u16 = 256;
const TOP_K: usize = 8;
/// Chance that a token keeps an expert of the token before: 17% in a trained model with this many experts.
const REUSE_PERMILLE: u32 = 170;
/// Slots per layer: few, about a tenth of the experts, and all.
const SLOTS_PER_LAYER: [usize; 3] = [8, 25, 256];
/// Tokens that are routed before measuring and then over and over.
const N_TOKENS: usize = 16;

fn scheduler(n_slots: usize, policy: PolicyName) -> Scheduler {
    let config = SchedulerConfig {
        arena: Arena::new(n_slots, 1).expect("slots of one page fit"),
        store: Box::new(AtOnce::default()),
        predictor: Box::new(NoPredictor),
        lookahead: LookaheadConfig::default(),
        policy: policy.into(),
        clock: Arc::new(SystemClock::new()),
    };
    Scheduler::new(config).expect("there are enough slots")
}

/// The routing of each layer of each token.
fn routings() -> Vec<(LayerId, Routing)> {
    let mut synthetic = Synthetic::new(1, N_EXPERTS, TOP_K, REUSE_PERMILLE);
    let layers = (0..N_TOKENS).flat_map(|_| (0..N_LAYERS).map(LayerId));
    let routing = |layer| {
        let mut routing = Routing::default();
        synthetic.next(layer, 1, &mut routing);
        (layer, routing)
    };
    layers.map(routing).collect()
}

fn plan(c: &mut Criterion) {
    let routings = routings();
    let mut group = c.benchmark_group("plan");
    group.throughput(Throughput::Elements(routings.len() as u64));
    let policies = [PolicyName::Lru, PolicyName::default()];
    for (policy, slots) in policies.iter().flat_map(|policy| SLOTS_PER_LAYER.map(|slots| (policy, slots))) {
        let mut scheduler = scheduler(slots * usize::from(N_LAYERS), *policy);
        let name = format!("{}, slots per layer", scheduler.policy());
        group.bench_function(BenchmarkId::new(name, slots), |b| {
            b.iter(|| {
                for (layer, routing) in &routings {
                    let mut turn = scheduler.open_layer(*layer, routing).expect("every expert is there");
                    while turn.next_ready().expect("every expert is there").is_some() {}
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
