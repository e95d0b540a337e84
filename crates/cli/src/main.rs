//! The program `forerun`: arguments in, text out.
//!
//! The answer goes to stdout as it is made; thoughts, progress, decisions and errors go to stderr. Exit codes: 0 ok,
//! 1 failure, 2 usage, 130 interrupted; `serve` leaves with 0 when it is asked to stop.

mod answer;
mod args;
mod bench;
mod chat;
mod copying;
mod embedded;
mod imatrix;
mod inspect;
mod interrupt;
mod load;
mod pack;
mod perplexity;
mod plan;
mod pressure;
mod probe;
mod progress;
mod pull;
mod quantize;
mod run;
mod say;
mod serve;
mod settings;
mod shell;
mod trace;
mod verify;

use std::error::Error;
use std::process::ExitCode;

use args::Command;
use say::say;

/// How a command ended, if not by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The command did its work and found what it looked for: said already.
    Failed,
    Interrupted,
}

fn main() -> ExitCode {
    let args = settings::parse();
    let result = match &args.command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::chat(args),
        Command::Serve(args) => serve::serve(args),
        Command::Perplexity(args) => perplexity::perplexity(args),
        Command::Imatrix(args) => imatrix::imatrix(args),
        Command::Bench(args) => bench::bench(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Pack(args) => pack::pack(args),
        Command::Unpack(args) => pack::unpack(args),
        Command::Quantize(args) => quantize::quantize(args),
        Command::Verify(args) => verify::verify(args),
        Command::Pull(args) => pull::pull(args),
        Command::Probe(args) => probe::run(args),
        Command::Trace(args) => trace::trace(args),
        Command::Plan(args) => plan::plan(args),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(args),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Interrupted) => ExitCode::from(130),
        Err(error) if is_closed_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            say!("{}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, on one line each where they are long.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

/// Whether the reader of our output went away, which is no failure of ours.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::BrokenPipe;
        }
        cause = error.source();
    }
    false
}
