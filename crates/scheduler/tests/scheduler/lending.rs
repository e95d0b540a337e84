//! Experts that the store lends: handed out at once, beside slots.

use std::sync::Arc;

use bytes::Bytes;
use forerun_arena::{Arena, ReadLease, WriteLease};
use forerun_model::{ExpertId, ExpertKey, LayerId, Nanos, PartOffsets};
use forerun_scheduler::{CachePolicy, LookaheadConfig, Scheduler, SchedulerConfig, SchedulerError};
use forerun_storage::{ExpertStore, Fetched, Lent, Priority, Refused, StoreError, StoreStats, Withdrawn};

use crate::support::*;

/// Lends experts below `n_lent` of every layer, and reads the others.
struct Lender {
    inner: ChanceStore,
    n_lent: u16,
    /// Whether what is lent turns out to have changed.
    changes: bool,
}

impl Lender {
    fn lends(&self, key: ExpertKey) -> bool {
        key.expert < ExpertId(self.n_lent)
    }
}

#[deny(clippy::missing_trait_methods, reason = "lending is what this store is for")]
impl ExpertStore for Lender {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused> {
        assert!(!self.lends(key), "{key} is read although it can be lent");
        self.inner.begin(key, slot, priority)
    }

    fn start(&mut self) {
        self.inner.start();
    }

    fn promote(&mut self, key: ExpertKey) {
        self.inner.promote(key);
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        self.inner.withdraw_guesses(layer, withdrawn);
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        self.inner.wait(until, done);
    }

    fn lend(&mut self, key: ExpertKey) -> Option<Lent> {
        let bytes = Bytes::from(vec![pattern(key); 64]);
        self.lends(key).then(|| Lent { lease: ReadLease::from(bytes), parts: PartOffsets::default() })
    }

    fn can_lend(&self, key: ExpertKey) -> bool {
        self.lends(key)
    }

    fn check_lent(&mut self) -> Result<(), StoreError> {
        if !self.changes {
            return Ok(());
        }
        self.n_lent = 0;
        Err(StoreError::Changed { key: ExpertKey::new(0, 1), path: "model.gguf".into() })
    }

    fn stop_lending(&mut self) {
        self.n_lent = 0;
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}

fn lending(n_slots: usize, n_lent: u16, policy: CachePolicy) -> Scheduler {
    over(Lender { inner: ChanceStore::new(7, 4, 32), n_lent, changes: false }, n_slots, policy)
}

fn over(store: Lender, n_slots: usize, policy: CachePolicy) -> Scheduler {
    let config = SchedulerConfig {
        arena: Arena::new(n_slots, 64).unwrap(),
        store: Box::new(store),
        predictor: Box::new(Told),
        policy,
        lookahead: LookaheadConfig::open(),
        clock: Arc::new(Ticks::default()),
    };
    Scheduler::new(config).unwrap()
}

#[test]
fn lent_experts_are_hits_that_take_no_slot_and_no_read() {
    let mut scheduler = lending(2, 32, CachePolicy::Lru);
    for layer in [0, 1, 0] {
        let experts: Vec<u16> = (0..32).collect();
        let keys = run_layer(&mut scheduler, layer, &routing(&[&experts])).unwrap();
        assert_eq!(keys.len(), 32);
    }
    let stats = scheduler.stats();
    assert_eq!((stats.hits, stats.lent, stats.misses, stats.fetches), (96, 96, 0, 0), "{stats:?}");
    assert_eq!((stats.stall, scheduler.residents().count()), (Nanos(0), 0));
    assert_eq!(scheduler.store_stats(), StoreStats::default());
}

#[test]
fn lent_experts_come_first_and_the_others_through_slots() {
    for policy in [CachePolicy::Lru, CachePolicy::KeepNone] {
        let mut scheduler = lending(2, 4, policy);
        let keys = run_layer(&mut scheduler, 3, &routing(&[&[1, 9, 3], &[3, 5, 8]])).unwrap();
        let mut experts: Vec<u16> = keys.iter().map(|key| key.expert.0).collect();
        assert_eq!(experts[..2], [1, 3]);
        experts[2..].sort_unstable();
        assert_eq!(experts[2..], [5, 8, 9]);
        let stats = scheduler.stats();
        assert_eq!((stats.hits, stats.lent, stats.misses, stats.fetches), (2, 2, 3, 3), "{stats:?}");
    }
}

#[test]
fn what_can_be_lent_is_never_guessed() {
    let mut scheduler = lending(4, 2, CachePolicy::Lru);
    scheduler.offer(early(LayerId(0), 4, &[0.9, 0.8, 0.7, 0.0]));
    assert_eq!(scheduler.stats().guesses, 1, "the one that isn't lent");
    run_layer(&mut scheduler, 0, &routing(&[&[0, 1, 2]])).unwrap();
    let stats = scheduler.stats();
    assert_eq!((stats.lent, stats.guesses_used, stats.fetches), (2, 1, 0), "{stats:?}");
}

#[test]
fn a_pass_over_experts_that_changed_fails_and_the_next_one_reads() {
    let store = Lender { inner: ChanceStore::new(7, 4, 32), n_lent: 32, changes: true };
    let mut scheduler = over(store, 4, CachePolicy::Lru);
    run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap();
    let error = scheduler.end_pass().unwrap_err();
    assert!(matches!(error, SchedulerError::Lent { source: StoreError::Changed { .. } }), "{error}");
    run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap();
    assert_eq!((scheduler.stats().lent, scheduler.stats().fetches), (2, 2));
}

#[test]
fn an_abandoned_turn_forgets_what_was_lent() {
    let mut scheduler = lending(2, 32, CachePolicy::Lru);
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[1, 2, 3]])).unwrap();
    let kept = turn.next_ready().unwrap().unwrap();
    drop(turn);
    let keys = run_layer(&mut scheduler, 0, &routing(&[&[4]])).unwrap();
    assert_eq!(keys, [ExpertKey::new(0, 4)]);
    assert_eq!(kept.lease.bytes()[0], pattern(kept.key), "a lease keeps its bytes");
}

#[test]
fn after_lending_has_ended_slots_are_used() {
    let mut scheduler = lending(6, 32, CachePolicy::Lru);
    run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap();
    scheduler.stop_lending();
    scheduler.shrink(3).unwrap();
    let keys = run_layer(&mut scheduler, 0, &routing(&[&[1, 2, 3, 4, 5]])).unwrap();
    assert_eq!(keys.len(), 5);
    let stats = scheduler.stats();
    assert_eq!((stats.lent, stats.misses, stats.again), (2, 5, 0), "{stats:?}");
    assert!(scheduler.residents().count() <= 3);
}
