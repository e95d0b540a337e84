//! A conversation as a client sends it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sets the scene; only first.
    #[serde(alias = "developer")]
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

impl Role {
    /// The role's name in a template.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; a message that only calls tools may have none.
    #[serde(default)]
    pub content: Option<String>,
    /// What the model thought before it spoke; without it, thoughts are cut out of the content at `</think>`, if
    /// the template knows how to place them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools that the model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that a tool's result answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of the speaker or of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message that is only text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(content.into()),
            reasoning_content: None,
            tool_calls: None,
            tool_call_id: None,
            name: None,
        }
    }

    /// A person's message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// The model's message.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// The message that sets the scene.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }
}

/// A tool that the model calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's own name, which its result repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Function and arguments.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function's name.
    pub name: String,
    /// A JSON object, or a string that holds one; nothing, `null` and `""` mean no arguments.
    #[serde(default)]
    pub arguments: Value,
}

/// Whether the model thinks before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thinking {
    /// As the template chooses.
    #[default]
    Default,
    /// It thinks.
    On,
    /// It answers at once.
    Off,
}

/// What a template is to render.
#[derive(Clone, Copy, Debug)]
pub struct RenderRequest<'a> {
    /// The conversation, oldest first.
    pub messages: &'a [Message],
    /// Descriptions of tools, as the client sent them.
    pub tools: &'a [Value],
    /// Whether the model is to think.
    pub thinking: Thinking,
    /// What the text ends with.
    pub end: PromptEnd,
}

impl<'a> RenderRequest<'a> {
    /// A request for an answer to `messages`, without tools.
    pub fn new(messages: &'a [Message]) -> Self {
        Self { messages, tools: &[], thinking: Thinking::Default, end: PromptEnd::Answer }
    }
}

/// What a rendered prompt ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptEnd {
    /// The begin of the model's turn.
    #[default]
    Answer,
    /// The end of the last message.
    History,
}
