//! Names of the choices about reading ahead and keeping experts.

use clap::ValueEnum;
use forerun_decode::{GUESSES_MAX, PolicyName, PredictorChoice, Schedule};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PredictorName {
    /// The routers of the layers to come, asked before their turn
    RouterAhead,
    /// What the token before wanted
    Recent,
    /// Both of these
    Blend,
    /// Nobody: experts are read when the router names them
    None,
}

impl From<PredictorName> for PredictorChoice {
    fn from(name: PredictorName) -> Self {
        match name {
            PredictorName::RouterAhead => Self::RouterAhead,
            PredictorName::Recent => Self::Recent,
            PredictorName::Blend => Self::Blend,
            PredictorName::None => Self::None,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Policy {
    /// What was wanted after tokens routed like the present one
    Alike,
    /// What was used most often of late
    Lfu,
    /// What was used last
    Lru,
}

impl From<Policy> for PolicyName {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Alike => Self::Alike,
            Policy::Lfu => Self::Lfu,
            Policy::Lru => Self::Lru,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ScheduleName {
    /// Each as soon as it is there
    ReadyFirst,
    /// Not before all of a token are there; for comparisons
    OnDemand,
}

impl From<ScheduleName> for Schedule {
    fn from(name: ScheduleName) -> Self {
        match name {
            ScheduleName::ReadyFirst => Self::ReadyFirst,
            ScheduleName::OnDemand => Self::OnDemand,
        }
    }
}

/// How many guesses of a layer are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookahead(pub(crate) Option<usize>);

pub(super) fn parse_lookahead(text: &str) -> Result<Lookahead, String> {
    if text == "auto" {
        return Ok(Lookahead(None));
    }
    let wrong = || format!("`{text}` is not auto or a number of guesses, 0 to {GUESSES_MAX}");
    text.parse().ok().filter(|&n| n <= GUESSES_MAX).map(|n| Lookahead(Some(n))).ok_or_else(wrong)
}
