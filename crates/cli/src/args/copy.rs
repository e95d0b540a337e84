//! Arguments of the commands that copy and check model files.

use std::path::PathBuf;
use std::str::FromStr;

use forerun_decode::parse_bytes;

/// What every command that writes a copy of a model takes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CopyArgs {
    /// Replaces a target that is there
    #[arg(long)]
    pub(crate) force: bool,

    /// Bytes between two moments at which everything is made safe
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, hide = true)]
    pub(crate) checkpoint: Option<u64>,

    #[command(flatten)]
    pub(crate) talk: TalkArgs,
}

/// How much a command says, and in which form.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TalkArgs {
    /// Prints one JSON object with the result
    #[arg(long)]
    pub(crate) json: bool,

    /// Says nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PackArgs {
    /// Model file (GGUF), packed or not, any shard of a split one, or its folder
    pub(crate) source: PathBuf,

    /// File to write; default: NAME-packed.gguf beside the source file; needed when the source is a folder
    pub(crate) target: Option<PathBuf>,

    /// How experts follow each other: `file`, or `trace:FILE` to put those side by side that fire together
    #[arg(long, value_name = "ORDER", default_value = "file")]
    pub(crate) order: OrderName,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UnpackArgs {
    /// Packed model file
    pub(crate) source: PathBuf,

    /// File to write
    pub(crate) target: PathBuf,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Model file (GGUF), packed or not, any shard of a split one, or its folder
    pub(crate) file: PathBuf,

    /// Compares every tensor with this model's, bit for bit, however each of them keeps its experts
    #[arg(long, value_name = "SOURCE")]
    pub(crate) against: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) talk: TalkArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct QuantizeArgs {
    /// Model file (GGUF) in F32, F16, BF16 or Q8_0, any shard of a split one, or its folder
    pub(crate) source: PathBuf,

    /// File to write
    pub(crate) target: PathBuf,

    /// Which tensor gets which type: q4_k_m, les, q3_k_m, q8_0, auto, or a file (docs/quantising.md)
    #[arg(long, value_name = "NAME|FILE", default_value = "q4_k_m")]
    pub(crate) recipe: PathBuf,

    /// Size that the file may have, such as 14GB, for --recipe auto: types are chosen so that least is lost
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) target_bytes: Option<u64>,

    /// Importance matrix: how much each column matters, as `forerun imatrix` and llama-imatrix write it
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,

    /// Writes each expert in one piece, as `forerun pack` does
    #[arg(long)]
    pub(crate) pack: bool,

    /// Takes sources that are quantised already, whose errors add up
    #[arg(long)]
    pub(crate) requantize: bool,

    /// Gives few bits to experts of which the importance matrix knows nothing
    #[arg(long)]
    pub(crate) allow_unseen: bool,

    /// Threads that encode; default: one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Says what would be written, and writes nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

/// An order by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OrderName {
    File,
    /// The header of a recorded trace; its arrays lie beside it, in a file that ends in `.bin`.
    Trace(PathBuf),
}

impl FromStr for OrderName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("trace:") {
            Some(path) if !path.is_empty() => Ok(Self::Trace(path.into())),
            None if text == "file" => Ok(Self::File),
            _ => Err("it must be `file` or `trace:FILE`"),
        }
    }
}
