//! What is chosen on machines of sums, against brute force, and what it costs at most.

#![expect(clippy::cast_possible_truncation, reason = "small made-up numbers")]

use super::*;

fn ms(millis: f64) -> Nanos {
    nanos(millis / 1e3)
}

/// A rule in the middle of drafting that takes steps of `costs` seconds, by drafts, for granted.
fn rule_of(costs: [f64; LENGTHS], gain_min: f64) -> DraftRule {
    let mut rule = DraftRule::new(DraftConfig { gain_min, ..DraftConfig::default() });
    rule.costs.set_seconds(costs);
    rule.trial = Trial::drafting();
    rule
}

/// Drafts that are admitted when the drafter says so.
fn admitted(rule: &mut DraftRule, said: &[f32]) -> usize {
    let n_max = rule.begin();
    said.iter().take(n_max).take_while(|&&confidence| rule.admits(confidence)).count()
}

/// Numbers from 0 to 1 that follow from a seed (splitmix64).
fn chances(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Costs that grow, by steps of any size.
fn any_costs(chance: &mut impl FnMut() -> f64) -> [f64; LENGTHS] {
    let (mut cost, growth) = (1.0, chance());
    std::array::from_fn(|_| {
        let this = cost;
        cost += growth * chance();
        this
    })
}

#[test]
fn the_length_is_what_brute_force_finds() {
    for seed in 0..2_000 {
        let mut chance = chances(seed);
        let costs = any_costs(&mut chance);
        let said: [f32; 7] = std::array::from_fn(|_| chance() as f32);
        let gain_min = 0.05 * chance();
        let mut rule = rule_of(costs, gain_min);
        let (of, usual) = (rule.acceptance.clone(), rule.acceptance.clone());
        // The rate of every length, as it is seen when the first `known` drafts have a confidence.
        let rate = |length: usize, known: usize| {
            let chance = |k: usize| if k < known { of.of(k, said[k]) } else { usual.usual(k) };
            let tokens = (0..length).map(|j| (0..=j).map(chance).product::<f64>()).sum::<f64>() + 1.0;
            tokens / costs[length]
        };
        let goes_on = |n: usize| {
            let gains =
                |l: usize| rate(l, n + 1) / rate(n, n + 1) >= (1.0 + gain_min).powi((l - n) as i32) - 1e-12;
            (n + 1..=7).any(gains)
        };
        let expected = (0..7).find(|&n| !goes_on(n)).unwrap_or(7);
        assert_eq!(admitted(&mut rule, &said), expected, "seed {seed}: {costs:?} {said:?}");
    }
}

#[test]
fn with_even_costs_and_a_silent_drafter_it_is_the_best_of_all() {
    for seed in 0..500 {
        let mut chance = chances(seed);
        let growth = chance();
        let costs = std::array::from_fn(|drafted| 1.0 + growth * drafted as f64);
        let mut rule = rule_of(costs, 0.0);
        for k in 0..7 {
            let percent = (100.0 * chance()).abs() as usize;
            (0..200).for_each(|i| rule.acceptance.learn(k, f32::NAN, i % 100 < percent));
        }
        let rate = |length: usize| {
            let all = |j: usize| (0..=j).map(|k| rule.acceptance.of(k, f32::NAN)).product::<f64>();
            ((0..length).map(all).sum::<f64>() + 1.0) / costs[length]
        };
        let best = (0..=7).map(rate).fold(0.0, f64::max);
        let found = rate(admitted(&mut rule.clone(), &[f32::NAN; 7]));
        // Hope for positions that were hardly seen is all that can tell them apart.
        assert!(found >= 0.99 * best, "seed {seed}: {found} of {best}");
    }
}

/// Runs `n` steps; a step of `rows` takes `time(rows)` milliseconds, the drafter 1 ms and says `said`, and of every drafted
/// tokens those are right that `accepts` says, asked by step and position. Milliseconds a token.
fn run(
    rule: &mut DraftRule,
    n: usize,
    said: f32,
    time: impl Fn(usize) -> f64,
    accepts: impl Fn(usize, usize) -> bool,
) -> f64 {
    let (mut taken, mut tokens) = (0.0, 0);
    for i in 0..n {
        let n_max = rule.begin();
        let drafted = (0..n_max).take_while(|_| rule.admits(said)).count();
        let accepted = (0..drafted).take_while(|&k| accepts(i, k)).count();
        let draft_ms = if n_max > 0 { 1.0 } else { 0.0 };
        let step = DraftedStep {
            rows: drafted + 1,
            drafted,
            accepted,
            draft_time: ms(draft_ms),
            step_time: ms(time(drafted + 1)),
            ..DraftedStep::default()
        };
        rule.observe(&step);
        taken += draft_ms + time(drafted + 1);
        tokens += step.emitted();
    }
    taken / tokens as f64
}

#[test]
fn right_drafts_of_cheap_rows_are_made_as_long_as_may_be() {
    let mut rule = DraftRule::new(DraftConfig::default());
    let found = run(&mut rule, 200, f32::NAN, |rows| 20.0 + rows as f64, |_, _| true);
    assert!(found <= 6.0, "{found} ms a token");
    assert!(rule.counts().steps[7] > 120, "{:?}", rule.counts());
    assert!((rule.counts().bias() - 1.0).abs() < 0.1, "{}", rule.counts().bias());
}

#[test]
fn wrong_drafts_cost_next_to_nothing_whatever_the_drafter_says() {
    for said in [f32::NAN, 0.5, 0.99, 1.0] {
        for growth in [0.1, 1.0, 2.0] {
            let mut rule = DraftRule::new(DraftConfig::default());
            let time = |rows: usize| 20.0 * (1.0 + growth * (rows - 1) as f64);
            let found = run(&mut rule, 1_000, said, time, |_, _| false);
            assert!(found <= 1.02 * 20.0, "{found} ms a token, {growth} a row, said {said}");
            assert!(!matches!(rule.decision().mode, DraftMode::Check { .. }));
        }
    }
}

#[test]
fn what_turns_bad_is_given_up_and_what_turns_good_is_found() {
    let mut rule = DraftRule::new(DraftConfig::default());
    let time = |rows: usize| 20.0 + 4.0 * rows as f64;
    run(&mut rule, 200, 0.8, time, |_, _| true);
    assert!(rule.trial.drafts());
    let bad = run(&mut rule, 400, 0.8, time, |_, _| false);
    assert!(bad <= 1.05 * 24.0, "{bad} ms a token");
    let good = run(&mut rule, 1_500, 0.8, time, |_, _| true);
    assert!(good <= 0.6 * 24.0, "{good} ms a token");
}

#[test]
fn an_answer_that_ends_in_a_draft_says_nothing_of_those_behind() {
    let mut rule = rule_of([1.0; LENGTHS], 0.0);
    assert_eq!(admitted(&mut rule, &[0.9; 7]), 7);
    let before = rule.acceptance.usual(2);
    let cut = DraftedStep {
        rows: 8,
        drafted: 7,
        accepted: 2,
        is_cut: true,
        step_time: ms(1.0),
        ..DraftedStep::default()
    };
    assert_eq!(cut.emitted(), 2);
    rule.observe(&cut);
    assert!(rule.acceptance.usual(1) > before && rule.acceptance.usual(2) >= before);
}

#[test]
fn no_input_breaks_it() {
    let mut rule = DraftRule::new(DraftConfig {
        n_max: 99,
        disk_bytes_per_second: Some(0.0),
        row_growth: -1.0,
        ..DraftConfig::default()
    });
    let most = Nanos(u64::MAX);
    for step in [
        DraftedStep::default(),
        DraftedStep { rows: 99, drafted: 99, accepted: 120, ..DraftedStep::default() },
        DraftedStep { rows: 0, stall_time: most, missed_bytes: u64::MAX, ..DraftedStep::default() },
        DraftedStep { rows: 2, drafted: 1, step_time: most, draft_time: most, ..DraftedStep::default() },
    ]
    .repeat(40)
    {
        assert!(rule.begin() <= DRAFTED_MAX);
        rule.admits(f32::INFINITY);
        rule.observe(&step);
        assert!(!rule.decision().reason.is_empty());
    }
}

#[test]
fn the_reason_names_rows_bytes_and_tokens() {
    let mut rule = DraftRule::new(DraftConfig::default());
    let plain = DraftedStep {
        rows: 1,
        step_time: ms(100.0),
        stall_time: ms(90.0),
        missed_bytes: 1_000_000,
        ..DraftedStep::default()
    };
    (0..20).for_each(|_| rule.observe(&plain));
    let DraftDecision { mode, length, reason, .. } = rule.decision();
    assert_eq!(
        (length, reason.as_str()),
        (0, "verification of 2 rows reads 1.9x the bytes and takes 1.9x the time for 1.7 tokens")
    );
    assert!(matches!(mode, DraftMode::Plain { .. }));
    assert_eq!(rule.begin(), 0);
}
