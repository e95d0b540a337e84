//! Who guesses tokens, and where a conversation can be cut back to.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use forerun_decode::config::{CheckpointConfig, DraftChoice};
use forerun_decode::draft::VERIFIED_ROWS_MAX;

/// How an answer is made faster without changing it, and what is kept for the next one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DraftArgs {
    /// Who drafts tokens ahead: auto takes what the model's file offers, ngram looks back, mtp is the model's own
    /// prediction block, FILE a DSpark drafter
    #[arg(long, value_name = "auto|none|ngram|mtp|FILE", default_value = "auto", value_parser = parse_draft)]
    pub(crate) draft: DraftChoice,

    /// Tokens drafted for each step; auto: as many as pay, none where none do
    #[arg(long, value_name = "auto|N", default_value = "auto", value_parser = parse_length)]
    pub(crate) draft_length: Length,

    /// Keeps a checkpoint of the recurrent states every so many tokens, for later prompts that begin alike
    #[arg(long, value_name = "TOKENS")]
    pub(crate) checkpoint_every: Option<NonZeroUsize>,

    /// Most checkpoints kept; each takes the memory of the recurrent states
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) checkpoints: Option<u16>,
}

impl DraftArgs {
    /// What checkpoints are kept, of which a command wants `usual` if nothing is said.
    pub(crate) fn checkpoints(&self, usual: usize) -> CheckpointConfig {
        /// With a spacing and no number.
        const SPACED: usize = 8;
        let some = if self.checkpoint_every.is_some() { SPACED } else { usual };
        let is_asked = self.checkpoints.is_some() || self.checkpoint_every.is_some();
        let n_max = self.checkpoints.map_or(some, usize::from);
        CheckpointConfig { n_max, every: self.checkpoint_every, is_asked }
    }
}

/// Tokens of a draft; `None` for as many as pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Length(pub(crate) Option<usize>);

/// A name, or else a file.
#[expect(clippy::unnecessary_wraps, reason = "the form that clap takes")]
fn parse_draft(text: &str) -> Result<DraftChoice, Infallible> {
    Ok(match text {
        "auto" => DraftChoice::Auto,
        "none" => DraftChoice::None,
        "ngram" => DraftChoice::Ngram,
        "mtp" => DraftChoice::Mtp,
        file => DraftChoice::File(PathBuf::from(file)),
    })
}

fn parse_length(text: &str) -> Result<Length, String> {
    const MAX: usize = VERIFIED_ROWS_MAX - 1;
    if text == "auto" {
        return Ok(Length(None));
    }
    match text.parse() {
        Ok(n) if n <= MAX => Ok(Length(Some(n))),
        _ => Err(format!("`{text}` is not a length; write auto or a number from 0 to {MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_a_file() {
        let parsed = |text| parse_draft(text).unwrap_or(DraftChoice::None);
        assert_eq!(parsed("auto"), DraftChoice::Auto);
        assert_eq!(parsed("none"), DraftChoice::None);
        assert_eq!(parsed("drafter.gguf"), DraftChoice::File("drafter.gguf".into()));
    }

    #[test]
    fn lengths_have_a_bound() {
        assert_eq!(parse_length("auto"), Ok(Length(None)));
        assert_eq!(parse_length("7"), Ok(Length(Some(7))));
        for wrong in ["8", "-1", "many", ""] {
            assert!(parse_length(wrong).unwrap_err().contains("from 0 to 7"));
        }
    }
}
