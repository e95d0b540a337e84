//! A store that finishes in any order and fails when told, and a caller that checks every byte it is handed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_arena::{Arena, WriteLease};
use forerun_model::{Clock, ExpertId, ExpertKey, LayerId, Nanos, PartOffsets, Routing, Stage};
use forerun_scheduler::{
    Guess, GuessInput, LookaheadConfig, PolicyName, Predictor, Scheduler, SchedulerConfig, SchedulerError,
    Turn, View,
};
use forerun_storage::{
    ExpertStore, Fetched, Filled, Priority, Refused, RefusedReason, StoreError, StoreStats, Withdrawn,
};

/// Bytes of every record.
pub(crate) const RECORD_BYTES: u64 = 64;
/// What was read of a guess that is given up.
pub(crate) const BITE_BYTES: u64 = 16;

/// Chance from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n.max(1) as u64).unwrap()
    }
}

/// The switch of a [`ChanceStore`] that a test keeps: so many of 1,000 reads fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailPermille(Arc<AtomicU64>);

impl FailPermille {
    pub(crate) fn set(&self, permille: u64) {
        self.0.store(permille, Ordering::Relaxed);
    }
}

pub(crate) struct ChanceStore {
    pub(crate) chance: Chance,
    pub(crate) depth: usize,
    pub(crate) n_experts: usize,
    pub(crate) fail: FailPermille,
    pub(crate) reads: Vec<(ExpertKey, WriteLease, Priority)>,
    /// Those of `reads` that are given up.
    pub(crate) given_up: Vec<ExpertKey>,
    /// Finishes nothing at all, which no store may do.
    pub(crate) silent: bool,
    /// Finishes nothing before somebody sleeps.
    pub(crate) never_early: bool,
    pub(crate) stats: StoreStats,
}

impl ChanceStore {
    pub(crate) fn new(seed: u64, depth: usize, n_experts: usize) -> Self {
        Self {
            chance: Chance(seed),
            depth,
            n_experts,
            fail: FailPermille::default(),
            reads: Vec::new(),
            given_up: Vec::new(),
            silent: false,
            never_early: false,
            stats: StoreStats::default(),
        }
    }
}

/// The byte that fills the record of `key`.
pub(crate) fn pattern(key: ExpertKey) -> u8 {
    u8::try_from((key.layer.idx() * 31 + key.expert.idx() * 7 + 1) % 251).unwrap()
}

impl ExpertStore for ChanceStore {
    fn begin(&mut self, key: ExpertKey, mut lease: WriteLease, priority: Priority) -> Result<(), Refused> {
        if key.expert.idx() >= self.n_experts {
            let error = StoreError::UnknownExpert { key, n_layers: 8, n_experts: self.n_experts };
            return Err(Refused { lease, reason: RefusedReason::Never(error) });
        }
        if self.reads.len() == self.depth {
            return Err(Refused { lease, reason: RefusedReason::QueueFull });
        }
        lease.bytes_mut().fill(0xff);
        self.reads.push((key, lease, priority));
        Ok(())
    }

    fn start(&mut self) {}

    fn promote(&mut self, key: ExpertKey) {
        let given_up = self.given_up.contains(&key);
        for read in self.reads.iter_mut().filter(|read| read.0 == key && !given_up) {
            read.2 = Priority::Demand;
        }
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        // Some have begun, by chance, and are read on or given up.
        for i in (0..self.reads.len()).rev() {
            let (key, _, priority) = &self.reads[i];
            let leaves = *priority == Priority::Guess && layer.is_none_or(|layer| key.layer == layer);
            if !leaves || self.given_up.contains(key) {
                continue;
            }
            match self.chance.below(5) {
                0 | 1 => {
                    let (key, lease, _) = self.reads.swap_remove(i);
                    let read_bytes = BITE_BYTES * self.chance.below(2) as u64;
                    withdrawn.push(Withdrawn { key, lease, read_bytes });
                }
                2 => self.given_up.push(*key),
                _ => {}
            }
        }
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        let n_min = usize::from(until == Nanos::MAX);
        if self.never_early && n_min == 0 {
            return;
        }
        let n = (n_min + self.chance.below(3)).min(self.reads.len());
        for _ in 0..n {
            if self.silent {
                return;
            }
            let i = self.chance.below(self.reads.len());
            let (key, mut lease, _) = self.reads.swap_remove(i);
            if let Some(at) = self.given_up.iter().position(|&given_up| given_up == key) {
                self.given_up.swap_remove(at);
                let result = Err(StoreError::GivenUp { key, read_bytes: BITE_BYTES });
                done.push(Fetched { key, result });
                continue;
            }
            let fails = (self.chance.below(1000) as u64) < self.fail.0.load(Ordering::Relaxed);
            let result = if fails {
                drop(lease);
                let source = std::io::Error::other("the disk is gone");
                Err(StoreError::Io { key, path: "toy".into(), offset_bytes: 0, source })
            } else {
                lease.bytes_mut().fill(pattern(key));
                self.stats.n_reads += 1;
                self.stats.read_bytes += RECORD_BYTES;
                let parts = PartOffsets::default();
                Ok(Filled { lease: lease.seal(), parts, read_bytes: RECORD_BYTES })
            };
            done.push(Fetched { key, result });
        }
    }

