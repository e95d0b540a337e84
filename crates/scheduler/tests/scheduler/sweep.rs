//! What is read before its turn in passes of many rows.

use forerun_model::{ExpertKey, LayerId};
use forerun_scheduler::{LookaheadConfig, NoPredictor, PolicyName, ROWS_GUESSED_MAX, Scheduler};

use crate::support::*;
use crate::wire::{Event, Log, wired};

const N_EXPERTS: usize = 8;
const MANY_ROWS: usize = ROWS_GUESSED_MAX + 1;

/// A pass of `n_rows` through two layers, of which the first wants `first` and the second `second`; what was begun for the
/// second before it was opened, and on demand after that.
fn pass(
    scheduler: &mut Scheduler,
    log: &Log,
    n_rows: usize,
    [first, second]: [&[u16]; 2],
) -> (Vec<ExpertKey>, Vec<ExpertKey>) {
    let of_second = |events: Vec<Event>| -> Vec<ExpertKey> {
        let begun = events.into_iter().filter_map(|event| match event {
            Event::Demand(key) | Event::Guess(key) => Some(key),
            _ => None,
        });
        begun.filter(|key| key.layer == LayerId(1)).collect()
    };
    scheduler.begin_pass(n_rows);
    let mut turn = scheduler.open_layer(LayerId(0), &routing(&[first])).unwrap();
    turn.listener().announce(LayerId(1), N_EXPERTS);
    assert_eq!(pull_all(turn).unwrap().len(), first.len());
    let ahead = of_second(log.take());
    assert_eq!(run_layer(scheduler, 1, &routing(&[second])).unwrap().len(), second.len());
    (ahead, of_second(log.take()))
}

fn keys(experts: &[u16]) -> Vec<ExpertKey> {
    experts.iter().map(|&expert| ExpertKey::new(1, expert)).collect()
}

fn scheduler(n_slots: usize, lookahead: LookaheadConfig) -> (Scheduler, Log) {
    let (scheduler, log, _) = wired((n_slots, 4), Box::new(NoPredictor), PolicyName::Lru, lookahead);
    (scheduler, log)
}

#[test]
fn a_pass_that_wants_most_of_a_layer_reads_the_next_before_its_turn() {
    let (mut scheduler, log) = scheduler(16, LookaheadConfig::default());
    let (ahead, later) = pass(&mut scheduler, &log, MANY_ROWS, [&[0, 1, 2, 3, 4, 5], &[0, 2, 3, 5, 6, 7]]);
    assert_eq!(ahead, keys(&[0, 1, 2, 3]), "in their order, as many as may be on their way at once");
    assert_eq!(later, keys(&[5, 6, 7]));
    let stats = scheduler.stats();
    assert_eq!((stats.guesses, stats.guesses_used, stats.bytes_wasted), (4, 3, RECORD_BYTES), "{stats:?}");
}

#[test]
fn the_turn_under_way_comes_first_and_keeps_its_slots() {
    let (mut scheduler, log) = scheduler(6, LookaheadConfig::default());
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    for _ in 0..3 {
        let (_, later) = pass(&mut scheduler, &log, MANY_ROWS, [&all, &all]);
        assert!(later.len() < all.len(), "something was read ahead");
    }
}

#[test]
fn few_rows_a_thin_layer_or_a_switch_leave_it_at_its_turn() {
    let most: [&[u16]; 2] = [&[0, 1, 2, 3, 4, 5], &[0, 2]];
    let thin: [&[u16]; 2] = [&[0, 1, 2, 3, 4], &[0, 2]];
    let off = LookaheadConfig { width_max: 0, ..LookaheadConfig::default() };
    for (lookahead, n_rows, wants) in [
        (LookaheadConfig::default(), ROWS_GUESSED_MAX, most),
        (LookaheadConfig::default(), MANY_ROWS, thin),
        (off, MANY_ROWS, most),
    ] {
        let (mut scheduler, log) = scheduler(16, lookahead);
        assert_eq!(pass(&mut scheduler, &log, n_rows, wants), (Vec::new(), keys(&[0, 2])));
    }
}
