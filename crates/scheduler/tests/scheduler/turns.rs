//! What a turn promises, one sentence a test.

use std::sync::Arc;

use crate::support::*;
use forerun_arena::{Arena, ReadLease, WriteLease};
use forerun_model::{Clock, ExpertKey, LayerId, Nanos};
use forerun_scheduler::{
    CachePolicy, LookaheadConfig, NoPredictor, Scheduler, SchedulerConfig, SchedulerError, SchedulerStats,
};
use forerun_storage::{ExpertStore, Fetched, Priority, Refused, StoreError, StoreStats, Withdrawn};

fn plain(n_slots: usize, policy: CachePolicy) -> Scheduler {
    scheduler(n_slots, ChanceStore::new(1, 4, 32), Box::new(NoPredictor), policy)
}

fn key(layer: u16, expert: u16) -> ExpertKey {
    ExpertKey::new(layer, expert)
}

fn sorted(mut keys: Vec<ExpertKey>) -> Vec<ExpertKey> {
    keys.sort_unstable();
    keys
}

#[test]
fn hits_are_counted_and_cost_no_read() {
    let mut scheduler = plain(8, CachePolicy::Lru);
    run_layer(&mut scheduler, 0, &routing(&[&[1, 2, 3]])).unwrap();
    let cold = scheduler.stats();
    let keys = run_layer(&mut scheduler, 0, &routing(&[&[3, 4, 1]])).unwrap();
    assert_eq!(sorted(keys), [key(0, 1), key(0, 3), key(0, 4)]);
    let warm = scheduler.stats().since(&cold);
    assert_eq!((cold.hits, cold.misses, cold.fetches, cold.bytes_demand), (0, 3, 3, 3 * RECORD_BYTES));
    assert_eq!((warm.hits, warm.misses, warm.fetches, warm.bytes_demand), (2, 1, 1, RECORD_BYTES));
    assert_eq!((warm.again, warm.evictions, warm.joins), (0, 0, 0));
    assert_eq!(scheduler.stats().hit_rate(), 2.0 / 6.0);
    assert_eq!(scheduler.store_stats().n_reads, 4);
}

#[test]
fn hits_come_before_reads() {
    let mut scheduler = plain(8, CachePolicy::Lru);
    run_layer(&mut scheduler, 0, &routing(&[&[7]])).unwrap();
    let keys = run_layer(&mut scheduler, 0, &routing(&[&[1, 2, 7]])).unwrap();
    assert_eq!(keys[0], key(0, 7));
}

#[test]
fn an_expert_that_comes_back_is_counted_as_read_again() {
    let mut scheduler = plain(2, CachePolicy::Lru);
    for _ in 0..2 {
        run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap();
        run_layer(&mut scheduler, 0, &routing(&[&[3, 4]])).unwrap();
    }
    let stats = scheduler.stats();
    assert_eq!((stats.hits, stats.fetches, stats.again, stats.evictions), (0, 8, 4, 6));
}

#[test]
fn a_scan_over_all_experts_runs_in_two_slots() {
    let all: Vec<u16> = (0..32).collect();
    for policy in [CachePolicy::Lru, CachePolicy::KeepNone] {
        let mut scheduler = plain(2, policy);
        for layer in 0..3 {
            let keys = run_layer(&mut scheduler, layer, &routing(&[&all])).unwrap();
            assert_eq!(sorted(keys), (0..32).map(|e| key(layer, e)).collect::<Vec<_>>(), "{policy:?}");
        }
    }
}

#[test]
fn keep_none_keeps_nothing() {
    let mut scheduler = plain(16, CachePolicy::KeepNone);
    for _ in 0..3 {
        run_layer(&mut scheduler, 0, &routing(&[&[1, 2, 3]])).unwrap();
        assert_eq!(scheduler.residents().count(), 0);
    }
    let stats = scheduler.stats();
    assert_eq!((stats.hits, stats.fetches, stats.again), (0, 9, 6));
}

