//! Where drafts pay: the rule for their length against no drafts and fixed lengths, machine by machine.
//!
//! `cargo run --release -p forerun-sim --example drafts -- [TRACE [TOKENS [each]]]`
//!
//! TRACE is a trace without its ending; `each` prints every run. A row is one disk, computer and cache, over drafters of six
//! kinds, with confidences and without, and two prices of a row.

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::{env, fs};

use forerun_model::Nanos;
use forerun_scheduler::{DraftConfig, PolicyName, RouterAhead};
use forerun_sim::{Acceptance, Compute, Confidence, Disk, Lengths, Replay, RunError, Speculation, Trace};

type Failure = Box<dyn std::error::Error>;

/// MB/s of the disk, tokens a second of the computer, slots a layer of 256 experts.
const MACHINES: [(u64, f64, usize); 9] = [
    (300, 5.0, 8),
    (600, 20.0, 0),
    (600, 10.0, 64),
    (1_400, 10.0, 32),
    (1_400, 20.0, 128),
    (2_500, 10.0, 96),
    (4_000, 50.0, 64),
    (8_000, 5.0, 32),
    (8_000, 20.0, 256),
];
const LENGTHS: [usize; 4] = [1, 2, 4, 7];
/// Bytes of all experts of a token, of a 35B-A3B model at three and a half bits.
const TOKEN_BYTES: u64 = 40 * 8 * 1_350_000;

const ACCEPTANCES: [Acceptance; 6] = [
    Acceptance::Flat(0.3),
    Acceptance::Flat(0.5),
    Acceptance::Flat(0.7),
    Acceptance::Flat(0.9),
    Acceptance::Each([0.50, 0.69, 0.83, 0.88, 0.93, 0.90, 0.87]),
    Acceptance::Bursts { high: 0.9, low: 0.3, tokens: 64 },
];

/// What became of one machine's runs.
#[derive(Default)]
struct Row {
    n: usize,
    worst: f64,
    /// Runs in which a fixed length wins 5 %, in which the rule is faster too, and both gains.
    could: usize,
    did: usize,
    gain_best: f64,
    gain_rule: f64,
}

fn machine(trace: &Trace, (mb, rate, slots): (u64, f64, usize), n_tokens: usize) -> Replay {
    let disk = Disk { latency: Nanos::from_micros(100), depth: 2, ..Disk::of_rate(mb * 1_000_000) };
    let (policy, n_slots) = match slots {
        0 => (PolicyName::KeepNone, 4 * trace.top_k),
        _ => (PolicyName::default(), (slots * trace.n_experts / 256).max(1) * trace.n_layers),
    };
    let record_bytes = TOKEN_BYTES / (trace.n_layers * trace.top_k) as u64;
    let replay = Replay::of(trace, n_slots, record_bytes, disk, Compute::of_rate(rate));
    Replay { policy, n_warm: 128, n_tokens, ..replay }
}

fn main() -> Result<(), Failure> {
    let mut args = env::args().skip(1);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/traces/trace-docs");
    let path = args.next().unwrap_or_else(|| folder.to_owned());
    let n_tokens = args.next().map_or(Ok(512), |n| n.parse())?;
    let each = args.next().is_some();
    let trace = Trace::parse(&fs::read(format!("{path}.json"))?, &fs::read(format!("{path}.bin"))?)?;
    println!(
        "| GB/s | tok/s | slots | ms a token | runs | slowest | could gain 5 % | faster | gain of the best | of the rule |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for point in MACHINES {
        let replay = machine(&trace, point, n_tokens);
        let none = run(&replay, &trace, &Speculation::default(), Lengths::Fixed(0))?;
        let mut row = Row::default();
        for acceptance in ACCEPTANCES {
            for row_growth in [0.1, 0.5] {
                let speculation = Speculation { acceptance, row_growth, ..Speculation::default() };
                row.add(&replay, &trace, speculation, none, each)?;
            }
        }
        let (mb, rate, slots) = point;
        let mean = |sum: f64| {
            if row.could == 0 { "–".to_owned() } else { format!("{:.0} %", 100.0 * sum / row.could as f64) }
        };
        println!(
            "| {:.1} | {rate:.0} | {slots} | {none:.1} | {} | {:.3} | {} | {} | {} | {} |",
            mb as f64 / 1e3,
            row.n,
            row.worst,
            row.could,
            row.did,
            mean(row.gain_best),
            mean(row.gain_rule),
        );
    }
    Ok(())
}

fn run(replay: &Replay, trace: &Trace, speculation: &Speculation, lengths: Lengths) -> Result<f64, RunError> {
    let report = replay.speculate(trace, speculation, lengths, Box::new(RouterAhead::default()))?;
    Ok(report.ms_per_token())
}

impl Row {
    fn add(
        &mut self,
        replay: &Replay,
        trace: &Trace,
        speculation: Speculation,
        none: f64,
        each: bool,
    ) -> Result<(), RunError> {
        let fixed = LENGTHS
            .into_iter()
            .map(|n| run(replay, trace, &speculation, Lengths::Fixed(n)))
            .collect::<Result<Vec<_>, _>>()?;
        let best = fixed.iter().copied().fold(none, f64::min);
        for confidence in [Confidence::Absent, Confidence::Said { bias: 1.0, noise: 1.0 }] {
            let rate = replay.disk.bytes_per_second as f64;
            let config = DraftConfig { disk_bytes_per_second: Some(rate), ..DraftConfig::default() };
            let ruled =
                run(replay, trace, &Speculation { confidence, ..speculation }, Lengths::Rule(config))?;
            self.n += 1;
            self.worst = self.worst.max(ruled / none);
            if best < 0.95 * none {
                self.could += 1;
                self.did += usize::from(ruled < none);
                self.gain_best += none / best - 1.0;
                self.gain_rule += none / ruled - 1.0;
            }
            if each {
                let Speculation { acceptance, row_growth, .. } = speculation;
                let fixed: Vec<_> = fixed.iter().map(|ms| format!("{:.2}", ms / none)).collect();
                let fixed = fixed.join(" ");
                println!("{:.3} [{fixed}] {acceptance:?}, {row_growth} a row, {confidence:?}", ruled / none);
            }
        }
        Ok(())
    }
}
