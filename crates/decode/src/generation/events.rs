//! How an answer is to be made, and what comes of it.

use forerun_model::TokenId;
use serde::Serialize;

use crate::grammar::Grammar;
use crate::sampler::{SamplerConfig, TokenLogprob};
use crate::telemetry::Telemetry;

/// What ends an answer, and how its tokens are chosen.
#[derive(Clone, Debug, Default)]
pub struct GenerationConfig {
    /// How tokens are chosen.
    pub sampler: SamplerConfig,
    /// Most tokens; `None`: as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they aren't part of it.
    pub stops: Vec<String>,
    /// Tokens of the prompt after which a checkpoint is kept, if the engine keeps any: where a later prompt may go on
    /// otherwise. `None`: all of them.
    pub checkpoint_at: Option<usize>,
    /// Which of several answers to one prompt: each draws with noise of its own.
    pub choice: u32,
    /// Log-probabilities that go with every token: its own and those of so many most probable ones; `None`: none.
    pub logprobs: Option<usize>,
    /// What the answer must look like; `None`: anything.
    pub grammar: Option<Grammar>,
}

/// What [`Generation::next`](super::Generation::next) brings.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A part of the prompt was read.
    Prompt {
        /// Tokens of the prompt that are held now.
        n_read: usize,
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// The answer goes on.
    Text(Piece),
}

/// What one token, or the end, adds to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Whole characters, perhaps none yet, or some that were held back before.
    pub text: String,
    /// The token; `None` when the answer ends without one more.
    pub token: Option<TokenId>,
    /// How probable it was, where that is wanted.
    pub logprobs: Option<Logprobs>,
}

/// The model's own log-probabilities at one position: before penalties, filters and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The token that was said.
    pub chosen: TokenLogprob,
    /// The most probable ones, most probable first.
    pub top: Vec<TokenLogprob>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended its turn, or a stop text came.
    Stop,
    /// The most tokens, or the context is full.
    Length,
    /// The caller stopped.
    Interrupted,
}

/// What an answer leaves.
#[derive(Clone, Debug)]
pub struct Report {
    /// The tokens made, without the one that ended the turn.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The stop text that ended it, by its position in the list.
    pub stop: Option<usize>,
    /// Where time and bytes went.
    pub telemetry: Telemetry,
}