#[test]
fn a_caller_who_keeps_every_slot_hears_of_it_and_can_go_on() {
    for policy in [CachePolicy::Lru, CachePolicy::KeepNone] {
        let mut scheduler = plain(3, policy);
        let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[1, 2, 3, 4, 5]])).unwrap();
        let mut kept: Vec<(ExpertKey, ReadLease)> = Vec::new();
        let error = loop {
            match turn.next_ready() {
                Ok(ready) => kept.extend(ready.map(|ready| (ready.key, ready.lease))),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, SchedulerError::AllSlotsLeased { key: k, n_slots: 3 } if k == key(0, 4)));
        assert_eq!(kept.len(), 3);
        for (key, lease) in &kept {
            assert_eq!(lease.bytes()[0], pattern(*key), "a kept lease keeps its bytes");
        }
        kept.pop();
        let rest = pull_all(turn).unwrap();
        assert_eq!(sorted(rest), [key(0, 4), key(0, 5)]);
    }
}

#[test]
fn a_failed_read_names_its_expert_and_costs_no_slot() {
    let store = ChanceStore::new(3, 4, 32);
    let fail = store.fail.clone();
    let mut scheduler = scheduler(3, store, Box::new(NoPredictor), CachePolicy::Lru);
    for _ in 0..10 {
        fail.set(1000);
        let error = run_layer(&mut scheduler, 0, &routing(&[&[1, 2, 3]])).unwrap_err();
        let SchedulerError::Fetch { key: failed, source: StoreError::Io { key, .. } } = &error else {
            panic!("{error}");
        };
        assert_eq!(failed, key);
        fail.set(0);
        assert_eq!(run_layer(&mut scheduler, 1, &routing(&[&[4, 5, 6, 7]])).unwrap().len(), 4);
    }
}

#[test]
fn a_turn_can_be_asked_again_after_a_failure() {
    let store = ChanceStore::new(4, 2, 32);
    let fail = store.fail.clone();
    let mut scheduler = scheduler(2, store, Box::new(NoPredictor), CachePolicy::Lru);
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[1, 2, 3, 4]])).unwrap();
    fail.set(1000);
    for _ in 0..5 {
        assert!(turn.next_ready().is_err());
    }
    fail.set(0);
    assert_eq!(sorted(pull_all(turn).unwrap()), [key(0, 1), key(0, 2), key(0, 3), key(0, 4)]);
}

#[test]
fn a_read_that_was_doomed_before_the_turn_is_tried_once_more() {
    let store = ChanceStore::new(5, 8, 32);
    let fail = store.fail.clone();
    let mut scheduler = scheduler(8, store, Box::new(NoPredictor), CachePolicy::Lru);
    drop(scheduler.open_layer(LayerId(0), &routing(&[&[1, 2, 3]])).unwrap());
    let turn = scheduler.open_layer(LayerId(0), &routing(&[&[1, 2, 3]])).unwrap();
    fail.set(1000);
    // The first failures are of reads that the dropped turn began; those that follow are this turn's own.
    let error = pull_all(turn).unwrap_err();
    assert!(matches!(error, SchedulerError::Fetch { .. }));
    let stats = scheduler.stats();
    assert!(stats.failures > 1 && stats.joins > 0, "{stats:?}");
}

#[test]
fn an_abandoned_turn_leaves_its_reads_for_later() {
    let mut scheduler = plain(8, CachePolicy::Lru);
    drop(scheduler.open_layer(LayerId(0), &routing(&[&[1, 2, 3]])).unwrap());
    let keys = run_layer(&mut scheduler, 0, &routing(&[&[1, 2, 3]])).unwrap();
    assert_eq!(keys.len(), 3);
    let stats = scheduler.stats();
    assert_eq!((stats.fetches, stats.again, stats.hits + stats.joins), (3, 0, 3));
}

#[test]
fn a_guess_becomes_a_demand_without_a_second_read() {
    let mut scheduler = scheduler(8, ChanceStore::new(6, 8, 4), Box::new(Told), CachePolicy::Lru);
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[0, 1]])).unwrap();
    turn.offer(early(LayerId(1), 4, &[0.0, 0.9, 0.8, 0.7]));
    pull_all(turn).unwrap();
    run_layer(&mut scheduler, 1, &routing(&[&[1, 2]])).unwrap();
    // One more layer, so that the third guess has landed.
    while scheduler.n_loading() > 0 {
        run_layer(&mut scheduler, 0, &routing(&[&[0]])).unwrap();
    }
    let stats = scheduler.stats();
    assert_eq!((stats.guesses, stats.guesses_used, stats.fetches, stats.again), (3, 2, 2, 0));
    assert_eq!(stats.bytes_guess, 3 * RECORD_BYTES);
    assert_eq!(stats.bytes_wasted, RECORD_BYTES);
    run_layer(&mut scheduler, 1, &routing(&[&[3]])).unwrap();
    assert_eq!(scheduler.stats().bytes_wasted, 0, "the last guess was used after all");
}

