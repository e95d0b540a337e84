//! Text to tokens and back: vocabulary, tokenizer, chat template, stop strings.
//!
//! A file's metadata becomes a [`Vocabulary`] and a [`Tokenizer`]. A conversation becomes text in a
//! [`ChatTemplate`]; its [`RenderedPrompt`] knows which characters the template wrote and which a person did, so
//! that only the template can produce control tokens. Tokens that were generated go through a [`TextStream`]
//! (whole characters only) and a [`StopMatcher`]; [`Thoughts`] and [`ToolCalls`] part what comes out.
//!
//! Never here: files, the model, sampling.

mod byte_alphabet;
pub mod error;
pub mod message;

mod guard;
mod literals;
pub mod pre_tokenizer;
mod python;
pub mod reader;
mod source;
pub mod stop;
pub mod stream;
pub mod template;
pub mod thoughts;
pub mod tokenizer;
pub mod tool_calls;
pub mod vocabulary;

pub use error::TextError;
pub use message::{FunctionCall, Message, PromptEnd, RenderRequest, Role, Thinking, ToolCall};
pub use pre_tokenizer::PreTokenizer;
pub use reader::{Literals, TokenReader};
pub use stop::{StopMatcher, StopOutput};
pub use stream::{ControlTokens, TextBuffer, TextStream};
pub use template::{ChatTemplate, RenderedPrompt};
pub use thoughts::{Parted, Thoughts};
pub use tokenizer::Tokenizer;
pub use tool_calls::{CallFormat, ToolCalls, ToolEvent};
pub use vocabulary::{TokenKind, Vocabulary, VocabularyParts};
