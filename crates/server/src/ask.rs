//! What any API asks for, before it is tokens.

mod grammar;
mod prepare;

use std::sync::Arc;

use forerun_decode::text::{Message, Role, Thinking};
use forerun_decode::{GrammarSpec, SamplerConfig};
use forerun_model::TokenId;
use serde_json::Value;

pub(crate) use prepare::{Prepared, encode_chat, prepare};

/// A request for answers, in nobody's shape.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: Prompt,
    pub(crate) sampler: SamplerConfig,
    /// Texts that end an answer.
    pub(crate) stops: Vec<String>,
    /// Most tokens of an answer; `None`: what the context holds.
    pub(crate) max_tokens: Option<usize>,
    /// How many of the most probable tokens are reported beside each token; `None`: nothing is.
    pub(crate) logprobs: Option<usize>,
    /// Answers to each prompt.
    pub(crate) n: u32,
    /// What an answer must look like; `None`: anything.
    pub(crate) form: Option<Form>,
}

/// What an answer must look like, and which field says so.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) spec: Arc<GrammarSpec>,
    pub(crate) param: String,
}

/// What is to be answered.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    Chat(Conversation),
    /// As they are, without a template.
    Raw(Vec<RawPrompt>),
}

/// Messages for the model's template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// In OpenAI's shape: `{"type": "function", "function": {name, description, parameters}}`.
    pub(crate) tools: Vec<Value>,
    pub(crate) choice: ToolChoice,
    /// Whether at most one tool may be called in an answer.
    pub(crate) is_single_call: bool,
    pub(crate) thinking: Thinking,
}

/// Whether the model must call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// If it wants to.
    #[default]
    Auto,
    /// One of them, or several.
    Required,
    /// This one.
    Named(String),
}

/// The name of a tool in OpenAI's shape.
pub(crate) fn tool_name(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// Makes one message of the system's messages at the begin: templates take one.
pub(crate) fn join_systems(messages: &mut Vec<Message>) {
    let n = messages.iter().take_while(|message| message.role == Role::System).count();
    if n < 2 {
        return;
    }
    let texts: Vec<_> = messages.drain(..n).filter_map(|message| message.content).collect();
    messages.insert(0, Message::system(texts.join("\n\n")));
}

/// A prompt as it is.
#[derive(Clone, Debug)]
pub(crate) enum RawPrompt {
    Text { text: String, specials: Specials },
    Tokens(Vec<TokenId>),
}

/// What names of special tokens in a text are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Specials {
    /// Text like any other.
    #[default]
    Text,
    /// These tokens.
    Parsed,
}