#[test]
fn guesses_are_read_between_turns_too_and_dropped_when_their_layer_opens() {
    let mut scheduler = scheduler(4, ChanceStore::new(7, 1, 4), Box::new(Told), CachePolicy::Lru);
    scheduler.offer(early(LayerId(0), 4, &[0.9, 0.8, 0.7, 0.0]));
    assert_eq!(scheduler.stats().guesses, 1, "the store takes one read at a time");
    run_layer(&mut scheduler, 0, &routing(&[&[3]])).unwrap();
    assert_eq!(scheduler.stats().guesses, 1);
}

#[test]
fn a_guess_of_an_expert_that_does_not_exist_is_dropped() {
    let mut scheduler = scheduler(4, ChanceStore::new(8, 4, 2), Box::new(Told), CachePolicy::Lru);
    scheduler.offer(early(LayerId(0), 4, &[0.0, 0.9, 0.8, 0.7]));
    let stats = scheduler.stats();
    assert_eq!((stats.guesses, scheduler.n_loading()), (1, 1));
    assert_eq!(run_layer(&mut scheduler, 0, &routing(&[&[0, 1]])).unwrap().len(), 2);
}

#[test]
fn an_expert_that_does_not_exist_is_an_error_and_the_next_turn_works() {
    let mut scheduler = plain(4, CachePolicy::Lru);
    let error = run_layer(&mut scheduler, 0, &routing(&[&[1, 99]])).unwrap_err();
    assert!(matches!(error, SchedulerError::Fetch { key: k, .. } if k == key(0, 99)));
    assert_eq!(run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap().len(), 2);
}

#[test]
fn a_store_that_never_finishes_is_an_error_and_no_hang() {
    let mut store = ChanceStore::new(9, 4, 32);
    store.silent = true;
    let mut scheduler = scheduler(4, store, Box::new(NoPredictor), CachePolicy::Lru);
    let error = run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap_err();
    assert!(matches!(error, SchedulerError::StoreStuck { n_loading: 2 }));
}

#[test]
fn a_store_that_never_takes_anything_is_an_error_and_no_hang() {
    let mut scheduler = scheduler(4, ChanceStore::new(10, 0, 32), Box::new(NoPredictor), CachePolicy::Lru);
    let error = run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap_err();
    assert!(matches!(error, SchedulerError::StoreStuck { n_loading: 0 }));
}

#[test]
fn one_slot_is_too_few() {
    let config = SchedulerConfig {
        arena: Arena::new(1, 64).unwrap(),
        store: Box::new(ChanceStore::new(11, 1, 1)),
        predictor: Box::new(NoPredictor),
        policy: CachePolicy::Lru,
        lookahead: LookaheadConfig::default(),
        clock: Arc::new(Ticks::default()),
    };
    let error = Scheduler::new(config).unwrap_err();
    assert!(matches!(error, SchedulerError::TooFewSlots { n_slots: 1, n_slots_min: 2 }));
}

#[test]
fn sleeping_is_counted_as_stall() {
    let mut scheduler = plain(4, CachePolicy::Lru);
    run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap();
    let SchedulerStats { stall, .. } = scheduler.stats();
    assert!(stall > Nanos(0), "nothing was there, so the caller slept");
    run_layer(&mut scheduler, 0, &routing(&[&[1, 2]])).unwrap();
    assert_eq!(scheduler.stats().stall, stall, "hits need no sleep");
}

/// A store that reads on its caller's time, whatever `until` says.
struct Copying {
    inner: ChanceStore,
    clock: Arc<Ticks>,
}

