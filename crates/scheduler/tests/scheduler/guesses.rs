//! Guesses and demands, one sentence a test.

use forerun_model::{ExpertKey, LayerId, Nanos, Stage};
use forerun_scheduler::{
    LookaheadConfig, NoPredictor, PolicyName, ROWS_GUESSED_MAX, RouterAhead, Scheduler, View,
};

use crate::support::*;
use crate::wire::{Event, Hand, wired};

const OPEN: fn() -> LookaheadConfig = LookaheadConfig::open;

fn key(layer: u16, expert: u16) -> ExpertKey {
    ExpertKey::new(layer, expert)
}

/// Probabilities of 8 experts, of which those are likely.
fn likely(experts: &[u16]) -> [f32; 8] {
    let mut probabilities = [0.0; 8];
    experts.iter().for_each(|&expert| probabilities[usize::from(expert)] = 0.9);
    probabilities
}

/// Sleeps until nothing is in flight, in a layer of its own whose one expert stays.
fn settle(scheduler: &mut Scheduler) {
    while scheduler.n_loading() > 0 {
        let mut turn = scheduler.open_layer(LayerId(9), &routing(&[&[30, 31]])).unwrap();
        while turn.next_ready().unwrap().is_some() {}
    }
}

#[test]
fn without_a_cache_a_guess_is_kept_until_it_is_used_and_no_longer() {
    let (mut scheduler, log, _) = wired((16, 4), Box::new(Told), PolicyName::KeepNone, OPEN());
    for token in 0..4 {
        scheduler.begin_pass(1);
        let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[0, 1]])).unwrap();
        turn.offer(early(LayerId(1), 8, &likely(&[2, 3])));
        pull_all(turn).unwrap();
        run_layer(&mut scheduler, 1, &routing(&[&[2, 3]])).unwrap();
        assert_eq!(scheduler.residents().count(), 0, "token {token}");
    }
    let stats = scheduler.stats();
    assert_eq!((stats.guesses, stats.guesses_used, stats.bytes_wasted), (8, 8, 0), "{stats:?}");
    assert_eq!((stats.fetches, stats.hits + stats.joins), (8, 8), "{stats:?}");
    assert!(!log.take_demands().contains(&key(1, 2)), "a right guess is no demand");
}

/// Where a pool that gives up the longest unused keeps nothing at all, with guesses or without.
#[test]
fn below_the_working_set_some_experts_stay_beside_guesses() {
    let kept = |policy, guesses: bool| {
        let (mut scheduler, _, _) = wired((9, 2), Box::new(Told), policy, OPEN());
        for token in 0..40 {
            scheduler.begin_pass(1);
            // Two experts come back each time, two others seldom.
            let experts = [0, 1, 2 + token % 6, 2 + (token + 3) % 6];
            for layer in 0..4 {
                let mut turn = scheduler.open_layer(LayerId(layer), &routing(&[&experts])).unwrap();
                if guesses && layer < 3 {
                    turn.offer(early(LayerId(layer + 1), 8, &likely(&experts)));
                }
                pull_all(turn).unwrap();
            }
        }
        let stats = scheduler.stats();
        assert_eq!(stats.guesses > 0, guesses, "{stats:?}");
        (stats.hits + stats.joins).saturating_sub(stats.guesses_used)
    };
    assert_eq!(kept(PolicyName::Lru, false), 0);
    assert!(kept(PolicyName::default(), false) > 40);
    assert!(kept(PolicyName::default(), true) > 20);
}

/// Asks whoever listens about each layer of a pass; returns how many were asked.
fn pass_of_resident_experts(scheduler: &mut Scheduler, clock: &Hand) -> u32 {
    let (mut n_asked, n_layers) = (0, 4);
    let mut ask = |scheduler: &mut Scheduler, stage, layer| {
        let view = View { stage, ahead: 1 };
        if layer < n_layers && scheduler.listens(view, LayerId(layer)) {
            n_asked += 1;
            clock.advance(Nanos::from_micros(50));
            let probabilities = likely(&[0, 1]);
            let mut input = early(LayerId(layer), 8, &probabilities);
            input.view = view;
            scheduler.offer(input);
        }
    };
    scheduler.begin_pass(1);
    ask(scheduler, Stage::Begin, 0);
    for layer in 0..n_layers {
        run_layer(scheduler, layer, &routing(&[&[0, 1]])).unwrap();
        ask(scheduler, Stage::Closed, layer + 1);
        clock.advance(Nanos::from_millis(1));
    }
    scheduler.end_pass().unwrap();
    n_asked
}

#[test]
fn while_everything_is_there_no_router_is_asked() {
    let lookahead = LookaheadConfig { read: Some(Nanos::from_millis(1)), ..LookaheadConfig::default() };
    let predictor = Box::<RouterAhead>::default();
    let (mut scheduler, _, clock) = wired((16, 4), predictor, PolicyName::default(), lookahead);
    let mut run = |n| (0..n).map(|_| pass_of_resident_experts(&mut scheduler, &clock)).sum::<u32>();
    assert_eq!(run(10), 40, "it has to be learnt first");
    run(100);
    // A sixteenth, to learn of it when that changes.
    assert_eq!(run(160), 40);
    assert_eq!(scheduler.stats().guesses, 0);
}

