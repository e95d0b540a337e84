//! Arguments of the commands that measure a model.

use std::num::NonZeroU64;
use std::path::PathBuf;

use forerun_decode::parse_bytes;
use forerun_sim::Disk;
use forerun_sim::disks::DISKS;
use forerun_sim::trace::TOKENS_MAX as TRACE_TOKENS_MAX;

use super::{ModelArgs, SamplingArgs, parse_rate};

/// `--ctx` of `perplexity`, whose default is not that of other commands.
const WINDOW_HELP: &str =
    "Tokens of a window, which is the context; default: 512, or the model's own if it has fewer";

#[derive(Clone, Debug, clap::Args)]
#[command(allow_missing_positional = true, mut_arg("ctx", |ctx| ctx.help(WINDOW_HELP)))]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Compares with this model, such as the one it was quantised from: --memory is split between the two
    #[arg(long, value_name = "BASE")]
    pub(crate) kl_base: Option<PathBuf>,

    /// Prints one JSON object in place of the line
    #[arg(long)]
    pub(crate) json: bool,

    /// The same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) file: Option<PathBuf>,

    /// Text to score, as UTF-8; special tokens in it are text
    pub(crate) text: PathBuf,
}

/// A run that ends early leaves what it read beside OUT, and the same command goes on from there.
#[derive(Clone, Debug, clap::Args)]
#[command(allow_missing_positional = true, mut_arg("ctx", |ctx| ctx.help(WINDOW_HELP)))]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// The importance matrix, in the form that llama.cpp's tools read as well
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,

    /// Most windows that are read; default: the whole text
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) chunks: Option<u64>,

    /// Takes the literals of special tokens in the text, such as <|im_start|>, for these tokens
    #[arg(long)]
    pub(crate) parse_special: bool,

    /// Looks at the head as well
    #[arg(long)]
    pub(crate) process_output: bool,

    /// Replaces a file that is there
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// The same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) file: Option<PathBuf>,

    /// Text to read, as UTF-8
    pub(crate) text: PathBuf,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt: u32,

    /// Tokens that are decoded after it, one by one
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: u32,

    /// Passes that count; one before them warms up
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// Decides which tokens are fed: any others use other experts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Prints one JSON object with the medians and the telemetry, in place of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProbeArgs {
    /// Model file (GGUF), any shard of a split one, or its folder
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) model: Option<PathBuf>,

    /// Length of the reads, such as 1MiB; default: the longest range of the model's experts
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) record: Option<u64>,

    /// Measures as if the disk gave no more than this, such as 1GB/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) disk_limit: Option<NonZeroU64>,

    /// Does not keep the result for later runs
    #[arg(long)]
    pub(crate) no_cache: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// The same as --model
    pub(crate) file: Option<PathBuf>,
}

/// A text is read as it is; an answer to a prompt is recorded without the prompt.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    /// The trace's name: a header with `.json` and the arrays with `.bin`
    #[arg(short, long, value_name = "FILE", default_value = "trace")]
    pub(crate) out: PathBuf,

    /// Most tokens to record; default: the whole text, or the whole answer
    #[arg(long, value_name = "N", value_parser = tokens)]
    pub(crate) tokens: Option<usize>,

    /// Replaces a trace that is there
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// A prompt whose answer is recorded
    #[arg(short = 'p', long, value_name = "TEXT", group = "what")]
    pub(crate) prompt: Option<String>,

    /// A text to read, as UTF-8, in windows of the context
    #[arg(group = "what")]
    pub(crate) text: Option<PathBuf>,
}

/// At least one, and no more than a trace may have.
fn tokens(text: &str) -> Result<usize, String> {
    let tokens = text.parse().ok().filter(|tokens| (1..=TRACE_TOKENS_MAX).contains(tokens));
    tokens.ok_or_else(|| format!("`{text}` is no number from 1 to {TRACE_TOKENS_MAX}"))
}

/// Nothing is loaded and nothing runs: the model's header, a recorded routing, a disk and a computer say it all.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// ufs4, ufs4-hot, apple, apple-max, nvme, sata, vm, or a rate such as 2GB/s; default: as `probe` found it
    #[arg(long, value_name = "NAME|RATE", value_parser = disk)]
    pub(crate) disk: Option<DiskWish>,

    /// Tokens a second with every expert in memory; default: estimated from the threads
    #[arg(long, value_name = "TOK/S", value_parser = speed)]
    pub(crate) compute: Option<f64>,

    /// A recorded routing; default: one that the program carries
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Prints one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A disk that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskWish {
    Named(Disk),
    Rate(u64),
}

fn disk(text: &str) -> Result<DiskWish, String> {
    if let Some(disk) = Disk::named(text) {
        return Ok(DiskWish::Named(disk));
    }
    let names = || DISKS.iter().map(|disk| disk.name).collect::<Vec<_>>().join(", ");
    let rate = parse_rate(text)
        .map_err(|_| format!("`{text}` is neither a rate such as 2GB/s nor one of {}", names()));
    Ok(DiskWish::Rate(rate?.get()))
}

/// Tokens a second; whoever is slower needs no plan.
const SPEED_MIN: f64 = 1e-3;

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed >= SPEED_MIN);
    speed.ok_or_else(|| {
        format!("`{text}` is no number of tokens a second from {SPEED_MIN} on; write for example 12.5")
    })
}
