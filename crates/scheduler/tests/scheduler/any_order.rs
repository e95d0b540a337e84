//! Properties that hold for every slot count, queue depth, order of completion, guess and failure.

use std::collections::BTreeSet;

use crate::support::*;
use forerun_arena::ReadLease;
use forerun_model::{ExpertKey, LayerId, Routing};
use forerun_scheduler::{
    LookaheadConfig, NoPredictor, PolicyName, Predictor, ROWS_GUESSED_MAX, Scheduler, Turn,
};
use proptest::prelude::*;

const N_LAYERS: u16 = 3;
const N_EXPERTS: usize = 16;

#[derive(Clone, Debug)]
struct World {
    seed: u64,
    n_slots: usize,
    depth: usize,
    n_rows: usize,
    top_k: usize,
    n_guesses: usize,
    fail_permille: u64,
    policy: PolicyName,
    gated: bool,
}

impl World {
    fn scheduler(&self) -> Scheduler {
        let store = ChanceStore::new(self.seed, self.depth, N_EXPERTS);
        store.fail.set(self.fail_permille);
        let predictor: Box<dyn Predictor> = match self.n_guesses {
            0 => Box::new(NoPredictor),
            n => Box::new(Wild(Chance(self.seed ^ 1), n)),
        };
        let lookahead = if self.gated { LookaheadConfig::default() } else { LookaheadConfig::open() };
        gated(self.n_slots, store, predictor, self.policy, lookahead)
    }
}

fn worlds() -> impl Strategy<Value = World> {
    let sizes = (2usize..20, 1usize..6, 1usize..9, 1usize..5, 0usize..12);
    let policy = prop_oneof![Just(PolicyName::Lru), Just(PolicyName::KeepNone)];
    (any::<u64>(), sizes, prop_oneof![Just(0u64), 0u64..400], policy, any::<bool>()).prop_map(
        |(seed, (n_slots, depth, n_rows, top_k, n_guesses), fail_permille, policy, gated)| World {
            seed,
            n_slots,
            depth,
            n_rows,
            top_k,
            n_guesses,
            fail_permille,
            policy,
            gated,
        },
    )
}

/// A caller who keeps some leases for a while, asks again after failures, and checks bytes early and late.
fn pull_slowly(turn: &mut Turn<'_>, routing: &Routing, layer: LayerId, n_slots: usize, chance: &mut Chance) {
    let mut left: BTreeSet<ExpertKey> = routing.experts().map(|expert| ExpertKey { layer, expert }).collect();
    let mut kept: Vec<(ExpertKey, ReadLease)> = Vec::new();
    loop {
        match turn.next_ready() {
            Err(_) => kept.clear(),
            Ok(None) => break,
            Ok(Some(ready)) => {
                assert!(left.remove(&ready.key), "{} wasn't wanted or came twice", ready.key);
                assert_eq!(ready.lease.bytes()[63], pattern(ready.key));
                kept.push((ready.key, ready.lease));
            }
        }
        for (key, lease) in &kept {
            assert_eq!(lease.bytes()[0], pattern(*key), "{key} was overwritten under its lease");
        }
        if kept.len() == n_slots || chance.below(3) == 0 {
            kept.clear();
        }
    }
    assert!(left.is_empty(), "{left:?} never came");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_expert_comes_once_with_its_own_bytes(world in worlds()) {
        let mut scheduler = world.scheduler();
        let mut chance = Chance(world.seed ^ 2);
        let (mut wanted, mut opened) = (0, 0);
        for step in 0..24u16 {
            let layer = LayerId(step % N_LAYERS);
            let routing = random_routing(&mut chance, world.n_rows, world.top_k, N_EXPERTS);
            wanted += routing.experts().len() as u64;
            opened += 1;
            if layer.0 == 0 && world.n_rows > 3 {
                // As of a prompt.
                scheduler.begin_pass(ROWS_GUESSED_MAX + 1);
            }
            let mut turn = scheduler.open_layer(layer, &routing).unwrap();
            let next = LayerId((step + 1) % N_LAYERS);
            turn.listener().announce(next, N_EXPERTS);
            turn.offer(early(next, N_EXPERTS, &[]));
            if chance.below(6) == 0 {
                let _ = turn.next_ready();
                drop(turn);
            } else {
                pull_slowly(&mut turn, &routing, layer, world.n_slots, &mut chance);
                drop(turn);
            }
            scheduler.offer(early(next, N_EXPERTS, &[]));
            prop_assert!(scheduler.residents().count() + scheduler.n_loading() <= world.n_slots);
        }
        let stats = scheduler.stats();
        prop_assert_eq!((stats.turns, stats.wanted()), (opened, wanted));
        prop_assert!(stats.guesses_used <= stats.guesses && stats.bytes_wasted <= stats.bytes_guess);
        let landed = scheduler.store_stats().n_reads;
        let in_flight = scheduler.n_loading() as u64;
        let in_vain = stats.guesses_given_up * BITE_BYTES;
        prop_assert_eq!(stats.bytes_demand + stats.bytes_guess, landed * RECORD_BYTES + in_vain);
        let over = landed + stats.failures + stats.guesses_withdrawn + stats.guesses_given_up;
        prop_assert_eq!(stats.fetches + stats.guesses, over + in_flight);
        if world.n_guesses == 0 && world.n_rows <= 3 {
            prop_assert_eq!((stats.guesses, stats.bytes_guess, stats.bytes_wasted), (0, 0, 0));
        }
    }
}

/// Case 86: a miss must not evict what the same layer has resolved already.
#[test]
fn a_batch_whose_union_exceeds_the_slots_gets_the_right_bytes() {
    let top_k = 4;
    for n_slots in [top_k, top_k + 1] {
        for seed in 0..50 {
            let store = ChanceStore::new(seed, 3, N_EXPERTS);
            let mut scheduler = scheduler(n_slots, store, Box::new(NoPredictor), PolicyName::Lru);
            let mut chance = Chance(seed);
            for step in 0..20u16 {
                let routing = random_routing(&mut chance, 8, top_k, N_EXPERTS);
                assert!(routing.experts().len() > n_slots, "seed {seed}: the batch must exceed the slots");
                let keys = run_layer(&mut scheduler, step % N_LAYERS, &routing).unwrap();
                assert_eq!(keys.len(), routing.experts().len(), "seed {seed}, {n_slots} slots");
            }
        }
    }
}

/// Failures, guesses and abandoned turns leave no slot behind: a quiet turn can still fill every one.
#[test]
fn no_slot_is_ever_lost() {
    for seed in 0..100 {
        let store = ChanceStore::new(seed, 3, N_EXPERTS);
        let fail = store.fail.clone();
        let mut scheduler = scheduler(6, store, Box::new(Wild(Chance(seed), 5)), PolicyName::Lru);
        let mut chance = Chance(seed);
        fail.set(500);
        for step in 0..30u16 {
            let routing = random_routing(&mut chance, 2, 3, N_EXPERTS);
            let _ = run_layer(&mut scheduler, step % N_LAYERS, &routing);
            scheduler.offer(early(LayerId(0), N_EXPERTS, &[]));
        }
        fail.set(0);
        let mut turn = scheduler.open_layer(LayerId(7), &routing(&[&[0, 1, 2, 3, 4, 5]])).unwrap();
        let kept: Vec<_> = std::iter::from_fn(|| turn.next_ready().unwrap()).collect();
        assert_eq!(kept.len(), 6, "seed {seed}");
    }
}
