//! `cargo xtask bench`: what each technique brings on this machine, from reading experts on demand to all of them together.
//!
//! The program itself is measured, as its users run it: every figure comes from `forerun run --json`. Data passes from the
//! command line ([`args`]) to a list of runs ([`rows`], [`plan`]) over files that are made when they are needed ([`files`]); each run
//! ([`mod@run`]) is kept at once ([`journal`]), so that an interrupted measurement goes on; the medians become a table
//! ([`table`]), a JSON file and a picture ([`chart`]).
//!
//! Never here: a model of what a machine would do; that is `forerun plan`.

mod args;
mod cgroup;
mod chart;
mod error;
mod files;
mod inside;
mod journal;
mod machine;
mod peers;
mod plan;
mod programs;
mod rows;
mod run;
mod table;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use args::Args;
use error::BenchError;
use files::Files;
use inside::{INSIDE, InsideArgs};
use journal::{Journal, Key};
use machine::Machine;
use peers::Peer;
use plan::{Plan, Regime};
use programs::Programs;
use rows::{Limit, Row};
use run::{Bed, Outcome};
use table::Report;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let done = if words.nth(1).is_some_and(|word| word == INSIDE) {
        inside::run(&InsideArgs::parse_from(std::env::args_os().skip(1))).map(|figures| print(&figures))
    } else {
        bench(&Args::parse())
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &Args) -> Result<(), BenchError> {
    fs::create_dir_all(&args.out).map_err(|source| BenchError::io("make", &args.out, source))?;
    let machine = Machine::describe();
    let journal = Journal::open(&args.out.join("runs.jsonl"), &args.settings(&machine.commit), args.fresh)?;
    let programs = Programs::build(args)?;
    let peer = Peer::prepare(args, &programs)?;
    let files = Files::new(args, &programs);
    let plan = Plan::new(args);
    let mut bench = Bench { bed: Bed { args, programs: &programs, peer: peer.as_ref() }, files, journal };
    for (regime, round, row) in plan.order() {
        let limit = match regime.limit {
            Limit::None => None,
            Limit::Rate(rate) => Some(rate),
            Limit::Phone => bench.phone(regime)?,
        };
        let (regime, name) = (regime.name.clone(), row.name.clone());
        let said = plan.said(&bench.journal, &regime, row);
        bench.measure(row, Key { regime, row: name, round, limit }, &said)?;
    }
    let report = Report::new(&plan, &bench.journal, &machine);
    write(&args.out.join("bench.json"), &report.json())?;
    write(&args.out.join("bench.md"), &report.markdown())?;
    chart::draw(&report, &args.out.join("bench.svg"))?;
    print(&report.markdown());
    if !args.keep {
        bench.files.remove()?;
    }
    eprintln!("in {}: bench.md, bench.json, bench.svg, and every run in runs.jsonl", args.out.display());
    Ok(())
}

/// A measurement under way.
struct Bench<'a> {
    bed: Bed<'a>,
    files: Files<'a>,
    journal: Journal,
}

impl Bench<'_> {
    /// Runs `row` unless the journal has it, and returns what came of it.
    fn measure(&mut self, row: &Row, key: Key, said: &[u32]) -> Result<Outcome, BenchError> {
        if let Some(outcome) = self.journal.get(&key) {
            return Ok(outcome.clone());
        }
        let model = self.files.path(row.file)?;
        eprintln!("== {} · {} · round {}", key.regime, key.row, key.round + 1);
        let outcome = run::once(self.bed, &model, row, key.limit, said)?;
        self.journal.add(key, &outcome)?;
        Ok(outcome)
    }

    /// The rate at which reading a token's experts takes as many times as long as computing it as in the published measurement.
    /// `None` when either can't be measured.
    fn phone(&mut self, regime: &Regime) -> Result<Option<u64>, BenchError> {
        // Nothing is kept and nothing is missing: any budget says the same.
        let (backend, budget) = (regime.backend.as_str(), regime.budget);
        let key = |row: &Row| {
            let regime = format!("rate of a phone, {backend}");
            Key { regime, row: row.name.clone(), round: 0, limit: None }
        };
        // The rows to come begin with the file of the second.
        let base = Row { budget: Some(budget), ..rows::on_demand(backend) };
        let resident = rows::resident(self.bed.args, backend);
        let computed = self.measure(&resident, key(&resident), &[])?;
        let read = self.measure(&base, key(&base), &[])?;
        let (Outcome::Done(read), Outcome::Done(computed)) = (read, computed) else { return Ok(None) };
        Ok(Some(rows::phone_rate(read.bytes_per_token(), computed.token_seconds())))
    }
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    fs::write(path, text).map_err(|source| BenchError::io("write", path, source))
}

#[expect(clippy::print_stdout, reason = "the table is what was asked for")]
fn print(text: &str) {
    print!("{text}");
}

fn with_causes(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}
