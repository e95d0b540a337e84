//! `forerun perplexity`: how well a model predicts a text.

mod compare;

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Seek, Write};
use std::path::Path;

use forerun_decode::perplexity::{LOGIT_ROWS, WINDOW_DEFAULT};
use forerun_decode::{DecodeError, Engine, Estimate, Perplexity, ScoreEvent, Telemetry, TextLength};
use serde::Serialize;

use crate::Outcome;
use crate::args::PerplexityArgs;
use crate::interrupt::Interrupt;
use crate::load::{engine_config, report, warm_up};
use crate::pressure;
use crate::progress::{Bar, Unit};
use crate::say::say;

/// Where nobody watches a bar, the estimate is said after the first windows and then every so many.
const SAID_EVERY: u64 = 16;

/// Scores a text.
pub(crate) fn perplexity(args: &PerplexityArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    // Before the model, which takes longer to open.
    let path = args.text.as_path();
    let mut text = open(path)?;
    let mut model = args.model.clone();
    model.model = model.model.or_else(|| args.file.clone());
    let mut config = engine_config(&model)?;
    (config.context_default, config.logit_rows) = (WINDOW_DEFAULT, LOGIT_ROWS);
    if let Some(base) = &args.kl_base {
        return compare::compare(args, config, base, text, &interrupt);
    }
    let mut engine = Engine::open(&config)?;
    let quiet = args.model.quiet;
    pressure::watch(&mut engine, quiet);
    if !quiet {
        report(&engine, &[]);
    }
    let window = engine.plan().context;
    let counted = interrupt.while_idle(|| TextLength::of(&text, engine.tokenizer(), window));
    let length = counted.map_err(|source| TextError::of(path, source))?;
    if !warm_up(&engine, quiet, &interrupt) {
        return Ok(Outcome::Interrupted);
    }
    text.rewind().map_err(|source| TextError::of(path, DecodeError::ReadText { source }))?;
    let mut scoring = Perplexity::new(&mut engine, text, length);
    let is_whole =
        score(&mut scoring, length, &interrupt, quiet).map_err(|source| TextError::failed(path, source))?;
    if !is_whole && !quiet {
        say!("interrupted after {} of {} windows", scoring.n_windows(), length.n_windows);
    }
    if let Some(estimate) = scoring.estimate() {
        let sizes = Sizes { ctx: window, windows: scoring.n_windows(), windows_total: length.n_windows };
        print(args, estimate, sizes, &scoring.telemetry())?;
    }
    Ok(if is_whole { Outcome::Done } else { Outcome::Interrupted })
}

/// Runs to the end, or until interrupted: then `false`.
fn score(
    scoring: &mut Perplexity<'_, File>,
    length: TextLength,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<bool, DecodeError> {
    let bar = Bar::new("scoring", Unit::Windows, length.n_windows, quiet);
    let says = !quiet && !io::stderr().is_terminal();
    while !interrupt.is_set() {
        let Some(event) = scoring.next()? else { return Ok(true) };
        if let (ScoreEvent::Window { n }, Some(estimate)) = (event, scoring.estimate()) {
            let words = words(estimate);
            if says && n < length.n_windows && (n.is_multiple_of(SAID_EVERY) || n.is_power_of_two()) {
                say!("{n} of {} windows: {words}", length.n_windows);
            }
            bar.set(n);
            bar.say(words);
        }
    }
    Ok(false)
}

fn words(Estimate { perplexity, stderr, .. }: Estimate) -> String {
    format!("perplexity {perplexity:.4} ± {stderr:.4}")
}

/// A text that can't be scored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextError {
    /// It is read twice, which a pipe can't be.
    #[error("can't read {path}: it isn't a regular file, and a text is read twice; save it to a file first")]
    NotAFile { path: String },
    #[error("can't read {path}")]
    Text { path: String, source: Box<DecodeError> },
}

impl TextError {
    pub(crate) fn of(path: &Path, source: DecodeError) -> Self {
        Self::Text { path: path.display().to_string(), source: Box::new(source) }
    }

    /// An error of a run over the text `path`, which is named if it is to blame.
    pub(crate) fn failed(path: &Path, source: DecodeError) -> Box<dyn Error> {
        match source {
            DecodeError::TextChanged { .. } | DecodeError::ReadText { .. } | DecodeError::NotUtf8 { .. } => {
                Self::of(path, source).into()
            }
            source => source.into(),
        }
    }
}

/// Opens a text that is to be read twice.
pub(crate) fn open(path: &Path) -> Result<File, TextError> {
    let refused = |source| TextError::of(path, DecodeError::ReadText { source });
    // Asked before opening, since opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(refused)?.is_file() {
        return Err(TextError::NotAFile { path: path.display().to_string() });
    }
    File::open(path).map_err(refused)
}

#[derive(Clone, Copy, Serialize)]
struct Sizes {
    ctx: usize,
    windows: u64,
    windows_total: u64,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    perplexity: f64,
    stderr: f64,
    tokens: u64,
    #[serde(flatten)]
    sizes: Sizes,
    #[serde(flatten)]
    telemetry: &'a Telemetry,
}

fn print(args: &PerplexityArgs, estimate: Estimate, sizes: Sizes, telemetry: &Telemetry) -> io::Result<()> {
    let Estimate { perplexity, stderr, n_tokens: tokens } = estimate;
    let mut stdout = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &Output { perplexity, stderr, tokens, sizes, telemetry })?;
        return stdout.write_all(b"\n");
    }
    let Sizes { ctx, windows, windows_total } = sizes;
    let of_all = if windows < windows_total { format!(" of {windows_total}") } else { String::new() };
    writeln!(stdout, "{} over {tokens} tokens in {windows}{of_all} windows of {ctx}", words(estimate))
}
