//! Drafts with the rule for their length are never much slower than none, and faster wherever a fixed length would be: on
//! recorded routings, over disks, computers, caches and drafters.

#![cfg(test)]

use std::fmt;
use std::path::PathBuf;

use forerun_model::Nanos;
use forerun_scheduler::draft::DraftCounts;
use forerun_scheduler::{DraftConfig, NoPredictor, PolicyName, RouterAhead};
use forerun_sim::{Acceptance, Compute, Confidence, Disk, Lengths, Replay, Speculation, Trace};

/// Most time of a token with drafts, as a share of that without.
const RATIO_MAX: f64 = 1.02;
/// What the best fixed length must gain for the rule to have to.
const GAIN: f64 = 0.05;
/// Bytes of all experts of a token, of a 35B-A3B model at three and a half bits.
const TOKEN_BYTES: u64 = 40 * 8 * 1_350_000;
/// Tokens that fill the slots, and tokens that count.
const N_WARM: usize = 128;
const N_TOKENS: usize = 512;

/// How often drafts of this project's small model are right on chats.
const CHAT: Acceptance = Acceptance::Each([0.50, 0.69, 0.83, 0.88, 0.93, 0.90, 0.87]);
const BURSTS: Acceptance = Acceptance::Bursts { high: 0.9, low: 0.3, tokens: 64 };
const SILENT: Confidence = Confidence::Absent;
const BOASTS: Confidence = Confidence::Said { bias: 1.0, noise: 1.0 };

/// A machine: its disk, its computer, and slots a layer as if there were 256 experts.
#[derive(Clone, Copy, Debug)]
struct Machine {
    mb_per_second: u64,
    tokens_per_second: f64,
    slots: usize,
}

/// What drafts make of it, as shares of the time without.
struct Found {
    machine: Machine,
    speculation: Speculation,
    rule: f64,
    fixed: [f64; 4],
    counts: DraftCounts,
}

fn load(name: &str) -> Trace {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", "traces"].iter().collect();
    let read = |extension| std::fs::read(folder.join(name).with_extension(extension)).unwrap();
    Trace::parse(&read("json"), &read("bin")).unwrap()
}

fn drafter(acceptance: Acceptance, confidence: Confidence, row_growth: f32) -> Speculation {
    Speculation { acceptance, confidence, row_growth, ..Speculation::default() }
}

impl Machine {
    const fn new(mb_per_second: u64, tokens_per_second: f64, slots: usize) -> Self {
        Self { mb_per_second, tokens_per_second, slots }
    }

    fn replay(&self, trace: &Trace) -> Replay {
        let rate = self.mb_per_second * 1_000_000;
        let disk = Disk { latency: Nanos::from_micros(100), depth: 2, ..Disk::of_rate(rate) };
        let (policy, n_slots) = match self.slots {
            0 => (PolicyName::KeepNone, 4 * trace.top_k),
            _ => (PolicyName::default(), (self.slots * trace.n_experts / 256).max(1) * trace.n_layers),
        };
        let record_bytes = TOKEN_BYTES / (trace.n_layers * trace.top_k) as u64;
        let replay = Replay::of(trace, n_slots, record_bytes, disk, Compute::of_rate(self.tokens_per_second));
        Replay { policy, n_warm: N_WARM, n_tokens: N_TOKENS, ..replay }
    }

    fn measure(&self, trace: &Trace, drafters: &[Speculation]) -> Vec<Found> {
        let replay = self.replay(trace);
        let run = |speculation: &Speculation, lengths| {
            replay.speculate(trace, speculation, lengths, Box::new(RouterAhead::default())).unwrap()
        };
        let none = run(&Speculation::default(), Lengths::Fixed(0)).ms_per_token();
        let found = drafters.iter().map(|speculation| {
            let rate = replay.disk.bytes_per_second as f64;
            let config = DraftConfig { disk_bytes_per_second: Some(rate), ..DraftConfig::default() };
            let ruled = run(speculation, Lengths::Rule(config));
            Found {
                machine: *self,
                speculation: *speculation,
                rule: ruled.ms_per_token() / none,
                fixed: [1, 2, 4, 7].map(|n| run(speculation, Lengths::Fixed(n)).ms_per_token() / none),
                counts: ruled.counts,
            }
        });
        found.collect()
    }
}

impl Found {
    fn best(&self) -> f64 {
        self.fixed.iter().copied().fold(1.0, f64::min)
    }

    fn must_gain(&self) -> bool {
        self.best() < 1.0 - GAIN
    }