impl ExpertStore for Copying {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused> {
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

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Fetched>) {
        for _ in 0..1000 {
            let _ = self.clock.now();
        }
        self.inner.wait(Nanos::MAX, done);
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}

#[test]
fn a_look_that_takes_time_and_brings_something_is_counted_as_stall() {
    let clock = Arc::new(Ticks::default());
    let store = Copying { inner: ChanceStore::new(1, 4, 32), clock: Arc::clone(&clock) };
    let mut scheduler = Scheduler::new(SchedulerConfig {
        arena: Arena::new(4, 64).unwrap(),
        store: Box::new(store),
        predictor: Box::new(NoPredictor),
        policy: CachePolicy::Lru,
        lookahead: LookaheadConfig::default(),
        clock: clock.clone(),
    })
    .unwrap();
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[1]])).unwrap();
    // The look before the first expert finds it, so nobody sleeps.
    assert!(turn.next_ready().unwrap().is_some());
    drop(turn);
    assert!(scheduler.stats().stall >= Nanos(1000), "{}", scheduler.stats().stall);
}

#[test]
fn reads_that_bring_nothing_are_neither_read_before_nor_used() {
    let store = ChanceStore::new(3, 8, 32);
    let fail = store.fail.clone();
    let mut scheduler = scheduler(8, store, Box::new(Told), CachePolicy::Lru);
    fail.set(1000);
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[1, 2, 3]])).unwrap();
    (0..20).for_each(|_| drop(turn.next_ready()));
    drop(turn);
    while scheduler.n_loading() > 0 {
        let _ = run_layer(&mut scheduler, 0, &routing(&[&[4]]));
    }
    // A guess that a router wants while it is loading, and that then fails.
    scheduler.offer(early(LayerId(1), 2, &[0.9, 0.0]));
    let mut turn = scheduler.open_layer(LayerId(1), &routing(&[&[0]])).unwrap();
    assert!(turn.next_ready().is_err());
    drop(turn);
    let stats = scheduler.stats();
    assert!(stats.failures > 3 && stats.guesses == 1, "{stats:?}");
    assert_eq!((stats.again, stats.guesses_used), (0, 0), "{stats:?}");
    fail.set(0);
    run_layer(&mut scheduler, 0, &routing(&[&[1, 2, 3]])).unwrap();
    assert_eq!(scheduler.stats().again, 0, "the first time that their bytes came");
}

#[test]
fn a_guess_that_is_wanted_while_it_loads_was_used() {
    let mut store = ChanceStore::new(6, 8, 4);
    store.never_early = true;
    let mut scheduler = scheduler(8, store, Box::new(Told), CachePolicy::Lru);
    scheduler.offer(early(LayerId(0), 4, &[0.9, 0.0, 0.0, 0.0]));
    run_layer(&mut scheduler, 0, &routing(&[&[0]])).unwrap();
    let stats = scheduler.stats();
    assert_eq!((stats.joins, stats.guesses, stats.guesses_used), (1, 1, 1), "{stats:?}");
    run_layer(&mut scheduler, 0, &routing(&[&[0]])).unwrap();
    assert_eq!(scheduler.stats().guesses_used, 1, "once");
}

/// Case 89: after the slots were made fewer, no miss brings them back.
#[test]
fn a_scheduler_that_was_shrunk_stays_small() {
    let mut scheduler = scheduler(12, ChanceStore::new(5, 4, 32), Box::new(NoPredictor), CachePolicy::Lru);
    for layer in 0..4 {
        run_layer(&mut scheduler, layer, &routing(&[&[1, 2, 3, 4]])).unwrap();
    }
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[1]])).unwrap();
    let kept = turn.next_ready().unwrap().unwrap();
    drop(turn);
    scheduler.shrink(3).unwrap();
    assert_eq!(scheduler.n_slots(), 3);
    for step in 0..100u16 {
        let experts: Vec<u16> = (0..6).map(|i| (step * 5 + i) % 32).collect();
        run_layer(&mut scheduler, step % 4, &routing(&[&experts])).unwrap();
        assert!(scheduler.residents().count() + scheduler.n_loading() <= 3);
    }
    assert_eq!(kept.lease.bytes()[0], pattern(kept.key), "a lease keeps its bytes");
    scheduler.shrink(8).unwrap();
    assert_eq!(scheduler.n_slots(), 3, "slots don't come back");
    assert!(matches!(scheduler.shrink(1), Err(SchedulerError::TooFewSlots { .. })));
}
