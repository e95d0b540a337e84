//! `forerun verify`: whether a file is whole, or holds the same model as another one.

use std::error::Error;
use std::io::{self, Write};

use forerun_decode::bytes_text;
use forerun_storage::repack::{Checked, Comparison, Difference, Progress, Verification};
use forerun_storage::{Gguf, PackError};
use serde::Serialize;

use crate::Outcome;
use crate::args::{TalkArgs, VerifyArgs};
use crate::interrupt::Interrupt;
use crate::progress::{Bar, Unit};
use crate::say::say;

/// Checks one file, or compares two. Fails when something isn't as it should be.
pub(crate) fn verify(args: &VerifyArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let gguf = Gguf::open(&args.file)?;
    let (checked, kind) = match &args.against {
        None => {
            let mut verification = Verification::new(&gguf)?;
            let kind = if verification.has_checksums() { Kind::Checksums } else { Kind::HeaderOnly };
            if !pull(&mut verification, "verifying", &args.talk, &interrupt)? {
                return Ok(Outcome::Interrupted);
            }
            (verification.checked().clone(), kind)
        }
        Some(path) => {
            let other = Gguf::open(path)?;
            let mut comparison = Comparison::new(&gguf, &other);
            if !pull(&mut comparison, "comparing", &args.talk, &interrupt)? {
                return Ok(Outcome::Interrupted);
            }
            (comparison.checked().clone(), Kind::Comparison)
        }
    };
    tell(args, &checked, kind)?;
    Ok(if checked.n_differences == 0 { Outcome::Done } else { Outcome::Failed })
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// The file has no checksums.
    HeaderOnly,
    Checksums,
    Comparison,
}

/// Work that is done piece by piece.
trait Steps {
    fn progress(&self) -> Progress;
    fn step(&mut self) -> Result<bool, PackError>;
}

impl Steps for Verification<'_> {
    fn progress(&self) -> Progress {
        self.progress()
    }

    fn step(&mut self) -> Result<bool, PackError> {
        self.step()
    }
}

impl Steps for Comparison<'_> {
    fn progress(&self) -> Progress {
        self.progress()
    }

    fn step(&mut self) -> Result<bool, PackError> {
        self.step()
    }
}

/// Works to the end; `false` when interrupted.
fn pull(
    work: &mut dyn Steps,
    title: &'static str,
    talk: &TalkArgs,
    interrupt: &Interrupt,
) -> Result<bool, PackError> {
    let bar = Bar::new(title, Unit::Bytes, work.progress().total_bytes, talk.quiet);
    while work.step()? {
        bar.set(work.progress().done_bytes);
        if interrupt.is_set() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output {
    checked: Kind,
    ok: bool,
    tensors: usize,
    experts: usize,
    bytes: u64,
    differences: Vec<Found>,
    differences_total: usize,
}

#[derive(Serialize)]
struct Found {
    name: String,
    path: String,
    offset_bytes: Option<u64>,
    problem: String,
}

impl From<&Difference> for Found {
    fn from(found: &Difference) -> Self {
        Self {
            name: found.name.clone(),
            path: found.path.display().to_string(),
            offset_bytes: found.offset_bytes,
            problem: found.problem.clone(),
        }
    }
}

fn tell(args: &VerifyArgs, checked: &Checked, kind: Kind) -> Result<(), Box<dyn Error>> {
    let Checked { n_tensors, n_experts, bytes, differences, n_differences } = checked;
    if args.talk.json {
        let output = Output {
            checked: kind,
            ok: *n_differences == 0,
            tensors: *n_tensors,
            experts: *n_experts,
            bytes: *bytes,
            differences: differences.iter().map(Found::from).collect(),
            differences_total: *n_differences,
        };
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, &output)?;
        stdout.write_all(b"\n")?;
        return Ok(());
    }
    for difference in differences {
        say!("{difference}");
    }
    if n_differences > &differences.len() {
        say!("and {} more", n_differences - differences.len());
    }
    let path = args.file.display();
    if *n_differences > 0 {
        say!("{path}: {n_differences} differences");
    } else if !args.talk.quiet {
        let read = bytes_text(*bytes);
        match kind {
            Kind::HeaderOnly => say!(
                "{path}: the header is sound, and each of its {n_tensors} tensors lies whole in the file; \
                 it isn't packed, so it has no checksums: --against SOURCE compares the weights"
            ),
            Kind::Checksums => {
                say!("{path}: the header is sound, and {n_experts} experts ({read}) have their checksums");
            }
            Kind::Comparison => {
                say!(
                    "{path}: every tensor is the same, bit for bit ({read}, {n_experts} experts among them)"
                );
            }
        }
    }
    Ok(())
}