    /// Never slower, and faster where a fixed length is.
    #[track_caller]
    fn check(&self) {
        assert!(self.rule <= RATIO_MAX, "slower: {self}");
        assert!(!self.must_gain() || self.rule < 1.0, "not faster: {self}");
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, speculation, rule, fixed, counts } = self;
        let Speculation { acceptance, confidence, row_growth, .. } = speculation;
        let (steps, trials, lost) = (&counts.steps[..8], counts.trials, counts.trials_lost);
        write!(f, "{rule:.3} of the time, {fixed:.3?} with 1, 2, 4 and 7; {machine:?}, {acceptance:?}, ")?;
        write!(f, "{confidence:?}, {row_growth} a row; lengths {steps:?}, {lost} of {trials} trials lost")
    }
}

#[track_caller]
fn check(trace: &str, machine: Machine, drafters: &[Speculation]) -> Vec<Found> {
    let found = machine.measure(&load(trace), drafters);
    for found in &found {
        println!("{found}");
    }
    found.iter().for_each(Found::check);
    found
}

#[test]
fn with_everything_in_memory_drafts_pay() {
    let drafters = [
        drafter(CHAT, SILENT, 0.1),
        drafter(Acceptance::Flat(0.9), BOASTS, 0.1),
        drafter(BURSTS, SILENT, 0.5),
    ];
    let found = check("pico-chat", Machine::new(8_000, 20.0, 256), &drafters);
    assert!(found[1].must_gain());
    assert!(found[1].rule < 0.8, "{}", found[1]);
}

#[test]
fn with_rows_as_dear_as_steps_or_drafts_that_are_wrong_they_cost_nothing() {
    let drafters = [
        drafter(CHAT, SILENT, 1.0),
        drafter(Acceptance::Flat(0.3), BOASTS, 1.0),
        drafter(Acceptance::Flat(0.05), BOASTS, 0.5),
    ];
    let found = check("pico-chat", Machine::new(8_000, 20.0, 256), &drafters);
    assert!(found.iter().all(|found| !found.must_gain()));
}

#[test]
fn where_steps_are_reading_there_are_hardly_any_drafts() {
    let drafters = [drafter(Acceptance::Flat(0.5), BOASTS, 0.1), drafter(Acceptance::Flat(0.7), SILENT, 0.1)];
    for found in check("pico-chat", Machine::new(1_400, 10.0, 32), &drafters) {
        assert!(found.counts.drafted < 40, "{found}");
    }
}

#[test]
fn with_a_large_cache_both_happen() {
    let drafters = [
        drafter(CHAT, BOASTS, 0.1),
        drafter(Acceptance::Flat(0.9), SILENT, 0.1),
        drafter(BURSTS, BOASTS, 0.1),
    ];
    let found = check("pico-docs", Machine::new(2_500, 10.0, 128), &drafters);
    assert!(found[1].must_gain() && !found[0].must_gain());
}

#[test]
fn of_many_experts_too() {
    check("trace-docs", Machine::new(2_500, 10.0, 128), &[drafter(Acceptance::Flat(0.7), BOASTS, 0.1)]);
}

#[test]
fn a_step_without_drafts_is_a_step_of_a_plain_replay() {
    let trace = load("pico-gen");
    let replay = Replay { n_tokens: 64, ..Machine::new(1_400, 20.0, 64).replay(&trace) };
    let plain = replay.on_demand(&trace).unwrap();
    let none =
        replay.speculate(&trace, &Speculation::default(), Lengths::Fixed(0), Box::new(NoPredictor)).unwrap();
    assert_eq!((none.time, none.stats, none.n_tokens), (plain.time, plain.stats, plain.n_tokens));
}

/// The machines of `never_slower`, thinned out.
fn whole_grid(trace: &str) {
    for mb_per_second in [300, 1_400, 4_000, 8_000] {
        for tokens_per_second in [5.0, 20.0, 50.0] {
            for slots in [0, 16, 64, 128, 256] {
                let machine = Machine { mb_per_second, tokens_per_second, slots };
                let drafters: Vec<_> = [Acceptance::Flat(0.3), Acceptance::Flat(0.9), CHAT, BURSTS]
                    .into_iter()
                    .flat_map(|acceptance| {
                        [(SILENT, 0.1), (BOASTS, 0.5)].map(|(says, growth)| drafter(acceptance, says, growth))
                    })
                    .collect();
                check(trace, machine, &drafters);
            }
        }
    }
}

#[test]
#[ignore = "minutes"]
fn the_whole_grid_on_chats() {
    whole_grid("pico-chat");
}

#[test]
#[ignore = "an hour"]
fn the_whole_grid_on_texts_of_many_experts() {
    whole_grid("trace-docs");
}
