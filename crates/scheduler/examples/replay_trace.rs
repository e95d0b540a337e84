//! Replays a routing trace through a predictor of one's own, and says what it would have saved.
//!
//! `cargo run -p forerun-scheduler --example replay_trace -- fixtures/traces/pico-chat 96`
//!
//! The first argument is a trace without its ending (`.json` and `.bin`, see fixtures/README.md), the second the
//! number of slots. Without arguments a small synthetic trace is replayed. Only the scheduler and the two traits at
//! its sides are at work: the store below has no bytes, and the predictor is twenty lines.

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::{env, fs};

use forerun_scheduler::arena::{Arena, WriteLease};
use forerun_scheduler::model::{
    ExpertId, ExpertKey, LayerId, Nanos, PartOffsets, Routing, Stage, SystemClock,
};
use forerun_scheduler::storage::{ExpertStore, Fetched, Filled, Priority, Refused, StoreStats, Withdrawn};
use forerun_scheduler::{
    Guess, GuessInput, LookaheadConfig, NoPredictor, PolicyName, Predictor, Scheduler, SchedulerConfig,
    SchedulerStats, View,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Guesses the experts that a layer wanted most often so far, as many as a token uses.
struct Popular {
    top_k: usize,
    counts: HashMap<ExpertKey, u32>,
}

impl Predictor for Popular {
    fn name(&self) -> &'static str {
        "popular"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, layer: LayerId, routing: &Routing) {
        for expert in routing.experts() {
            *self.counts.entry(ExpertKey { layer, expert }).or_default() += 1;
        }
    }

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        let count = |expert: &ExpertId| {
            self.counts.get(&ExpertKey { layer: input.layer, expert: *expert }).copied().unwrap_or(0)
        };
        let mut experts: Vec<_> = (0..).map(ExpertId).take(input.n_experts).collect();
        experts.sort_by_key(|expert| Reverse(count(expert)));
        let best = experts.into_iter().take(self.top_k);
        guesses.extend(
            best.map(|expert| Guess { key: ExpertKey { layer: input.layer, expert }, probability: 0.3 }),
        );
    }
}

/// Has every expert at once: the replay counts reads, it makes none.
#[derive(Default)]
struct Counting {
    begun: Vec<(ExpertKey, WriteLease)>,
    stats: StoreStats,
}

const RECORD_BYTES: u64 = 110_592;

impl ExpertStore for Counting {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, _priority: Priority) -> Result<(), Refused> {
        self.begun.push((key, slot));
        Ok(())
    }

    fn start(&mut self) {}

    fn promote(&mut self, _key: ExpertKey) {}

    fn withdraw_guesses(&mut self, _layer: Option<LayerId>, _withdrawn: &mut Vec<Withdrawn>) {}

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Fetched>) {
        for (key, lease) in self.begun.drain(..) {
            self.stats.n_reads += 1;
            self.stats.read_bytes += RECORD_BYTES;
            let parts = PartOffsets::default();
            done.push(Fetched {
                key,
                result: Ok(Filled { lease: lease.seal(), parts, read_bytes: RECORD_BYTES }),
            });
        }
    }

    fn stats(&self) -> StoreStats {
        self.stats
    }
}

/// The experts of each token and layer, best first.
struct Trace {
    n_tokens: usize,
    n_layers: u16,
    n_experts: usize,
    top_k: usize,
    ids: Vec<u8>,
}