    fn stats(&self) -> StoreStats {
        self.stats
    }
}

/// A clock that moves by one with each look.
#[derive(Debug, Default)]
pub(crate) struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        Nanos(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Guesses anything: right, wrong, doubled, or no expert at all.
pub(crate) struct Wild(pub(crate) Chance, pub(crate) usize);

impl Predictor for Wild {
    fn name(&self) -> &'static str {
        "wild"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        for _ in 0..self.0.below(self.1 + 1) {
            let expert = ExpertId(u16::try_from(self.0.below(input.n_experts + 1)).unwrap());
            guesses.push(Guess { key: ExpertKey { layer: input.layer, expert }, probability: 0.5 });
        }
    }
}

/// Guesses the experts whose probability isn't zero.
pub(crate) struct Told;

impl Predictor for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn listens(&self, view: View) -> bool {
        view.ahead == 1
    }

    fn wants_scores(&self) -> bool {
        true
    }

    fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        for (expert, &probability) in (0..).zip(input.probabilities) {
            if probability > 0.0 {
                guesses.push(Guess {
                    key: ExpertKey { layer: input.layer, expert: ExpertId(expert) },
                    probability,
                });
            }
        }
    }
}

pub(crate) fn scheduler(
    n_slots: usize,
    store: ChanceStore,
    predictor: Box<dyn Predictor>,
    policy: PolicyName,
) -> Scheduler {
    gated(n_slots, store, predictor, policy, LookaheadConfig::open())
}

pub(crate) fn gated(
    n_slots: usize,
    store: ChanceStore,
    predictor: Box<dyn Predictor>,
    policy: PolicyName,
    lookahead: LookaheadConfig,
) -> Scheduler {
    let arena = Arena::new(n_slots, 64).unwrap();
    let clock = Arc::new(Ticks::default());
    Scheduler::new(SchedulerConfig {
        arena,
        store: Box::new(store),
        predictor,
        policy: policy.into(),
        lookahead,
        clock,
    })
    .unwrap()
}

/// What the router of `layer` says, asked after the mixer of the layer before.
pub(crate) fn early(layer: LayerId, n_experts: usize, probabilities: &[f32]) -> GuessInput<'_> {
    let view = View { stage: Stage::Early, ahead: 1 };
    GuessInput { view, layer, n_experts, probabilities }
}

/// A grouped routing: one row per slice.
pub(crate) fn routing(rows: &[&[u16]]) -> Routing {
    let mut routing = Routing::default();
    routing.reset(rows.first().map_or(0, |row| row.len()));
    for row in rows {
        let row: Vec<_> = row.iter().map(|&expert| (ExpertId(expert), 0.5)).collect();
        routing.push_row(&row);
    }
    routing.group();
    routing
}

/// A routing of `n_rows` rows of `top_k` distinct experts.
pub(crate) fn random_routing(chance: &mut Chance, n_rows: usize, top_k: usize, n_experts: usize) -> Routing {
    let mut routing = Routing::default();
    routing.reset(top_k);
    for _ in 0..n_rows {
        let mut experts: Vec<u16> = (0..u16::try_from(n_experts).unwrap()).collect();
        let row: Vec<_> =
            (0..top_k).map(|_| (ExpertId(experts.swap_remove(chance.below(experts.len()))), 0.5)).collect();
        routing.push_row(&row);
    }
    routing.group();
    routing
}

/// Pulls until the turn ends, checks every byte, and returns the experts in the order of arrival.
pub(crate) fn pull_all(mut turn: Turn<'_>) -> Result<Vec<ExpertKey>, SchedulerError> {
    let mut keys = Vec::new();
    while let Some(ready) = turn.next_ready()? {
        let want = pattern(ready.key);
        assert!(ready.lease.bytes()[..64].iter().all(|&b| b == want), "{} has other bytes", ready.key);
        keys.push(ready.key);
    }
    Ok(keys)
}

/// One layer from open to end.
pub(crate) fn run_layer(
    scheduler: &mut Scheduler,
    layer: u16,
    routing: &Routing,
) -> Result<Vec<ExpertKey>, SchedulerError> {
    pull_all(scheduler.open_layer(LayerId(layer), routing)?)
}
