//! One run of the program, and its figures.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::cgroup::Cgroup;
use crate::error::BenchError;
use crate::inside::INSIDE;
use crate::peers::Peer;
use crate::programs::{Programs, shown};
use crate::rows::{By, Row, Work};

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
    pub(crate) bytes_wasted: u64,
    pub(crate) bytes_decode: u64,
    pub(crate) bytes_decode_used: u64,
    /// Not known of others.
    pub(crate) hit_rate: Option<f64>,
    pub(crate) overlap_efficiency: Option<f64>,
    pub(crate) disk_rate: Option<u64>,
    pub(crate) tokens_per_step: f64,
    pub(crate) memory: Memory,
    /// The answer, to be compared.
    pub(crate) tokens: Vec<u32>,
    /// What else there is to say of it.
    #[serde(default)]
    pub(crate) note: Option<String>,
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
    /// Bytes read for each token of the answer; no step reads the last one.
    pub(crate) fn bytes_per_token(&self) -> f64 {
        self.bytes_decode as f64 / self.decode_tokens.saturating_sub(1).max(1) as f64
    }

    /// Those of them that were used.
    pub(crate) fn useful_bytes_per_token(&self) -> f64 {
        self.bytes_decode_used as f64 / self.decode_tokens.saturating_sub(1).max(1) as f64
    }

    /// Bytes read for each token of the prompt.
    pub(crate) fn bytes_per_prompt_token(&self) -> f64 {
        let bytes = (self.bytes_demand + self.bytes_guess).saturating_sub(self.bytes_decode);
        bytes as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Those of them that were used; of bytes read in vain, those that no decode step read were the prompt's.
    pub(crate) fn useful_bytes_per_prompt_token(&self) -> f64 {
        let decode_wasted = self.bytes_decode.saturating_sub(self.bytes_decode_used);
        let wasted = self.bytes_wasted.saturating_sub(decode_wasted);
        self.bytes_per_prompt_token() - wasted as f64 / self.prompt_tokens.max(1) as f64
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

/// What runs need besides their row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bed<'a> {
    pub(crate) args: &'a Args,
    pub(crate) programs: &'a Programs,
    pub(crate) peer: Option<&'a Peer>,
}

/// Runs `row` on `model`; `said` is the answer where another row gave it already, and `limit` in bytes a second.
///
/// # Errors
/// [`BenchError`] when the program can't be started or prints something else than its figures.
pub(crate) fn once(
    bed: Bed<'_>,
    model: &Path,
    row: &Row,
    limit: Option<u64>,
    said: &[u32],
) -> Result<Outcome, BenchError> {
    let Some(mut command) = bed.command(model, row, limit, said)? else {
        return Ok(Outcome::Refused("no other row gave it tokens to read".into()));
    };
    let group = match row.budget.filter(|_| bed.args.cgroup) {
        Some(budget) => {
            // What others brought into the page cache would cost the group nothing.
            forget(model)?;
            Some(Cgroup::new(budget + budget / 20)?)
        }
        None => None,
    };
    let shown = shown(&command);
    if let Some(group) = &group {
        command = group.around(&command);
    }
    let output =
        command.output().map_err(|source| BenchError::NotStarted { command: shown.clone(), source })?;
    if !output.status.success() {
        // Others say a thousand lines before they say why.
        let said = String::from_utf8_lossy(&output.stderr);
        let why = match row.by {
            By::Peer(_) => said.lines().last(),
            By::Program | By::Inside => said.lines().next(),
        };
        let why = format!("{}: {}", output.status, why.unwrap_or("it said nothing"));
        eprintln!("{shown} failed: {why}");
        return Ok(Outcome::Refused(why));
    }
    let sample: Sample = serde_json::from_slice(&output.stdout)
        .map_err(|source| BenchError::Figures { command: shown.clone(), source })?;
    Ok(Outcome::Done(Sample { command: shown, ..sample }))
}

/// Asks the system to drop a file's pages.
fn forget(model: &Path) -> Result<(), BenchError> {
    #[cfg(target_os = "linux")]
    {
        let file = fs::File::open(model).map_err(|source| BenchError::io("open", model, source))?;
        // Pages that aren't on the disk yet would stay.
        file.sync_all().map_err(|source| BenchError::io("write out", model, source))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| BenchError::io("drop from the page cache", model, error.into()))?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = model;
    Ok(())
}

impl Bed<'_> {
    /// Tokens of prompt and answer.
    fn sizes(&self, row: &Row) -> (u32, u32) {
        match row.work {
            Work::Decode => (self.args.prompt, self.args.tokens),
            Work::Prefill => (self.args.prefill, 1),
        }
    }

    /// `None` for a row that must be given tokens where there are none.
    fn command(
        &self,
        model: &Path,
        row: &Row,
        limit: Option<u64>,
        said: &[u32],
    ) -> Result<Option<Command>, BenchError> {
        let (n_prompt, _) = self.sizes(row);
        let prompt = prompt(self.args, self.programs, n_prompt as usize)?;
        let mut command = match (row.by, self.peer) {
            (By::Program, _) => self.program(model, row, limit, &prompt),
            (By::Inside, _) => self.inside(model, row, limit, &prompt)?,
            (By::Peer(keeping), Some(peer)) => {
                let n = if row.work == Work::Prefill { 0 } else { self.args.peer_tokens as usize };
                if said.len() < n {
                    return Ok(None);
                }
                peer.command(model, keeping, self.args.threads, &prompt, &said[..n])
            }
            (By::Peer(_), None) => return Ok(None),
        };
        if let (By::Program | By::Inside, Some(threads)) = (row.by, self.args.threads) {
            command.args(["--threads", &threads.to_string()]);
        }
        if row.by == By::Inside {
            command.args(&row.flags);
        }
        // One probe of the disk for all.
        command.env("XDG_CACHE_HOME", self.caches());
        Ok(Some(command))
    }

    fn caches(&self) -> PathBuf {
        let caches = self.args.out.join("cache");
        std::path::absolute(&caches).unwrap_or(caches)
    }

    fn program(&self, model: &Path, row: &Row, limit: Option<u64>, prompt: &str) -> Command {
        let (n_prompt, n_tokens) = self.sizes(row);
        let mut command = Command::new(&self.programs.forerun);
        command.arg("run").arg("-m").arg(model).args(["--json", "--quiet", "--raw", "--temp", "0"]);
        command.args(["-n", &n_tokens.to_string(), "--ctx", &context(n_prompt, n_tokens).to_string()]);
        // Or what is measured is how fast the system clears memory, which on rented machines is no faster than a disk.
        command.arg("--touch-slots");
        command.args(&row.flags);
        if let Some(budget) = row.budget {
            command.args(["--memory", &format!("{budget}B")]);
        }
        if let (Some(limit), true) = (limit, row.budget.is_some()) {
            command.args(["--disk-limit", &format!("{limit}B/s")]);
        }
        command.arg(format!("--prompt={prompt}"));
        command
    }

    fn inside(
        &self,
        model: &Path,
        row: &Row,
        limit: Option<u64>,
        prompt: &str,
    ) -> Result<Command, BenchError> {
        let (n_prompt, n_tokens) = self.sizes(row);
        let this = env::current_exe().map_err(|source| BenchError::io("find", Path::new(INSIDE), source))?;
        let mut command = Command::new(this);
        command.arg(INSIDE).arg("--model").arg(model).arg(format!("--prompt={prompt}"));
        command.args(["--tokens", &n_tokens.to_string(), "--ctx", &context(n_prompt, n_tokens).to_string()]);
        if let Some(budget) = row.budget {
            command.args(["--memory", &format!("{budget}B")]);
        }
        if let (Some(limit), true) = (limit, row.budget.is_some()) {
            command.args(["--disk-limit", &limit.to_string()]);
        }
        command.arg("--probes").arg(self.caches().join("forerun"));
        Ok(command)
    }
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
