//! One run of the program, and its figures.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::cgroup::Cgroup;
use crate::error::BenchError;
use crate::programs::{Programs, shown};
use crate::rows::{Row, Work};

/// Characters of a text that are a token's worth, about.
const CHARS_PER_TOKEN: usize = 4;

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// Its figures.
    Done(Sample),
    /// Why there are none, as where a budget is too small for so many slots: the other rows are measured all the same.
    Refused(String),
}

/// What `forerun run --json` says, as far as tables need it. Times in milliseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Sample {
    pub(crate) prompt_tokens: u64,
    pub(crate) prompt_ms: f64,
    pub(crate) decode_tokens: u64,
    pub(crate) tokens_per_second: f64,
    pub(crate) bytes_demand: u64,
    pub(crate) bytes_guess: u64,
    pub(crate) hit_rate: f64,
    pub(crate) overlap_efficiency: Option<f64>,
    pub(crate) disk_rate: Option<u64>,
    pub(crate) memory: Memory,
    /// The answer, to be compared.
    pub(crate) tokens: Vec<u32>,
    /// What made it.
    #[serde(default)]
    pub(crate) command: String,
}

/// Of the memory plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Memory {
    pub(crate) peak: Option<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "figures of tables")]
impl Sample {
    /// Bytes read for each token of prompt and answer.
    pub(crate) fn bytes_per_token(&self) -> f64 {
        let n_tokens = (self.prompt_tokens + self.decode_tokens).max(1);
        (self.bytes_demand + self.bytes_guess) as f64 / n_tokens as f64
    }

    /// Time of a decoded token.
    pub(crate) fn token_seconds(&self) -> f64 {
        1.0 / self.tokens_per_second.max(1e-9)
    }

    /// Tokens of the prompt a second.
    pub(crate) fn prompt_rate(&self) -> f64 {
        self.prompt_tokens as f64 * 1e3 / self.prompt_ms.max(1e-9)
    }
}

/// Runs `row` on `model`.
///
/// # Errors
/// [`BenchError`] when the program can't be started or prints something else than its figures.
pub(crate) fn once(
    args: &Args,
    programs: &Programs,
    model: &Path,
    row: &Row,
    limit: Option<u64>,
) -> Result<Outcome, BenchError> {
    let mut command = command(args, programs, model, row, limit)?;
    let group = match row.budget.filter(|_| args.cgroup) {
        Some(budget) => Some(Cgroup::new(budget + budget / 20)?),
        None => None,
    };
    let shown = shown(&command);
    if let Some(group) = &group {
        command = group.around(&command);
    }
    let output =
        command.output().map_err(|source| BenchError::NotStarted { command: shown.clone(), source })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        eprintln!("{shown} failed: {}; {said}", output.status);
        return Ok(Outcome::Refused(said.lines().next().unwrap_or("it said nothing").to_owned()));
    }
    let sample: Sample = serde_json::from_slice(&output.stdout)
        .map_err(|source| BenchError::Figures { command: shown.clone(), source })?;
    Ok(Outcome::Done(Sample { command: shown, ..sample }))
}

fn command(
    args: &Args,
    programs: &Programs,
    model: &Path,
    row: &Row,
    limit: Option<u64>,
) -> Result<Command, BenchError> {
    let (n_prompt, n_tokens) = match row.work {
        Work::Decode => (args.prompt, args.tokens),
        Work::Prefill => (args.prefill, 1),
    };
    let mut command = Command::new(&programs.forerun);
    command.arg("run").arg("-m").arg(model).args(["--json", "--quiet", "--raw", "--temp", "0"]);
    command.args(["-n", &n_tokens.to_string(), "--ctx", &context(n_prompt, n_tokens).to_string()]);
    command.args(&row.flags);
    if let Some(budget) = row.budget {
        command.args(["--memory", &format!("{budget}B")]);
    }
    if let (Some(limit), true) = (limit, row.budget.is_some()) {
        command.args(["--disk-limit", &format!("{limit}B/s")]);
    }
    if let Some(threads) = args.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    command.arg(format!("--prompt={}", prompt(args, programs, n_prompt as usize)?));
    Ok(command)
}

/// Room for the tokens, also where those of the prompt are shorter than thought.
fn context(n_prompt: u32, n_tokens: u32) -> u32 {
    (n_prompt + n_prompt / 2 + n_tokens + 64).next_multiple_of(64)
}

/// The synthetic script's beginning, or that of a text.
fn prompt(args: &Args, programs: &Programs, n_tokens: usize) -> Result<String, BenchError> {
    if args.synth.is_some() {
        return Ok((0..n_tokens).fold(String::new(), |mut text, i| {
            let _ = write!(text, "<|s{i:04}|>");
            text
        }));
    }
    let path = args.text.clone().unwrap_or_else(|| programs.fixture("heldout.txt"));
    let text = fs::read_to_string(&path).map_err(|source| BenchError::io("read", &path, source))?;
    Ok(text.chars().take(n_tokens * CHARS_PER_TOKEN).collect())
}
