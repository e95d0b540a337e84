//! `cargo xtask synth`: models with real geometry and random weights, whose routing is as local and as predictable as
//! a trained model's, so that anyone can measure at full scale without a download.
//!
//! Data passes from the command line ([`args`]) through numbers ([`geometry`], [`knobs`], [`sizes`]) to a list of
//! tensors ([`plan`]), which is streamed to disk ([`mod@write`]). A package of its own, so that the other chores needn't
//! build the engine.
//!
//! Never here: training, or weights that mean anything.

mod args;
mod chance;
mod encode;
mod error;
mod geometry;
mod knobs;
mod measure;
mod model;
mod plan;
mod pool;
mod recipe;
mod report;
mod router;
mod script;
mod sizes;
mod vocabulary;
mod write;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use forerun_decode::bytes_text;

use args::Args;
use error::SynthError;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("synth: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), SynthError> {
    if !args.measure_only {
        let begin = Instant::now();
        let bytes = model::create(args)?;
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("wrote {} to {} in {seconds:.1} s", bytes_text(bytes), args.out.display());
    }
    if args.measure == 0 {
        return Ok(());
    }
    let walk = measure::walk(args, args.measure)?;
    if let Some(path) = &args.trace {
        measure::save(&walk, path)?;
    }
    print(&report::report(&walk)?);
    Ok(())
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
