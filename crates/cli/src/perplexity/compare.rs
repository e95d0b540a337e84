//! `forerun perplexity --kl-base`: how far a model's predictions are from another's.

use std::error::Error;
use std::fs::File;
use std::io::{self, IsTerminal, Seek, Write};
use std::path::{Path, PathBuf};

use forerun_decode::{
    Comparison, DecodeError, Divergence, Engine, EngineConfig, Interval, ModelSource, Outlook, ScoreEvent,
    Telemetry, TextLength, split_budget,
};
use serde::Serialize;

use super::{SAID_EVERY, Sizes, TextError};
use crate::Outcome;
use crate::args::PerplexityArgs;
use crate::interrupt::Interrupt;
use crate::load::{report, warm_up};
use crate::progress::{Bar, Unit};
use crate::say::say;

/// Compares the model of `config` with `base`.
pub(super) fn compare(
    args: &PerplexityArgs,
    config: EngineConfig,
    base: &Path,
    mut text: File,
    interrupt: &Interrupt,
) -> Result<Outcome, Box<dyn Error>> {
    let (path, quiet) = (args.text.as_path(), args.model.quiet);
    let named = |source| BaseError::Open { path: base.to_owned(), source: Box::new(source) };
    let base_config = EngineConfig { model: ModelSource::Path(base.to_owned()), ..config.clone() };
    let [mut model, mut base] = open(config, base_config, named)?;
    if !quiet {
        report(&model, &[]);
        say!("the base:");
        report(&base, &[]);
    }
    let window = model.plan().context;
    let counted = interrupt.while_idle(|| TextLength::of(&text, model.tokenizer(), window));
    let length = counted.map_err(|source| TextError::of(path, source))?;
    text.rewind().map_err(|source| TextError::of(path, DecodeError::ReadText { source }))?;
    if !warm_up(&base, quiet, interrupt) || !warm_up(&model, quiet, interrupt) {
        return Ok(Outcome::Interrupted);
    }
    let mut running = Divergence::new(&mut model, &mut base, text, length)?;
    let is_whole =
        run(&mut running, length, interrupt, quiet).map_err(|source| TextError::failed(path, source))?;
    if !is_whole && !quiet {
        say!("interrupted after {} of {} windows", running.n_windows(), length.n_windows);
    }
    if let Some(comparison) = running.comparison() {
        let sizes = Sizes { ctx: window, windows: running.n_windows(), windows_total: length.n_windows };
        print(args, &comparison, sizes, &running.telemetry())?;
    }
    Ok(if is_whole { Outcome::Done } else { Outcome::Interrupted })
}

/// Looks at both models, splits the budget, and opens them, the base with the model's window.
fn open(
    config: EngineConfig,
    base: EngineConfig,
    named: impl Fn(DecodeError) -> BaseError,
) -> Result<[Engine; 2], Box<dyn Error>> {
    let budget = config.budget_bytes;
    let model = Outlook::new(config)?;
    let context = model.plan(None)?.context;
    let base = Outlook::new(EngineConfig { context: Some(context), ..base }).map_err(&named)?;
    let split = split_budget(budget, &model, &base)?;
    let [of_model, of_base] = split.map_or([None; 2], |parts| parts.map(Some));
    let base = base.open(of_base).map_err(&named)?;
    Ok([model.open(of_model)?, base])
}

/// Runs to the end, or until interrupted: then `false`.
fn run(
    running: &mut Divergence<'_, File>,
    length: TextLength,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<bool, DecodeError> {
    let bar = Bar::new("comparing", Unit::Windows, length.n_windows, quiet);
    let says = !quiet && !io::stderr().is_terminal();
    while !interrupt.is_set() {
        let Some(event) = running.next()? else { return Ok(true) };
        if let (ScoreEvent::Window { n }, Some(kl)) = (event, running.kl()) {
            let words = format!("KL {}", interval(kl, 6));
            if says && n < length.n_windows && (n.is_multiple_of(SAID_EVERY) || n.is_power_of_two()) {
                say!("{n} of {} windows: {words}", length.n_windows);
            }
            bar.set(n);
            bar.say(words);
        }
    }
    Ok(false)
}

/// A base that can't be opened.
#[derive(Debug, thiserror::Error)]
enum BaseError {
    #[error("can't open the base {}", path.display())]
    Open { path: PathBuf, source: Box<DecodeError> },
}

/// A mean and its interval; one window has none.
fn interval(Interval { mean, half_width }: Interval, digits: usize) -> String {
    if half_width.is_finite() {
        format!("{mean:.digits$} ± {half_width:.digits$}")
    } else {
        format!("{mean:.digits$} (one window has no interval)")
    }
}

/// What `--json` prints: intervals as a mean and half a width, which is `null` for one window.
#[derive(Serialize)]
struct Output<'a> {
    perplexity: f64,
    stderr: f64,
    base_perplexity: f64,
    base_stderr: f64,
    tokens: u64,
    kl: f64,
    kl_ci95: f64,
    kl_median: f64,
    kl_p99: f64,
    kl_max: f64,
    top1_agreement: f64,
    top1_agreement_ci95: f64,
    log_probability_difference: f64,
    log_probability_difference_ci95: f64,
    #[serde(flatten)]
    sizes: Sizes,
    #[serde(flatten)]
    telemetry: &'a Telemetry,
    base: &'a Telemetry,
}

fn print(
    args: &PerplexityArgs,
    comparison: &Comparison,
    sizes: Sizes,
    [telemetry, base]: &[Telemetry; 2],
) -> io::Result<()> {
    let Comparison { model, base: of_base, kl, agreement, log_probability, .. } = *comparison;
    let mut stdout = io::stdout().lock();
    if args.json {
        let output = Output {
            perplexity: model.perplexity,
            stderr: model.stderr,
            base_perplexity: of_base.perplexity,
            base_stderr: of_base.stderr,
            tokens: model.n_tokens,
            kl: kl.mean,
            kl_ci95: kl.half_width,
            kl_median: comparison.kl_median,
            kl_p99: comparison.kl_p99,
            kl_max: comparison.kl_max,
            top1_agreement: agreement.mean,
            top1_agreement_ci95: agreement.half_width,
            log_probability_difference: log_probability.mean,
            log_probability_difference_ci95: log_probability.half_width,
            sizes,
            telemetry,
            base,
        };
        serde_json::to_writer(&mut stdout, &output)?;
        return stdout.write_all(b"\n");
    }
    let Sizes { ctx, windows, .. } = sizes;
    let share = Interval { mean: 100.0 * agreement.mean, half_width: 100.0 * agreement.half_width };
    writeln!(
        stdout,
        "{}, over {} tokens in {windows} windows of {ctx}",
        super::words(model),
        model.n_tokens
    )?;
    writeln!(stdout, "the base: {}", super::words(of_base))?;
    writeln!(stdout, "KL(base || model) {}", interval(kl, 6))?;
    let Comparison { kl_median, kl_p99, kl_max, .. } = comparison;
    writeln!(
        stdout,
        "KL of a token: median {kl_median:.6}, 99th percentile {kl_p99:.6}, largest {kl_max:.6}"
    )?;
    writeln!(stdout, "same most probable token {} %", interval(share, 3))?;
    writeln!(stdout, "ln p(model) - ln p(base) {}", interval(log_probability, 6))
}
