//! The project's chores, one flat list; `cargo xtask` shows it. CI runs the same list.
//!
//! A chore is a function that says on stderr what it does, and fails with a [`ChoreError`]. What it checks is decided
//! by pure functions over text, so that each rule has a test which breaks it.
//!
//! Never here: anything that the program itself needs to run.

mod alone;
mod browser;
mod c_api;
mod clients;
mod cross;
mod error;
mod files;
mod fixtures;
mod fuzz;
mod layers;
mod long;
mod memory;
mod msl;
mod picture;
mod process;
mod round_trip;
mod supply;
mod tidy;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use error::ChoreError;
use process::{cargo, run};

/// One chore.
struct Task {
    name: &'static str,
    args: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<(), ChoreError>,
}

const TASKS: &[Task] = &[
    Task { name: "ci", args: "", about: "all that a change must pass; tests come last", run: ci },
    Task {
        name: "tidy",
        args: "",
        about: "rules that no lint knows, layers among them",
        run: |_| tidy::check(),
    },
    Task { name: "layers", args: "", about: "who may depend on whom", run: |_| layers::check() },
    Task {
        name: "fixtures",
        args: "[--from DIR]",
        about: "fixtures are what SHA256SUMS says; or makes them anew from the files in DIR",
        run: fixtures::run,
    },
    Task {
        name: "long",
        args: "",
        about: "every test in release mode, and a minute of fuzzing a target",
        run: |_| long::run(),
    },
    Task {
        name: "round-trip",
        args: "MODEL FOLDER",
        about: "packs and unpacks a model of any size and compares every tensor; --consume needs room for two",
        run: round_trip::run,
    },
    Task {
        name: "browser",
        args: "[--pictures]",
        about: "the server's page in headless Chromium; --pictures makes those of docs anew",
        run: browser::run,
    },
    Task {
        name: "picture",
        args: "",
        about: "the README's animated terminal, made anew by running what it shows",
        run: |_| picture::run(),
    },
    Task {
        name: "supply",
        args: "[PART…]",
        about: "packages of others: licences, advisories, sources (deny's parts, all if none is named), and unused ones",
        run: supply::run,
    },
    Task { name: "fuzz", args: "SECONDS", about: "fuzzes every target for so long", run: fuzz::run },
    Task {
        name: "loom",
        args: "",
        about: "all interleavings of the slots' leases, and of the pool's calls",
        run: |_| long::loom(),
    },
    Task {
        name: "miri",
        args: "",
        about: "the slots' leases and the products' scalar code under an interpreter that sees undefined behaviour",
        run: |_| long::miri(),
    },
    Task {
        name: "tsan",
        args: "",
        about: "leases, reads, scheduler and pool under ThreadSanitizer",
        run: |_| long::tsan(),
    },
    Task {
        name: "alone",
        args: "",
        about: "each layer's example in a workspace of its own, and the packages that the layer brings",
        run: |_| alone::run(),
    },
    Task {
        name: "memory",
        args: "",
        about: "every command in a control group of its budget and a twentieth; Linux, as root",
        run: |_| memory::run(),
    },
    Task {
        name: "clients",
        args: "",
        about: "the official OpenAI and Anthropic clients against the server; needs a network once",
        run: clients::run,
    },
    Task {
        name: "schemathesis",
        args: "",
        about: "requests made from the server's OpenAPI document; needs a network once",
        run: clients::schemathesis,
    },
    Task {
        name: "c-api",
        args: "",
        about: "the C program that tours the C interface under sanitizers, with a nightly the Rust side too",
        run: |_| c_api::run(),
    },
    Task {
        name: "cross",
        args: "[PART…]",
        about: "other systems as far as one machine can prove them: apple, android, windows, arm",
        run: cross::run,
    },
    Task {
        name: "msl",
        args: "",
        about: "the Metal kernels, type-checked and run on this CPU against their twins and the goldens; needs clang",
        run: |_| msl::run(),
    },
    Task {
        name: "bench",
        args: "…",
        about: "what each technique brings on this machine: table, JSON, picture; --help lists the rest",
        run: bench,
    },
    Task {
        name: "benches",
        args: "[FILTER]",
        about: "benchmarks of parts, all or those whose name holds FILTER",
        run: benches,
    },
    Task {
        name: "synth",
        args: "--out FILE …",
        about: "a full-size model with random weights, and its routing's statistics; --help lists the rest",
        run: synth,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let wish = args.first().map_or("", String::as_str);
    let Some(task) = TASKS.iter().find(|task| task.name == wish) else {
        eprint!("{}", usage(TASKS));
        return ExitCode::from(2);
    };
    match (task.run)(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {wish}: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// The quick checks come first, and the tests last: their closing lines are the last that one sees.
fn ci(_: &[String]) -> Result<(), ChoreError> {
    tidy::check()?;
    fixtures::check()?;
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-Dwarnings"))?;
    run(&mut cargo(&["test", "--workspace"]))
}

fn benches(filter: &[String]) -> Result<(), ChoreError> {
    run(cargo(&["bench", "--package", "forerun-benches", "--benches", "--"]).args(filter))
}

fn bench(args: &[String]) -> Result<(), ChoreError> {
    large("xtask-bench", args)
}

fn synth(args: &[String]) -> Result<(), ChoreError> {
    large("xtask-synth", args)
}

/// A chore in a package of its own, with optimisation: it needs the whole engine, and no other chore should wait for that.
/// It runs where the caller is, since it is given paths.
fn large(package: &str, args: &[String]) -> Result<(), ChoreError> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", package, "--"]);
    run(command.args(args).current_dir("."))
}

fn usage(tasks: &[Task]) -> String {
    let lines = tasks.iter().map(|task| {
        let call = format!("{} {}", task.name, task.args);
        format!("  {call:<24}{}\n", task.about)
    });
    std::iter::once("cargo xtask CHORE\n".to_owned()).chain(lines).collect()
}

fn with_causes(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chore_is_listed_once() {
        let usage = usage(TASKS);
        for task in TASKS {
            assert_eq!(usage.matches(&format!("\n  {} ", task.name)).count(), 1, "{}", task.name);
        }
    }

    #[test]
    fn causes_follow_their_effect() {
        let source = std::io::Error::other("no such disk");
        let error = ChoreError::Io { doing: "read", path: "a.json".into(), source };
        assert_eq!(with_causes(&error), "can't read a.json: no such disk");
    }
}