#[test]
fn guesses_expire_when_their_layer_passes() {
    let (mut scheduler, log, _) = wired((16, 1), Box::new(Told), PolicyName::Lru, OPEN());
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[&[0]])).unwrap();
    turn.offer(early(LayerId(1), 8, &likely(&[1, 2, 3])));
    pull_all(turn).unwrap();
    assert_eq!(log.take().last(), Some(&Event::Guess(key(1, 1))), "one finds room beside the demand's end");
    run_layer(&mut scheduler, 1, &routing(&[&[5]])).unwrap();
    run_layer(&mut scheduler, 2, &routing(&[&[5, 6]])).unwrap();
    settle(&mut scheduler);
    let late = log.take().into_iter().find(|event| matches!(event, Event::Guess(_)));
    assert_eq!(late, None, "a guess was begun after its layer");
}

#[test]
fn a_guess_in_flight_is_promoted_and_read_once() {
    let (mut scheduler, log, _) = wired((16, 4), Box::new(Told), PolicyName::Lru, OPEN());
    scheduler.offer(early(LayerId(1), 8, &likely(&[1, 2, 3])));
    scheduler.offer(early(LayerId(2), 8, &likely(&[4])));
    assert_eq!(log.take(), [key(1, 1), key(1, 2), key(1, 3), key(2, 4)].map(Event::Guess));
    run_layer(&mut scheduler, 1, &routing(&[&[2, 3]])).unwrap();
    let events = log.take();
    let at = |event| events.iter().position(|&e| e == event);
    assert!(at(Event::Promoted(key(1, 2))).is_some() && at(Event::Promoted(key(1, 3))).is_some());
    assert!(at(Event::Demand(key(1, 2))).is_none() && at(Event::Demand(key(1, 3))).is_none(), "{events:?}");
    let done: Vec<_> = events.iter().filter(|event| matches!(event, Event::Done(_))).collect();
    // The first was on the wire, and wrong; the last is of a later layer, and waits.
    assert_eq!(done, [key(1, 1), key(1, 2), key(1, 3)].map(Event::Done).iter().collect::<Vec<_>>());
    let stats = scheduler.stats();
    assert_eq!((stats.joins, stats.fetches, stats.guesses_used), (2, 0, 2), "{stats:?}");
}

#[test]
fn a_demand_waits_for_no_guess_but_the_one_on_the_wire() {
    for depth in 1..=4 {
        let (mut scheduler, log, _) = wired((16, depth), Box::new(Told), PolicyName::Lru, OPEN());
        scheduler.offer(early(LayerId(1), 8, &likely(&[1, 2, 3, 4])));
        assert_eq!(log.take().len(), depth, "as many guesses as the store takes");
        let keys = run_layer(&mut scheduler, 0, &routing(&[&[6, 7]])).unwrap();
        assert_eq!(keys, [key(0, 6), key(0, 7)]);
        let done: Vec<_> = log.take().into_iter().filter(|event| matches!(event, Event::Done(_))).collect();
        assert_eq!(done, [key(1, 1), key(0, 6), key(0, 7)].map(Event::Done), "depth {depth}");
    }
}

#[test]
fn passes_of_many_rows_are_not_guessed_for() {
    let (mut scheduler, _, _) =
        wired((16, 4), Box::<RouterAhead>::default(), PolicyName::default(), LookaheadConfig::default());
    let mut listens = |n_rows| {
        scheduler.begin_pass(n_rows);
        let stages = [Stage::Begin, Stage::Early, Stage::Closed];
        stages.map(|stage| scheduler.listens(View { stage, ahead: 1 }, LayerId(1)))
    };
    assert_eq!(listens(1), [true; 3]);
    assert_eq!(listens(ROWS_GUESSED_MAX), [true; 3]);
    assert_eq!(listens(ROWS_GUESSED_MAX + 1), [false; 3]);
    assert_eq!(listens(4096), [false; 3]);
}

/// Prefill: each expert that a chunk needs is read once, in the order of the file, and no other.
#[test]
fn a_chunk_reads_each_expert_that_it_needs_once_in_ascending_order() {
    for policy in [PolicyName::KeepNone, PolicyName::Lru, PolicyName::default()] {
        for (n_slots, depth) in [(2, 1), (3, 4), (8, 2), (40, 4)] {
            let (mut scheduler, log, _) = wired((n_slots, depth), Box::new(NoPredictor), policy, OPEN());
            let mut chance = Chance(n_slots as u64);
            for layer in 0..3 {
                let routing = random_routing(&mut chance, 12, 2, 64);
                let wanted: Vec<_> = routing.experts().map(|expert| key(layer, expert.0)).collect();
                assert!(wanted.len() > 12 && wanted.len() < 64, "some experts and not all");
                scheduler.begin_pass(12);
                let handed_out = run_layer(&mut scheduler, layer, &routing).unwrap();
                assert_eq!(log.take_demands(), wanted, "{policy:?}, {n_slots} slots, depth {depth}");
                assert_eq!(handed_out, wanted, "{policy:?}, {n_slots} slots, depth {depth}");
            }
        }
    }
}
