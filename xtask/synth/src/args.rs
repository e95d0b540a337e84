//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::geometry::{Geometry, NAMES};
use crate::knobs::KnobArgs;
use crate::recipe::Recipe;

/// Writes a model with real geometry and random weights whose greedy reader walks a script, and measures its routing.
///
/// The script's tokens are `<|s0000|>`, `<|s0001|>` and so on, to be named in prompts that are sent raw. An engine
/// that decodes greedily from any of them reads the same tokens, and meets the same routing but for its rounding.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask synth", bin_name = "cargo xtask synth", max_term_width = 100)]
pub(crate) struct Args {
    /// Where the model goes, or the model to measure
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// Which model's numbers
    #[arg(long, value_parser = NAMES, default_value = NAMES[0])]
    pub(crate) shape: String,

    /// Which types its tensors get
    #[arg(long, value_enum, default_value_t = Recipe::Q4KM)]
    pub(crate) quant: Recipe,

    /// Another seed is another model with the same statistics
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Tokens of the script
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(2..=10_000))]
    pub(crate) script: u16,

    #[command(flatten, next_help_heading = "Numbers of the shape")]
    pub(crate) numbers: Numbers,

    #[command(flatten, next_help_heading = "Statistics of the routing")]
    pub(crate) knobs: KnobArgs,

    /// Tokens to decode for the measurement; 0 measures nothing
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Measuring")]
    pub(crate) measure: usize,

    /// Measures a file of this tool and writes none
    #[arg(long, help_heading = "Measuring")]
    pub(crate) measure_only: bool,

    /// Threads that compute; default: one per core
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub(crate) threads: Option<usize>,

    /// Also keeps the routing as a trace, in PATH.json and PATH.bin
    #[arg(long, value_name = "PATH", help_heading = "Measuring")]
    pub(crate) trace: Option<PathBuf>,
}

/// What replaces numbers of the named shape.
#[derive(Debug, clap::Args)]
pub(crate) struct Numbers {
    /// Layers
    #[arg(long, value_name = "N")]
    layers: Option<usize>,

    /// Width of the residual stream
    #[arg(long, value_name = "N")]
    hidden: Option<usize>,

    /// Experts of a layer
    #[arg(long, value_name = "N")]
    experts_per_layer: Option<usize>,

    /// Experts of a token
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,

    /// Inner width of an expert
    #[arg(long, value_name = "N")]
    expert_ff: Option<usize>,

    /// Entries of the vocabulary, at least
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,

    /// Tokens of context that the header claims
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
}

impl Args {
    /// The named shape with the numbers that were given.
    ///
    /// # Panics
    /// Never: the command line takes known names only.
    pub(crate) fn geometry(&self) -> Geometry {
        let mut geometry = Geometry::named(&self.shape).expect("a name of the list");
        let numbers = &self.numbers;
        for (number, given) in [
            (&mut geometry.n_layers, numbers.layers),
            (&mut geometry.hidden, numbers.hidden),
            (&mut geometry.n_experts, numbers.experts_per_layer),
            (&mut geometry.top_k, numbers.top_k),
            (&mut geometry.expert_ff, numbers.expert_ff),
            (&mut geometry.n_vocab, numbers.vocab),
            (&mut geometry.context, numbers.ctx),
        ] {
            *number = given.unwrap_or(*number);
        }
        geometry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_numbers_replace_those_of_the_shape() {
        let args = ["synth", "--out", "x", "--shape", "pico", "--layers", "3", "--ctx", "32768"];
        let geometry = Args::try_parse_from(args).unwrap().geometry();
        assert_eq!((geometry.n_layers, geometry.context, geometry.hidden), (3, 32_768, 256));
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
