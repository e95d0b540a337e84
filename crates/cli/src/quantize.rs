//! `forerun quantize`: a smaller copy of a model.

mod auto;
mod report;

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::thread;

use forerun_quantize::keys::REPLACED_KEYS;
use forerun_quantize::{
    Encoder, Facts, Imatrix, NamedImatrix, Permissions, Plan, QuantizeError, Recipe, keys,
};
use forerun_storage::Gguf;
use forerun_storage::repack::{self, Experts, Recoding};
use serde::Serialize;

use crate::Outcome;
use crate::args::QuantizeArgs;
use crate::copying::{self, Copied};
use crate::interrupt::Interrupt;
use crate::say::{line, say};
use report::Report;

/// Bytes between two moments at which everything is made safe: encoding them takes far longer than syncing them.
const CHECKPOINT_BYTES: u64 = 32 << 20;

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    /// Absent after a dry run.
    #[serde(flatten)]
    copied: Option<&'a Copied>,
    dry_run: bool,
    #[serde(flatten)]
    report: &'a Report,
}

/// The recipe that is chosen by measurement.
const AUTO: &str = "auto";

/// Writes the copy, or says what it would be.
pub(crate) fn quantize(args: &QuantizeArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let source = Gguf::open(&args.source)?;
    let imatrix = args.imatrix.as_deref().map(Imatrix::open).transpose().map_err(QuantizeError::from)?;
    let permissions = Permissions { requantise: args.requantize, unseen: args.allow_unseen };
    let facts = Facts::of(&source).map_err(QuantizeError::from)?;
    let recipe = if args.recipe.to_str().is_some_and(|name| name.eq_ignore_ascii_case(AUTO)) {
        let chosen = auto::choose(args, &source, facts, imatrix.as_ref(), permissions, &interrupt)?;
        let Some(recipe) = chosen else { return Ok(Outcome::Interrupted) };
        recipe
    } else if args.target_bytes.is_some() {
        return Err(auto::Missing::Recipe.into());
    } else {
        Recipe::open(&args.recipe).map_err(QuantizeError::from)?
    };
    let plan = Plan::new(source.tensors(), facts, &recipe, imatrix.as_ref(), permissions)
        .map_err(QuantizeError::from)?;
    let report = Report::new(&plan, &recipe);
    let n_threads = args.threads.map_or_else(cores, usize::from);
    let encoder = Encoder::new(&plan, facts, imatrix.as_ref(), n_threads);
    let recoding = Recoding {
        experts: experts(args),
        keys: keys(&plan, &recipe, named(args.imatrix.as_deref(), imatrix.as_ref())),
        drops: &REPLACED_KEYS,
        recode: &encoder,
    };
    if args.dry_run {
        // Refuses what the copy would refuse.
        repack::recoded_bytes(&source, &args.target, &recoding)?;
        return dry_run(args, &report);
    }
    let talk = &args.copy.talk;
    let mut settings = copying::settings(&args.copy);
    settings.checkpoint_bytes = settings.checkpoint_bytes.min(CHECKPOINT_BYTES);
    let job = repack::recode(&source, &args.target, &settings, &recoding)?;
    if !talk.quiet {
        report.lines().iter().for_each(|words| line(format_args!("{words}")));
        report.warnings().iter().for_each(|words| say!("{words}"));
    }
    let Some(copied) = copying::pull(job, "quantising", &args.target, talk, &interrupt)? else {
        return Ok(Outcome::Interrupted);
    };
    if talk.json {
        print(&Output { copied: Some(&copied), dry_run: false, report: &report })?;
    } else if !talk.quiet {
        copied.say();
    }
    Ok(Outcome::Done)
}

/// The report is the answer then, so it goes to stdout.
fn dry_run(args: &QuantizeArgs, report: &Report) -> Result<Outcome, Box<dyn Error>> {
    if args.copy.talk.json {
        print(&Output { copied: None, dry_run: true, report })?;
        return Ok(Outcome::Done);
    }
    let mut stdout = io::stdout().lock();
    for words in report.lines() {
        writeln!(stdout, "{words}")?;
    }
    report.warnings().iter().for_each(|words| say!("{words}"));
    Ok(Outcome::Done)
}

fn print(output: &Output<'_>) -> Result<(), Box<dyn Error>> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, output)?;
    Ok(stdout.write_all(b"\n")?)
}

fn experts(args: &QuantizeArgs) -> Experts {
    if args.pack { Experts::Packed } else { Experts::AsSource }
}

/// An importance matrix under the name that the header keeps.
fn named<'a>(path: Option<&'a Path>, imatrix: Option<&'a Imatrix>) -> Option<NamedImatrix<'a>> {
    let file = path?.file_name()?.to_str().unwrap_or("imatrix");
    Some(NamedImatrix { file, imatrix: imatrix? })
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
