//! The command line.

mod backend;
mod copy;
mod draft;
mod measure;
mod schedule;
mod serve;
mod upstream;

use std::num::NonZeroU64;
use std::path::PathBuf;

pub(crate) use backend::{BackendName, choice as backend_choice};
use clap::{Parser, Subcommand, ValueEnum};
pub(crate) use copy::{CopyArgs, OrderName, PackArgs, QuantizeArgs, TalkArgs, UnpackArgs, VerifyArgs};
pub(crate) use draft::DraftArgs;
use forerun_decode::{DeviceName, IoChoice, SamplerConfig, parse_bytes};
pub(crate) use measure::{BenchArgs, DiskWish, ImatrixArgs, PerplexityArgs, PlanArgs, ProbeArgs, TraceArgs};
use schedule::parse_lookahead;
pub(crate) use schedule::{Lookahead, Policy, PredictorName, ScheduleName};
pub(crate) use serve::{NetworkArgs, ServeArgs};
pub(crate) use upstream::UpstreamArgs;

use crate::pull::{Wish, revision};

/// Runs sparse mixture-of-experts language models from flash, inside a memory budget.
#[derive(Debug, Parser)]
#[command(name = "forerun", version, about, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answers one prompt.
    Run(RunArgs),
    /// Talks, turn by turn.
    Chat(ChatArgs),
    /// Answers over HTTP, in the shapes of OpenAI's, Anthropic's and Ollama's APIs
    Serve(Box<ServeArgs>),
    /// Says how well a model predicts a text, in windows of --ctx tokens.
    Perplexity(PerplexityArgs),
    /// Says which columns of a model's matrices matter to a text, for quantising it: an importance matrix.
    Imatrix(ImatrixArgs),
    /// Measures how fast a model reads and decodes.
    Bench(BenchArgs),
    /// Says what a model file holds.
    Inspect(InspectArgs),
    /// Writes a copy whose experts each lie in one piece: faster to read on most disks.
    Pack(PackArgs),
    /// Writes the ordinary file that a packed one was made from.
    Unpack(UnpackArgs),
    /// Writes a smaller copy: weights in types of fewer bits.
    Quantize(QuantizeArgs),
    /// Checks that a file is whole, or holds the same model as another one.
    Verify(VerifyArgs),
    /// Downloads a model from a Hugging Face Hub, and prints where it is
    Pull(PullArgs),
    /// Measures the disk of a model file.
    Probe(ProbeArgs),
    /// Records which experts a model uses, and what its routers guess one layer ahead.
    Trace(TraceArgs),
    /// Says what speed to expect of a model, for a range of memory, and which to choose.
    Plan(PlanArgs),
    /// Prints what a shell needs to complete command lines
    Completions(CompletionsArgs),
    /// Prints a page of the manual, as `man` reads it
    Man(ManArgs),
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The command whose page it is; default: the program's own
    pub(crate) command: Option<String>,
}

/// What every command that runs a model takes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Model file (GGUF), any shard of a split one, or its folder; without it the small embedded model
    #[arg(short, long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,

    /// Peak memory, such as 3GiB, without the program's own text; default: what the model takes
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// Tokens of context; default: the model's own, at most 4096
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx: Option<u32>,

    /// Experts kept in memory, per layer on average; 0 keeps none; default: what the budget holds
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<usize>,

    /// How experts are read
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    pub(crate) io: Io,

    /// Most that the disk is let give, such as 1GB/s, to stand for another device's flash
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) disk_limit: Option<NonZeroU64>,

    /// Compares every expert that is read with its checksum; packed files have them
    #[arg(long)]
    pub(crate) verify_reads: bool,

    /// Who guesses which experts to read ahead
    #[arg(long, value_enum, default_value_t = PredictorName::RouterAhead)]
    pub(crate) predictor: PredictorName,

    /// Who says which experts stay in memory
    #[arg(long, value_enum, default_value_t = Policy::Alike)]
    pub(crate) policy: Policy,

    /// When a layer's experts are computed
    #[arg(long, value_enum, default_value_t = ScheduleName::ReadyFirst)]
    pub(crate) schedule: ScheduleName,

    /// Most guesses of a layer that are read, 0 for none; auto: as many as pay for their bytes
    #[arg(long, value_name = "auto|N", default_value = "auto", value_parser = parse_lookahead)]
    pub(crate) lookahead: Lookahead,

    /// Threads that compute; default: one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// What computes: fast kernels, the slow definition of right, or candle on a device
    #[arg(long, value_enum, default_value_t = BackendName::Cpu)]
    pub(crate) backend: BackendName,

    /// Where candle computes: cpu, cuda:N or metal:N; default: cpu
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<DeviceName>,

    /// Page-locks the slots for a CUDA device, which then reads them by itself; their memory can't be given back
    #[arg(long)]
    pub(crate) pin_slots: bool,

    /// Takes the memory of all slots from the system at the start, not piece by piece as they are filled: a later start,
    /// a faster first answer
    #[arg(long)]
    pub(crate) touch_slots: bool,

    /// Says nothing but the answer and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// How tokens are chosen and what ends an answer.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// 0 takes the most probable token always; default: the file's suggestion, or 0
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = temperature)]
    pub(crate) temp: Option<f32>,

    /// Only this many of the most probable tokens; 0 for all
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<usize>,

    /// Only the fewest tokens whose probabilities reach this sum
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = top_p)]
    pub(crate) top_p: Option<f32>,

    /// Only tokens with at least this share of the largest probability
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = min_p)]
    pub(crate) min_p: Option<f32>,

    /// Divides logits of tokens that occurred; 1 changes nothing
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = repetition_penalty)]
    pub(crate) repeat_penalty: Option<f32>,

    /// Taken from logits of tokens in the answer
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = presence_penalty)]
    pub(crate) presence_penalty: Option<f32>,

    /// Taken from logits of tokens in the answer, as often as they occur
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = frequency_penalty)]
    pub(crate) frequency_penalty: Option<f32>,

    /// The same seed gives the same answer; default: another one each time
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Most tokens of an answer; default: what the context holds
    #[arg(short = 'n', long, value_name = "N", value_parser = answer_tokens)]
    pub(crate) max_tokens: Option<usize>,

    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,

    /// Whether the model thinks before it answers; auto: the template's choice, off for the embedded model
    #[arg(long, value_enum, default_value_t = ThinkingName::Auto)]
    pub(crate) thinking: ThinkingName,

    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) draft: DraftArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    /// The prompt, in place of the last argument
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", conflicts_with = "prompt")]
    pub(crate) prompt_flag: Option<String>,

    /// Sends the prompt as it is, without the chat template; special tokens in it are parsed
    #[arg(long, conflicts_with_all = ["system", "thinking"])]
    pub(crate) raw: bool,

    /// Prints one JSON object with text, tokens and telemetry, in place of the text
    #[arg(long)]
    pub(crate) json: bool,

    /// The prompt; without it, standard input is read
    pub(crate) prompt: Option<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) draft: DraftArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Model file (GGUF), any shard of a split one, or its folder; without it the small embedded model
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) model: Option<PathBuf>,

    /// Lists every tensor
    #[arg(long)]
    pub(crate) tensors: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// The same as --model
    pub(crate) file: Option<PathBuf>,
}

/// HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_CACHE mean what they mean to the Hub's other tools.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// Repository, and what of it: a file, any shard, or a quantisation such as Q4_K_M; default: its only model
    #[arg(value_name = "REPO[:FILE]")]
    pub(crate) wish: Wish,

    /// Branch, tag or commit
    #[arg(long, value_name = "R", default_value = "main", value_parser = revision)]
    pub(crate) revision: String,

    /// Puts plain files into this folder; default: the cache that the Hub's tools share
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,

    /// Tries without a new byte before giving up
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) tries: u32,

    /// Says nothing but the path and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Prints one JSON object in place of the path
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Io {
    /// Chosen for the file, with a reason
    Auto,
    /// Linux's io_uring, past the page cache; pread where that can't be had
    Uring,
    /// Positioned reads on a few threads, past the page cache where the file system allows it
    Pread,
    /// Positioned reads on a few threads, through the page cache
    Cached,
    /// A mapping of the file
    Mmap,
    /// The whole file in memory
    Memory,
}

impl From<Io> for IoChoice {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Uring => Self::Uring,
            Io::Pread => Self::Pread,
            Io::Cached => Self::Cached,
            Io::Mmap => Self::Mmap,
            Io::Memory => Self::Memory,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ThinkingName {
    Auto,
    On,
    Off,
}

/// Bytes a second: a size, with `/s` or without.
fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    let size = text.trim().strip_suffix("/s").unwrap_or(text);
    let wrong = |_| format!("`{text}` is not a rate; write for example 1GB/s, 1.5GiB/s or 800MB/s");
    parse_bytes(size).map_err(wrong)?.try_into().map_err(|_| "a rate of 0 would never end".to_owned())
}

fn temperature(text: &str) -> Result<f32, String> {
    setting(text, |config| &mut config.temperature)
}

fn top_p(text: &str) -> Result<f32, String> {
    setting(text, |config| &mut config.top_p)
}

fn min_p(text: &str) -> Result<f32, String> {
    setting(text, |config| &mut config.min_p)
}

fn repetition_penalty(text: &str) -> Result<f32, String> {
    setting(text, |config| &mut config.repetition_penalty)
}

fn answer_tokens(text: &str) -> Result<usize, String> {
    let hint = if text == "gl" { "; there is no -ngl: --backend and --device say what computes" } else { "" };
    text.parse().map_err(|_| format!("it must be a number of tokens{hint}"))
}

fn presence_penalty(text: &str) -> Result<f32, String> {
    setting(text, |config| &mut config.presence_penalty)
}

fn frequency_penalty(text: &str) -> Result<f32, String> {
    setting(text, |config| &mut config.frequency_penalty)
}

/// A number that the sampler takes in that place; its ranges are the sampler's own.
fn setting(text: &str, place: impl Fn(&mut SamplerConfig) -> &mut f32) -> Result<f32, String> {
    let value = text.parse().map_err(|_| "it must be a number".to_owned())?;
    let mut config = SamplerConfig::default();
    *place(&mut config) = value;
    config.validate().map(|()| value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn rates_are_sizes_a_second() {
        let check =
            |text: &str, expect: u64| assert_eq!(parse_rate(text).map(NonZeroU64::get), Ok(expect), "{text}");
        check("1GB/s", 1_000_000_000);
        check("800MB/s", 800_000_000);
        check("1.5GiB/s", 3 << 29);
        check("200 kB/s", 200_000);
        check("1GB", 1_000_000_000);
        check("123456", 123_456);
        for wrong in ["", "/s", "0", "0GB/s", "fast", "1GB/h", "-1GB/s", "1GB/s/s"] {
            let error = parse_rate(wrong).unwrap_err();
            assert!(error.contains("is not a rate"), "{error}");
        }
    }
}
