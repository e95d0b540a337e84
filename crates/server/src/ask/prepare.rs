//! From what is asked to jobs: everything that can be found wrong is found here, before a job is queued.

use std::fmt::{self, Write as _};

use forerun_decode::text::{ChatTemplate, Message, PromptEnd, RenderRequest, StopMatcher, Thoughts};
use forerun_decode::{GenerationConfig, GrammarBegin};
use forerun_model::TokenId;
use serde_json::Value;

use super::{Ask, Conversation, Prompt, RawPrompt, Specials, grammar};
use crate::desk::{Facts, Job};
use crate::refusal::{Kind, Refusal};

/// Jobs, and how to read what they bring.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// As many as there are to be answers to the first prompt, then those to the next.
    pub(crate) jobs: Vec<Job>,
    /// How the begin of each answer is parted.
    pub(crate) thoughts: Thoughts,
    /// Tools that an answer may call; without any, nothing in it is a call.
    pub(crate) tools: Vec<Value>,
    /// Whether an answer calls one of them at most.
    pub(crate) is_single_call: bool,
    /// Texts that end an answer.
    pub(crate) stops: Vec<String>,
}

/// Renders and tokenises; takes time, so not on a thread of tokio's.
///
/// # Errors
/// A refusal that names what is wrong.
pub(crate) fn prepare(ask: Ask, facts: &Facts) -> Result<Prepared, Refusal> {
    let Ask { prompt, sampler, stops, max_tokens, logprobs, n, form } = ask;
    sampler.validate()?;
    StopMatcher::new(stops.clone())?;
    let form = form.as_ref();
    let mut prepared = Prepared {
        jobs: Vec::new(),
        thoughts: Thoughts::none(),
        tools: Vec::new(),
        is_single_call: false,
        stops,
    };
    let (prompts, bound) = match prompt {
        Prompt::Chat(conversation) => {
            let Rendered { tokens, n_lasting, thoughts, begin } = chat(&conversation, facts)?;
            let bound = grammar::of_chat(&conversation, form, begin, facts)?;
            prepared.thoughts = thoughts;
            prepared.is_single_call = conversation.is_single_call;
            prepared.tools = conversation.tools;
            (vec![(tokens, Some(n_lasting))], bound)
        }
        Prompt::Raw(prompts) => {
            let prompts = prompts.into_iter().enumerate();
            let tokens = prompts.map(|(index, prompt)| Ok((raw(prompt, index, facts)?, None)));
            (tokens.collect::<Result<Vec<_>, Refusal>>()?, grammar::of_raw(form, facts)?)
        }
    };
    for (tokens, checkpoint_at) in prompts {
        if tokens.len() >= facts.context {
            return Err(Refusal::context(tokens.len(), facts.context));
        }
        prepared.jobs.extend((0..n).map(|choice| Job {
            prompt: tokens.clone(),
            how: GenerationConfig {
                sampler: sampler.clone(),
                max_tokens,
                stops: prepared.stops.clone(),
                checkpoint_at,
                choice,
                logprobs,
                grammar: None,
            },
            bound: bound.clone(),
        }));
    }
    Ok(prepared)
}

/// A conversation as tokens.
struct Rendered {
    tokens: Vec<TokenId>,
    /// How many of them will begin the next turn's prompt too.
    n_lasting: usize,
    /// How the begin of an answer is parted.
    thoughts: Thoughts,
    /// Where in an answer its grammar begins.
    begin: GrammarBegin,
}

/// The tokens of a conversation with the begin of an answer.
///
/// # Errors
/// A refusal that names what is wrong.
pub(crate) fn encode_chat(conversation: &Conversation, facts: &Facts) -> Result<Vec<TokenId>, Refusal> {
    check_size(conversation, facts)?;
    let rendered = template(facts)?.render(&request(conversation))?;
    Ok(rendered.encode(&facts.tokenizer)?)
}

fn chat(conversation: &Conversation, facts: &Facts) -> Result<Rendered, Refusal> {
    check_size(conversation, facts)?;
    let template = template(facts)?;
    let request = request(conversation);
    let rendered = template.render(&request)?;
    let tokens = rendered.encode(&facts.tokenizer)?;
    if tokens.len() >= facts.context {
        return Err(Refusal::context(tokens.len(), facts.context));
    }
    let n_lasting = template.lasting(&request, &tokens, &facts.tokenizer);
    let text = rendered.text();
    Ok(Rendered { tokens, n_lasting, thoughts: Thoughts::after(&text), begin: GrammarBegin::after(&text) })
}

fn request(conversation: &Conversation) -> RenderRequest<'_> {
    RenderRequest {
        messages: &conversation.messages,
        tools: &conversation.tools,
        thinking: conversation.thinking,
        end: PromptEnd::Answer,
    }
}

fn template(facts: &Facts) -> Result<&ChatTemplate, Refusal> {
    facts.template.as_deref().ok_or_else(|| {
        let words = "the model's file has no chat template, so it takes no messages; use /v1/completions";
        Refusal::new(Kind::Invalid, words).with_code("no_chat_template")
    })
}

/// Refuses conversations that can't fit whatever their tokens are, before memory is spent on rendering them.
fn check_size(conversation: &Conversation, facts: &Facts) -> Result<(), Refusal> {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let messages = conversation.messages.iter();
    let calls = |m: &Message| -> usize {
        m.tool_calls.iter().flatten().map(|call| json_bytes(&call.function.arguments)).sum()
    };
    let texts: usize = messages.map(|m| length(&m.content) + length(&m.reasoning_content) + calls(m)).sum();
    let tools: usize = conversation.tools.iter().map(json_bytes).sum();
    check_bytes(texts + tools, facts)
}

/// Bytes of a value's text.
fn json_bytes(value: &Value) -> usize {
    /// Counts what is written.
    struct Count(usize);
    impl fmt::Write for Count {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len();
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting doesn't fail.
    let _ = write!(count, "{value}");
    count.0
}

fn check_bytes(prompt_bytes: usize, facts: &Facts) -> Result<(), Refusal> {
    if prompt_bytes < facts.prompt_bytes_max {
        return Ok(());
    }
    let context = facts.context;
    let tokens_min = prompt_bytes / (facts.prompt_bytes_max / context).max(1);
    Err(forerun_decode::DecodeError::PromptTooLarge { prompt_bytes, tokens_min, context }.into())
}

fn raw(prompt: RawPrompt, index: usize, facts: &Facts) -> Result<Vec<TokenId>, Refusal> {
    let tokens = match prompt {
        RawPrompt::Tokens(tokens) => tokens,
        RawPrompt::Text { text, specials } => {
            check_bytes(text.len(), facts)?;
            let opening = facts.tokenizer.vocabulary().opening().filter(|_| !text.is_empty());
            let text = match specials {
                Specials::Text => facts.tokenizer.encode_plain(&text)?,
                Specials::Parsed => facts.tokenizer.encode_special(&text)?,
            };
            opening.into_iter().chain(text).collect()
        }
    };
    if tokens.is_empty() {
        let words = format!("prompt {index} has no tokens; it must have at least one");
        return Err(Refusal::invalid("prompt", words).with_code("empty_prompt"));
    }
    Ok(tokens)
}
