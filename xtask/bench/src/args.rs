//! The command line.

use std::path::PathBuf;

use clap::Parser;
use forerun_decode::parse_bytes;

use crate::rows::{Limit, parse_limit};

/// Measures what each technique brings, from reading experts on demand to all of them together, and what memory brings.
///
/// Without --model or --synth the small model of the fixtures is measured, within 20 MiB. Rows are run in turn, round after
/// round, and the medians reported. What was measured is kept in --out, and the same command goes on from there.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench", max_term_width = 100)]
pub(crate) struct Args {
    /// A model in its usual quantisation, such as Q4_K_M
    #[arg(long, value_name = "FILE", conflicts_with = "synth")]
    pub(crate) model: Option<PathBuf>,

    /// The same model with experts in fewer bits, such as `forerun quantize --recipe les` makes; adds the row of mixed precision
    #[arg(long, value_name = "FILE", requires = "model")]
    pub(crate) mixed: Option<PathBuf>,

    /// Makes the models: real geometry, random weights, routing as predictable as a trained model's; `cargo xtask synth --help`
    /// lists the shapes
    #[arg(long, value_name = "SHAPE")]
    pub(crate) synth: Option<String>,

    /// Layers of the synthetic model; default: the shape's
    #[arg(long, value_name = "N", requires = "synth")]
    pub(crate) layers: Option<usize>,

    /// Where models are made, on the disk to be measured
    #[arg(long, value_name = "FOLDER", default_value = "target/bench/models")]
    pub(crate) folder: PathBuf,

    /// Keeps one made file at a time where disk is short: rows of one file are measured together
    #[arg(long)]
    pub(crate) one_at_a_time: bool,

    /// Budgets, each a table of its own; default: for the small model 20MiB, or 64MiB with candle; else 4GiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) memory: Vec<u64>,

    /// Disks to stand for: none, rates such as 1GB/s, or phone: the rate at which reading takes 250 ms where computing takes 46
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_value = "none", value_parser = parse_limit)]
    pub(crate) disk_limit: Vec<Limit>,

    /// What computes: cpu, candle (its CPU), metal, cuda; default: cpu, and metal on a Mac
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = ["cpu", "candle", "metal", "cuda"])]
    pub(crate) backend: Vec<String>,

    /// A DSpark drafter, ngram or mtp; adds the row of drafts. Not with --synth: its script would make drafts perfect
    #[arg(long, value_name = "DRAFTER", conflicts_with = "synth")]
    pub(crate) draft: Option<String>,

    /// Also measures llama.cpp over the same file and tokens; builds it from its Python package first (Linux, Python, a C++
    /// compiler)
    #[arg(long)]
    pub(crate) peers: bool,

    /// Where that is built
    #[arg(long, value_name = "FOLDER", default_value = "target/bench/peers")]
    pub(crate) peers_folder: PathBuf,

    /// Tokens that it decodes: mapped experts that don't fit cost it seconds each
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) peer_tokens: u32,

    /// Rows to measure, by parts of their names; default: all. Factors are over the first of them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) rows: Vec<String>,

    /// Experts kept per layer, each a row of its own, such as 0,8,16,32,64,96,128
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) slots: Vec<usize>,

    /// Tokens of the prompt of a run that decodes
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) prompt: u32,

    /// Tokens decoded
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=2048))]
    pub(crate) tokens: u32,

    /// Tokens of the long prompt that the whole engine reads; 0 for none
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) prefill: u32,

    /// Rounds over all rows
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,

    /// Threads that compute; default: one per core. candle has its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// A text whose beginning is the prompt; default: the fixtures' held-out text
    #[arg(long, value_name = "FILE", conflicts_with = "synth")]
    pub(crate) text: Option<PathBuf>,

    /// Runs each row in a control group of the budget and a twentieth, with the page cache that it fills itself (Linux, as root)
    #[arg(long)]
    pub(crate) cgroup: bool,

    /// Where the table, the picture, the JSON and the journal go
    #[arg(long, value_name = "FOLDER", default_value = "target/bench/out")]
    pub(crate) out: PathBuf,

    /// Leaves the model files that were made, for a next measurement with the same --folder
    #[arg(long)]
    pub(crate) keep: bool,

    /// Forgets what was measured before
    #[arg(long)]
    pub(crate) fresh: bool,
}

impl Args {
    /// Budgets in bytes.
    pub(crate) fn budgets(&self) -> Vec<u64> {
        let is_small = self.model.is_none() && self.synth.as_deref().is_none_or(|shape| shape == "pico");
        let copies = self.backends().iter().any(|backend| backend != "cpu");
        match self.memory.as_slice() {
            // candle has copies of the weights and more tensors under way.
            [] if is_small && copies => vec![64 << 20],
            [] if is_small => vec![20 << 20],
            [] => vec![4 << 30],
            given => given.to_vec(),
        }
    }

    /// What computes.
    pub(crate) fn backends(&self) -> Vec<String> {
        match self.backend.as_slice() {
            [] if cfg!(target_os = "macos") => vec!["cpu".into(), "metal".into()],
            [] => vec!["cpu".into()],
            given => given.to_vec(),
        }
    }

    /// What the journal's runs have in common: a run of other settings, of another build, or of another file is another measurement.
    pub(crate) fn settings(&self, commit: &str) -> String {
        let path =
            |path: &Option<PathBuf>| path.as_ref().map_or("-".into(), |path| path.display().to_string());
        let or = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        format!(
            "commit {commit} folder {} model {} mixed {} synth {} layers {} prompt {} tokens {} prefill {} threads {} text {} \
             cgroup {} draft {} peer tokens {}",
            self.folder.display(),
            path(&self.model) + &stamp(&self.model),
            path(&self.mixed) + &stamp(&self.mixed),
            or(self.synth.clone()),
            or(self.layers.map(|n| n.to_string())),
            self.prompt,
            self.tokens,
            self.prefill,
            or(self.threads.map(|n| n.to_string())),
            path(&self.text),
            self.cgroup,
            or(self.draft.clone()),
            self.peer_tokens,
        )
    }
}

/// A file's length and time, which tell it from what may take its place.
pub(crate) fn stamp(path: &Option<PathBuf>) -> String {
    let Some(metadata) = path.as_ref().and_then(|path| path.metadata().ok()) else { return String::new() };
    let seconds = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    format!("-{}-{}", metadata.len(), seconds.map_or(0, |seconds| seconds.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn the_small_model_has_a_small_budget() {
        let args = |list: &[&str]| Args::try_parse_from([&["bench"], list].concat()).unwrap();
        assert_eq!(args(&["--backend", "cpu"]).budgets(), [20 << 20]);
        assert_eq!(args(&["--synth", "pico", "--backend", "cpu"]).budgets(), [20 << 20]);
        assert_eq!(args(&["--synth", "qwen3.5-35b-a3b"]).budgets(), [4 << 30]);
        assert_eq!(args(&["--backend", "cpu,candle"]).budgets(), [64 << 20]);
        assert_eq!(args(&["--memory", "3GiB,6GiB"]).budgets(), [3 << 30, 6 << 30]);
    }
}
