//! A predictor of one's own against nobody and against the best that one layer ahead allows.
//!
//! `cargo run --release -p forerun-sim --example custom_predictor -- [TRACE [SLOTS [DISK [TOKENS_PER_SECOND]]]]`
//!
//! The first argument is a trace without its ending (`forerun trace` records one of any model), then slots of a
//! layer, a disk's name and the computer's speed with everything in memory. A predictor is one trait with five
//! methods: here [`Transition`], which learns which experts of a layer follow the best expert of the layer before.

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::cmp::Reverse;
use std::collections::HashMap;
use std::{env, fs};

use forerun_sim::disks::DISKS;
use forerun_sim::model::{ExpertId, ExpertKey, LayerId, Routing, Stage};
use forerun_sim::scheduler::{Guess, GuessInput, Predictor, View};
use forerun_sim::{Compute, Disk, Replay, ReplayReport, Trace};

/// Guesses the experts that followed the best expert of the layer before most often.
#[derive(Default)]
struct Transition {
    /// How often an expert followed.
    followed: HashMap<ExpertKey, HashMap<ExpertId, u32>>,
    /// The best expert of the layer that was opened last.
    last: Option<ExpertKey>,
    top_k: usize,
}

impl Predictor for Transition {
    fn name(&self) -> &'static str {
        "transition"
    }

    fn listens(&self, view: View) -> bool {
        view == View { stage: Stage::Early, ahead: 1 }
    }

    fn wants_scores(&self) -> bool {
        false
    }

    fn observe(&mut self, layer: LayerId, routing: &Routing) {
        self.top_k = routing.top_k();
        if let Some(last) = self.last.filter(|last| last.layer.0 + 1 == layer.0) {
            let followed = self.followed.entry(last).or_default();
            routing.experts().for_each(|expert| *followed.entry(expert).or_default() += 1);
        }
        self.last = Some(ExpertKey { layer, expert: routing.row(0)[0].0 });
    }

    fn guess(&mut self, input: &GuessInput<'_>, guesses: &mut Vec<Guess>) {
        let Some(followed) = self.last.and_then(|last| self.followed.get(&last)) else { return };
        let mut best: Vec<_> = followed.iter().map(|(&expert, &n)| (Reverse(n), expert)).collect();
        best.sort_unstable();
        // Each time brought top-k of them.
        let n_times = followed.values().sum::<u32>() as f32 / self.top_k as f32;
        guesses.extend(best.into_iter().take(self.top_k).map(|(Reverse(n), expert)| Guess {
            key: ExpertKey { layer: input.layer, expert },
            probability: n as f32 / n_times,
        }));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/traces/trace-docs");
    let path = args.next().unwrap_or_else(|| folder.to_owned());
    let slots: usize = args.next().map_or(Ok(64), |text| text.parse())?;
    let name = args.next().unwrap_or_else(|| "nvme".to_owned());
    let names = || DISKS.iter().map(|disk| disk.name).collect::<Vec<_>>().join(", ");
    let disk = Disk::named(&name).ok_or_else(|| format!("no disk `{name}`; there are {}", names()))?;
    let rate: f64 = args.next().map_or(Ok(20.0), |text| text.parse())?;

    let trace = Trace::parse(&fs::read(format!("{path}.json"))?, &fs::read(format!("{path}.bin"))?)?;
    // The layers of a 35B-A3B model, and its experts at three and a half bits.
    let replay = Replay::of(&trace, slots * 40, 1_350_000, disk, Compute::of_rate(rate));
    let replay = Replay { n_layers: 40, ..replay };
    println!(
        "{} tokens of 40 layers, {slots} slots each, disk {name}, {rate} tok/s in memory",
        replay.n_tokens
    );
    println!("predictor      tok/s    hits  recall  precision  MB a token  wasted  overlap");
    row("none", replay.on_demand(&trace)?);
    row("router-ahead", replay.router_ahead(&trace)?);
    row("transition", replay.run(&trace, Box::new(Transition::default()))?);
    row("oracle", replay.oracle(&trace)?);
    Ok(())
}

fn row(name: &str, report: ReplayReport) {
    println!(
        "{name:12}  {:6.2}  {:5.1}%  {:5.1}%  {:8.1}%  {:10.1}  {:5.1}%  {:6.1}%",
        report.tokens_per_second(),
        100.0 * report.stats.hit_rate(),
        100.0 * report.recall(),
        100.0 * report.precision(),
        report.bytes_per_token() / 1e6,
        100.0 * report.extra_bytes(),
        100.0 * report.overlap_efficiency(),
    );
}
