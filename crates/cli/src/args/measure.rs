//! Arguments of the commands that measure a model.

use std::path::PathBuf;

use super::ModelArgs;

/// `--ctx` of `perplexity`, whose default is not that of other commands.
const WINDOW_HELP: &str =
    "Tokens of a window, which is the context; default: 512, or the model's own if it has fewer";

#[derive(Clone, Debug, clap::Args)]
#[command(allow_missing_positional = true, mut_arg("ctx", |ctx| ctx.help(WINDOW_HELP)))]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Prints one JSON object in place of the line
    #[arg(long)]
    pub(crate) json: bool,

    /// The same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) file: Option<PathBuf>,

    /// Text to score, as UTF-8; special tokens in it are text
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