impl Trace {
    fn load(path: &str) -> Outcome<Self> {
        let header: serde_json::Value = serde_json::from_slice(&fs::read(format!("{path}.json"))?)?;
        let number =
            |key: &str| header[key].as_u64().ok_or_else(|| format!("the header has no number `{key}`"));
        let arrays = header["arrays"].as_array().ok_or("the header has no arrays")?;
        let array =
            arrays.iter().find(|array| array["name"] == "ids").ok_or("the trace has no array `ids`")?;
        let offset = usize::try_from(array["offset"].as_u64().ok_or("the array `ids` has no offset")?)?;
        let (n_tokens, top_k) = (usize::try_from(number("tokens")?)?, usize::try_from(number("top_k")?)?);
        let n_layers = u16::try_from(number("layers")?)?;
        let len = n_tokens.saturating_mul(usize::from(n_layers)).saturating_mul(top_k);
        let bytes = fs::read(format!("{path}.bin"))?;
        let ids = bytes.get(offset..offset.saturating_add(len)).ok_or("the array `ids` is cut off")?.to_vec();
        Ok(Self { n_tokens, n_layers, n_experts: usize::try_from(number("experts")?)?, top_k, ids })
    }

    /// Each token moves one of four experts of each layer on.
    fn synthetic() -> Self {
        let (n_tokens, n_layers, top_k) = (200usize, 8u16, 4usize);
        let at = |token: usize, layer: usize, rank: usize| {
            let moved = (token + 3 - rank) / 4;
            u8::try_from((moved * 5 + layer * 3 + rank * 8) % 8 + rank * 8).unwrap_or(0)
        };
        let layers = |token| (0..usize::from(n_layers)).map(move |layer| (token, layer));
        let ids = (0..n_tokens).flat_map(layers).flat_map(|(t, l)| (0..top_k).map(move |r| at(t, l, r)));
        Self { n_tokens, n_layers, n_experts: 32, top_k, ids: ids.collect() }
    }

    fn routing(&self, token: usize, layer: u16, routing: &mut Routing) {
        let at = (token * usize::from(self.n_layers) + usize::from(layer)) * self.top_k;
        let row = self.ids[at..at + self.top_k].iter().map(|&id| (ExpertId(id.into()), 1.0));
        routing.reset(self.top_k);
        routing.push_row(&row.collect::<Vec<_>>());
        routing.group();
    }
}

fn replay(trace: &Trace, n_slots: usize, predictor: Box<dyn Predictor>) -> Outcome<SchedulerStats> {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        arena: Arena::new(n_slots, 1)?,
        store: Box::new(Counting::default()),
        predictor,
        policy: PolicyName::Lru.into(),
        lookahead: LookaheadConfig::open(),
        clock: Arc::new(SystemClock::new()),
    })?;
    let mut routing = Routing::default();
    for token in 0..trace.n_tokens {
        for layer in 0..trace.n_layers {
            trace.routing(token, layer, &mut routing);
            let mut turn = scheduler.open_layer(LayerId(layer), &routing)?;
            let next = LayerId((layer + 1) % trace.n_layers);
            turn.offer(GuessInput {
                view: View { stage: Stage::Early, ahead: 1 },
                layer: next,
                n_experts: trace.n_experts,
                probabilities: &[],
            });
            while turn.next_ready()?.is_some() {}
        }
    }
    Ok(scheduler.stats())
}

fn main() -> Outcome<()> {
    let mut args = env::args().skip(1);
    let trace = args.next().map_or_else(|| Ok(Trace::synthetic()), |path| Trace::load(&path))?;
    let n_slots = args.next().map_or(Ok(96), |text| text.parse())?;
    println!("{} tokens, {} layers, {n_slots} slots", trace.n_tokens, trace.n_layers);
    let predictors: [(&str, Box<dyn Predictor>); 2] = [
        ("none", Box::new(NoPredictor)),
        ("popular", Box::new(Popular { top_k: trace.top_k, counts: HashMap::new() })),
    ];
    for (name, predictor) in predictors {
        let stats = replay(&trace, n_slots, predictor)?;
        println!(
            "{name:>10}: {:5.1}% hits, {} missed, {} guessed ({} used), {} MiB demanded, {} MiB guessed in vain",
            100.0 * stats.hit_rate(),
            stats.misses,
            stats.guesses,
            stats.guesses_used,
            stats.bytes_demand >> 20,
            stats.bytes_wasted >> 20,
        );
    }
    Ok(())
}
