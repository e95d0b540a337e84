//! Answers that keep to a grammar: a JSON schema, a regular expression, or Lark.
//!
//! A [`GrammarFactory`] holds a vocabulary's tokens as a tree and is built once for a model. It compiles a
//! [`GrammarSpec`] to a [`Grammar`], which a sampler takes along: tokens outside it get a logit of -inf before penalties
//! and filters, and when it is complete only the tokens that end an answer are left. The matching is `llguidance`'s.
//!
//! **Nothing is ignored.** What isn't enforced is refused when the grammar is compiled, with the place and what would be
//! right; see `docs/grammar.md` for the keywords. A grammar of any kind has a bounded size, and so has the work for it.
//!
//! **Drafts.** A matcher follows the answer in a [`History`](crate::sampler::History): what was taken back there is taken
//! back here, so that a draft changes nothing but time.
//!
//! **Thoughts.** A [`GrammarBegin`] says where the grammar begins. In thoughts any text may come, but not the end of
//! the answer; behind `</think>` some white space may.

mod error;
mod factory;
mod finite;
mod guide;
mod lark;
mod lexicon;
mod matcher;
mod schema;
mod thoughts;
mod tools;

use serde_json::Value;

pub use error::GrammarError;
pub use factory::{Grammar, GrammarFactory};
pub(crate) use guide::Guide;
pub use tools::ToolCallSpec;

/// Most bytes of a schema, or of all tools, written without spaces.
pub const GRAMMAR_BYTES_MAX: usize = 128 << 10;

/// Most bytes of a regular expression, of all that a schema has, or of a Lark grammar: `\\w`, two of them, stands for
/// six kilobytes of a matcher's memory.
pub const EXPRESSION_BYTES_MAX: usize = 16 << 10;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSpec {
    /// A JSON value of this schema.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// A text that this regular expression matches as a whole, in the syntax of Rust's `regex` without look-around.
    Regex(String),
    /// A text of llguidance's kind of Lark grammar.
    Lark(String),
    /// Calls of tools, and nothing else.
    ToolCalls(ToolCallSpec),
    /// Either a text of a form, which is a schema, any JSON object or a regular expression, or calls of tools.
    FormOrCalls {
        /// What a text must look like.
        form: Box<GrammarSpec>,
        /// Calls that may stand in its place.
        calls: ToolCallSpec,
    },
}

/// Where in an answer its grammar begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrammarBegin {
    /// With the first token.
    #[default]
    AtOnce,
    /// The prompt opened thoughts; the grammar begins behind `</think>`.
    AfterThoughts,
    /// The first token may open thoughts, if the vocabulary has `<think>` as a token; then as [`Self::AfterThoughts`].
    MayThink,
}

impl GrammarBegin {
    /// Where it begins in the answer to a rendered prompt: one may end inside thoughts, or behind a section of thoughts
    /// that was closed for the model, or with neither.
    pub fn after(prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        if prompt.ends_with(thoughts::OPEN) {
            Self::AfterThoughts
        } else if prompt.ends_with(thoughts::CLOSE) {
            Self::AtOnce
        } else {
            Self::MayThink
        }
    }
}
