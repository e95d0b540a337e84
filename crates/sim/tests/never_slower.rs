//! Looking ahead is never slower than not looking, keeps to its budget of bytes, and hides most of what can be hidden:
//! on recorded routings, over disks, computers and caches from small to large.

#![cfg(test)]

use std::fmt;
use std::path::PathBuf;

use forerun_model::Nanos;
use forerun_scheduler::PolicyName;
use forerun_sim::{Compute, Disk, Replay, ReplayReport, Trace};

const MB_PER_SECOND: [u64; 6] = [300, 600, 1_400, 2_500, 4_000, 8_000];
const TOKENS_PER_SECOND: [f64; 4] = [5.0, 10.0, 20.0, 50.0];
const SLOTS: [usize; 7] = [0, 8, 16, 32, 64, 96, 128];
/// Of a 35B-A3B model at three and a half bits.
const N_LAYERS: usize = 40;
const RECORD_BYTES: u64 = 1_350_000;

/// Most time of a token with guesses, as a share of that without.
const RATIO_MAX: f64 = 1.01;
/// Most bytes that are read in vain, as a share of the others.
const EXTRA_MAX: f64 = 0.1;

/// A machine.
#[derive(Clone, Copy, Debug)]
struct Point {
    mb_per_second: u64,
    tokens_per_second: f64,
    /// A layer.
    slots: usize,
}

/// What guesses make of it.
#[derive(Clone, Copy, Debug)]
struct Found {
    point: Point,
    ratio: f64,
    extra: f64,
    /// Share of the waits that are hidden of those that an oracle hides; `None` when that is next to nothing.
    hidden: Option<f64>,
}

impl Point {
    /// Runs `n_tokens` tokens after `n_warm` that aren't counted.
    fn measure(self, trace: &Trace, n_warm: usize, n_tokens: usize) -> Found {
        let bytes_per_second = self.mb_per_second * 1_000_000;
        let disk = Disk { latency: Nanos::from_micros(100), depth: 2, ..Disk::of_rate(bytes_per_second) };
        let (policy, n_slots) = match self.slots {
            // Two tokens' worth of a layer, so that reads and guesses have somewhere to land.
            0 => (PolicyName::KeepNone, 4 * trace.top_k),
            _ => (PolicyName::default(), self.slots * N_LAYERS),
        };
        let compute = Compute::of_rate(self.tokens_per_second);
        let replay = Replay::of(trace, n_slots, RECORD_BYTES, disk, compute);
        let replay = Replay { n_layers: N_LAYERS, policy, n_warm, n_tokens, ..replay };
        let none = replay.on_demand(trace).unwrap();
        let gated = replay.router_ahead(trace).unwrap();
        let oracle = replay.oracle(trace).unwrap();
        let stall = |report: &ReplayReport| report.stall().as_millis_f64();
        let could = stall(&none) - stall(&oracle);
        Found {
            point: self,
            ratio: gated.ms_per_token() / none.ms_per_token(),
            extra: gated.extra_bytes(),
            hidden: (could > stall(&none) / 100.0).then(|| (stall(&none) - stall(&gated)) / could),
        }
    }
}

impl Found {
    /// Never slower, and within the budget.
    #[track_caller]
    fn check(&self) {
        assert!(self.ratio <= RATIO_MAX, "slower: {self}");
        assert!(self.extra <= EXTRA_MAX, "more bytes than allowed: {self}");
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point: Point { mb_per_second, tokens_per_second, slots }, ratio, extra, hidden } = self;
        write!(f, "{mb_per_second} MB/s, {tokens_per_second} tok/s, {slots} slots a layer: ")?;
        write!(f, "{ratio:.3} of the time, {:.1} % more bytes, ", 100.0 * extra)?;
        match hidden {
            Some(hidden) => write!(f, "{:.0} % hidden", 100.0 * hidden),
            None => write!(f, "nothing to hide"),
        }
    }
}

fn load(name: &str) -> Trace {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", "traces"].iter().collect();
    let read = |extension| std::fs::read(folder.join(name).with_extension(extension)).unwrap();
    Trace::parse(&read("json"), &read("bin")).unwrap()
}

fn grid() -> impl Iterator<Item = Point> {
    let disks_and_rates = MB_PER_SECOND.into_iter().flat_map(|mb| TOKENS_PER_SECOND.map(|rate| (mb, rate)));
    disks_and_rates.flat_map(|(mb_per_second, tokens_per_second)| {
        SLOTS.map(|slots| Point { mb_per_second, tokens_per_second, slots })
    })
}

fn check_grid(name: &str) {
    let trace = load(name);
    for point in grid() {
        point.measure(&trace, 64, 256).check();
    }
}

/// A few of them, for fewer tokens: slow and fast disks and computers, no cache, small and large ones. Whether most of
/// what an oracle hides is hidden: not where slow disks are busy with demands all the time, or fast ones have hardly
/// anything to hide.
const FEW: [(u64, f64, usize, bool); 10] = [
    (300, 5.0, 8, true),
    (300, 50.0, 128, false),
    (600, 20.0, 0, true),
    (600, 10.0, 64, false),
    (1_400, 10.0, 32, true),
    (2_500, 10.0, 0, true),
    (2_500, 50.0, 16, true),
    (4_000, 20.0, 96, true),
    (4_000, 50.0, 64, true),
    (8_000, 5.0, 32, false),
];

fn check_few(points: &[(u64, f64, usize, bool)]) {
    let trace = load("trace-docs");
    for &(mb_per_second, tokens_per_second, slots, hides) in points {
        let found = Point { mb_per_second, tokens_per_second, slots }.measure(&trace, 48, 96);
        found.check();
        let least = if slots < 96 { 0.6 } else { 0.5 };
        let is_hidden = found.hidden.is_some_and(|hidden| hidden >= least);
        assert!(is_hidden || !hides, "less is hidden than {least}: {found}");
    }
}

#[test]
fn guesses_are_never_slower_and_keep_to_their_budget() {
    check_few(&FEW[..5]);
}

#[test]
fn guesses_are_never_slower_and_keep_to_their_budget_on_fast_disks() {
    check_few(&FEW[5..]);
}

#[test]
#[ignore = "minutes"]
fn the_whole_grid_on_texts() {
    check_grid("trace-docs");
}

#[test]
#[ignore = "minutes"]
fn the_whole_grid_on_what_a_model_writes() {
    check_grid("trace-gen");
}

#[test]
#[ignore = "minutes"]
fn the_whole_grid_on_chats() {
    check_grid("trace-chat");
}
