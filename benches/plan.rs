//! Turns of the scheduler over a store that has every expert at once. Unit of work: turns, so that time per item is
//! what the scheduler itself costs a layer.

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_arena::{Arena, WriteLease};
use forerun_model::{ExpertKey, LayerId, Nanos, PartOffsets, Routing, SystemClock};
use forerun_scheduler::{CachePolicy, LookaheadConfig, NoPredictor, Scheduler, SchedulerConfig};
use forerun_sim::Synthetic;
use forerun_storage::{ExpertStore, Fetched, Filled, Priority, Refused, StoreStats, Withdrawn};

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

/// Fills a slot by not touching it.
#[derive(Default)]
struct AtOnce {
    begun: Vec<(ExpertKey, WriteLease)>,
}

impl ExpertStore for AtOnce {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, _priority: Priority) -> Result<(), Refused> {
        self.begun.push((key, slot));
        Ok(())
    }

    fn start(&mut self) {}

    fn promote(&mut self, _key: ExpertKey) {}

    fn withdraw_guesses(&mut self, _layer: Option<LayerId>, _withdrawn: &mut Vec<Withdrawn>) {}

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Fetched>) {
        done.extend(self.begun.drain(..).map(|(key, lease)| {
            let filled = Filled { lease: lease.seal(), parts: PartOffsets::default(), read_bytes: 1 };
            Fetched { key, result: Ok(filled) }
        }));
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

fn scheduler(n_slots: usize) -> Scheduler {
    let config = SchedulerConfig {
        arena: Arena::new(n_slots, 1).expect("slots of one page fit"),
        store: Box::new(AtOnce::default()),
        predictor: Box::new(NoPredictor),
        lookahead: LookaheadConfig::default(),
        policy: CachePolicy::Lru,
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
    for slots in SLOTS_PER_LAYER {
        let mut scheduler = scheduler(slots * usize::from(N_LAYERS));
        group.bench_function(BenchmarkId::new("slots per layer", slots), |b| {
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
