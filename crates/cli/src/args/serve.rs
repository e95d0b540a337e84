//! Arguments of `serve`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use forerun_decode::config::GrammarRoom;
use forerun_decode::parse_bytes;
use forerun_decode::prefix::{PrefixConfig, PrefixDisk};

use super::{DraftArgs, ModelArgs, SamplingArgs, UpstreamArgs};

/// Every flag may also be an environment variable (FORERUN_PORT for --port) or a line of a configuration file (port = 8080). A
/// flag counts before a variable, and that before the file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) draft: DraftArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) beyond: UpstreamArgs,

    /// Answers made at once, each with memory for a whole context; default: 4, or fewer where the budget would lose many
    /// expert slots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) parallel: Option<u16>,

    /// Requests that may wait; others are told to come again
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(0..=4096))]
    pub(crate) queue: u16,

    /// The model's name in answers; default: that of its file
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) alias: Option<String>,

    /// Refuses requests that name another model
    #[arg(long)]
    pub(crate) strict_model: bool,

    /// Memory for grammars, which JSON schemas and forced calls of tools need: some where it takes few expert slots, none, or
    /// always
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) grammars: GrammarName,

    #[command(flatten)]
    pub(crate) prefixes: PrefixArgs,

    /// Seconds that answers may go on after the server was asked to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u32,

    /// Takes flags from a TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// What is logged on stderr; what people write and are told never is
    #[arg(long, value_name = "LEVEL", default_value = "warn", value_parser = ["off", "error", "warn", "info", "debug", "trace"])]
    pub(crate) log: String,
}

/// Whether there is memory for grammars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum GrammarName {
    Auto,
    On,
    Off,
}

impl From<GrammarName> for GrammarRoom {
    fn from(name: GrammarName) -> Self {
        match name {
            GrammarName::Auto => Self::Auto,
            GrammarName::On => Self::On,
            GrammarName::Off => Self::Off,
        }
    }
}

/// What becomes of conversations when others need their seats.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PrefixArgs {
    /// Memory for conversations without a seat, out of the budget; default: none, or 128MiB with a folder
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) prefix_memory: Option<u64>,

    /// Folder in which conversations outlive the server; they are private to its owner
    #[arg(long, value_name = "FOLDER")]
    pub(crate) prefix_cache: Option<PathBuf>,

    /// Most bytes of that folder
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_bytes)]
    pub(crate) prefix_disk: u64,

    /// Most bytes that one run of the server writes there, since flash wears out by writing
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = parse_bytes)]
    pub(crate) prefix_writes: u64,
}

impl PrefixArgs {
    /// What a folder needs in memory where nobody says how much: the states of a 35B model, and some room.
    const WITH_FOLDER: u64 = 128 << 20;

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.prefix_memory.unwrap_or(if self.prefix_cache.is_some() { Self::WITH_FOLDER } else { 0 })
    }

    /// The folder and its bounds.
    pub(crate) fn config(&self) -> PrefixConfig {
        let disk = |folder: &PathBuf| PrefixDisk {
            folder: folder.clone(),
            bytes_max: self.prefix_disk,
            write_bytes_max: self.prefix_writes,
        };
        PrefixConfig { disk: self.prefix_cache.as_ref().map(disk) }
    }
}

/// Where the server listens, and who may ask.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NetworkArgs {
    /// Name or IP address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,

    /// Key that requests must bring; several may be given
    #[arg(long, value_name = "KEY", hide_env_values = true, value_delimiter = ',')]
    pub(crate) api_key: Vec<String>,

    /// File of such keys, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Lets other machines ask without a key
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Origin whose web pages may ask, such as http://localhost:3000, or * for all; several may be given
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors: Vec<String>,

    /// Name of this machine in requests, besides localhost and IP addresses; several may be given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) allow_host: Vec<String>,

    /// Most requests of a key, or of an address without keys, such as 60/min; default: any number
    #[arg(long, value_name = "N/min", value_parser = parse_per_minute)]
    pub(crate) rate: Option<NonZeroU32>,

    /// Most bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_bytes)]
    pub(crate) max_body: u64,

    /// Most connections at once
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_connections: u16,

    /// Seconds for a request's head or body to arrive, and for a client to take some of an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) timeout: u32,
}

/// `60/min`, or `60`.
fn parse_per_minute(text: &str) -> Result<NonZeroU32, String> {
    let number = text.trim().strip_suffix("/min").unwrap_or(text).trim();
    number.parse().map_err(|_| format!("`{text}` is no rate; write for example 60/min"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_requests_a_minute() {
        assert_eq!(parse_per_minute("60/min").map(NonZeroU32::get), Ok(60));
        assert_eq!(parse_per_minute("7").map(NonZeroU32::get), Ok(7));
        for wrong in ["0", "0/min", "-1", "60/s", "", "many"] {
            assert!(parse_per_minute(wrong).unwrap_err().contains("60/min"), "{wrong}");
        }
    }
}
