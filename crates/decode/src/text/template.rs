//! A conversation to a prompt, by the Jinja template that a model's file carries.
//!
//! Templates are written for Hugging Face's renderer and so is this one: Python's methods on strings, `tojson` like
//! `json.dumps`, blocks trimmed, `raise_exception`, `bos_token` and `eos_token`. `strftime_now` is not defined: a
//! prompt doesn't change because a day has passed.
//!
//! **Who wrote what.** Only the template can produce control tokens; all text of messages and tools is ordinary
//! text, whatever it says (see `guard` for how, and for the limits). So a template that looks for a marker in a
//! person's text, as the stock one does for `<tool_response>`, doesn't find it. Text between two markers is
//! tokenised as one, whoever wrote its parts.
//!
//! **Thoughts in an assistant's text.** If a message has no `reasoning_content` and the template knows that
//! field, the content is cut at `</think>` before rendering, as the stock template does; the template then places
//! both parts. A template that doesn't know the field gets the content as it is, as ordinary text.
//!
//! **What a longer conversation keeps.** With the stock template the prompt of the first n messages (with
//! [`PromptEnd::History`]) is a prefix of that of n + 1, tools or not, with two exceptions. A new user message drops
//! the thinking sections behind the user message before it (empty ones too, since the template writes them there),
//! so the common prefix ends where the first dropped section begins. And a run of tool results is one turn, so a
//! prompt that ends inside the run closes the turn too soon.
//!
//! **Hostile templates.** A template has fuel for a bounded number of steps and bytes, from the size of the
//! request; then [`TextError::TemplateRunaway`]. Reading and rendering run on a stack of their own that is deep
//! enough for the deepest value that the fuel allows. One thing `minijinja` doesn't charge for:
//! a list that a template doubles by adding it to itself, dozens of times, can take time and memory without bound.
//! It comes with a model's file; no message can bring it.

use std::borrow::Cow;
use std::error::Error as _;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Value as Json;

use forerun_model::TokenId;

use super::guard::{Guard, Guarded, StandIns};
use super::message::PromptEnd;
use super::tokenizer::is_scaffold;
use super::{
    CallFormat, Message, RenderRequest, Role, TextError, Thinking, Tokenizer, ToolCall, python, source,
};

/// Room for a value that nests once per few steps of the most fuel. Memory is only taken for what is used.
const STACK_BYTES: usize = 256 << 20;

/// Fuel of a render: so much for itself, and so much for each part of the request. One step of a template, or 64
/// bytes that it makes, take one.
const FUEL_BASE: u64 = 200_000;
const FUEL_PER_MESSAGE: u64 = 2_000;
const FUEL_PER_VALUE: u64 = 100;
/// The stock template copies a text about ten times; this allows 64.
const FUEL_PER_BYTE: u64 = 1;
/// However large the request is.
const FUEL_MAX: u64 = 4_000_000;

/// How deep macros and loops may nest: far more than a template needs, far less than a stack holds.
const RECURSION_MAX: usize = 120;

/// Most characters of a wrong value that an error repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// The markers around thoughts, as every template of this family writes them.
const THOUGHTS_BEGIN: &str = "<think>";
const THOUGHTS_END: &str = "</think>";

const NAME: &str = "chat_template";

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    guarded: Guarded,
    /// Whether the template places thoughts by itself.
    knows_reasoning: bool,
    /// How it shows the model to call a tool.
    call_format: Option<CallFormat>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Reads a template, for the markers of `tokenizer`.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`].
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        source::check(source)?;
        let syntax = |error: minijinja::Error| TextError::TemplateSyntax { reason: format!("{error:#}") };
        let environment = on_deep_stack(|| {
            let mut environment = environment(syntax)?;
            environment.add_template_owned(NAME, source.to_owned()).map_err(syntax)?;
            Ok(environment)
        })?;
        let vocabulary = tokenizer.vocabulary();
        let markers =
            vocabulary.specials().map(|(literal, _)| literal).filter(|literal| is_scaffold(literal));
        let literal = |id: Option<TokenId>| id.map(|id| tokenizer.decode(&[id])).unwrap_or_default();
        Ok(Self {
            environment,
            guarded: Guarded::new(markers),
            knows_reasoning: source.contains("reasoning_content"),
            call_format: CallFormat::of_template(source),
            bos: literal(vocabulary.bos()),
            eos: literal(vocabulary.eos()),
        })
    }

    /// How the template shows the model to call a tool; `None` when it doesn't.
    pub fn call_format(&self) -> Option<CallFormat> {
        self.call_format
    }

    /// Whether it places a model's thoughts.
    pub fn knows_thoughts(&self) -> bool {
        self.knows_reasoning
    }

    /// How many of `tokens`, the prompt of `request`, will begin the next turn's prompt as well: templates open an answer in
    /// one way, and show one that was given in another, without its thoughts. A template that refuses the next turn says
    /// nothing of that: then all of them.
    pub fn lasting(&self, request: &RenderRequest<'_>, tokens: &[TokenId], tokenizer: &Tokenizer) -> usize {
        let answered = [request.messages, &[Message::assistant("."), Message::user(".")]].concat();
        let next = self.render(&RenderRequest { messages: &answered, ..*request });
        let next = next.and_then(|next| next.encode(tokenizer));
        next.map_or(tokens.len(), |next| tokens.iter().zip(&next).take_while(|(a, b)| a == b).count())
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`TextError`]: arguments that are no object, a refusal of the template, its failure, its running away.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<RenderedPrompt, TextError> {
        let mut guard = Guard::new(&self.guarded);
        let context = self.context(request, &mut guard)?;
        let fuel = fuel(request, &guard);
        let stand_ins = guard.into_stand_ins();
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let rendered = on_deep_stack(|| {
            let rendered = environment.get_template(NAME).and_then(|template| template.render(context));
            rendered.map_err(|error| failure(&error, fuel, &stand_ins))
        })?;
        Ok(RenderedPrompt { rendered, stand_ins })
    }

    fn context(&self, request: &RenderRequest<'_>, guard: &mut Guard<'_>) -> Result<Value, TextError> {
        let messages = request.messages.iter().enumerate();
        let messages = messages.map(|(index, message)| self.message(index, message, guard));
        let messages: Value = messages.collect::<Result<_, _>>()?;
        let tools: Value = request.tools.iter().map(|tool| guard.schema(tool)).collect::<Result<_, _>>()?;
        let mut context = vec![
            ("messages", messages),
            ("tools", if request.tools.is_empty() { Value::from(()) } else { tools }),
            ("add_generation_prompt", Value::from(request.end == PromptEnd::Answer)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ];
        match request.thinking {
            Thinking::Default => {}
            Thinking::On => context.push(("enable_thinking", Value::from(true))),
            Thinking::Off => context.push(("enable_thinking", Value::from(false))),
        }
        Ok(Value::from_pairs(context))
    }

    fn message(&self, index: usize, message: &Message, guard: &mut Guard<'_>) -> Result<Value, TextError> {
        let (thoughts, content) = self.cut(message);
        let content = if thoughts.is_some() { guard.cut_text(content)? } else { guard.text(content)? };
        let mut fields = vec![("role", Value::from(message.role.name())), ("content", content)];
        let optional = [
            ("reasoning_content", thoughts.or(message.reasoning_content.as_deref())),
            ("tool_call_id", message.tool_call_id.as_deref()),
            ("name", message.name.as_deref()),
        ];
        for (name, text) in optional {
            if let Some(text) = text {
                fields.push((name, guard.text(text)?));
            }
        }
        if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
            let calls: Value =
                calls.iter().map(|call| tool_call(index, call, guard)).collect::<Result<_, _>>()?;
            fields.push(("tool_calls", calls));
        }
        Ok(Value::from_pairs(fields))
    }

    /// Cuts thoughts off the content of a message that has no field for them; what is left is its content.
    fn cut<'m>(&self, message: &'m Message) -> (Option<&'m str>, &'m str) {
        let content = message.content.as_deref().unwrap_or_default();
        let may_cut =
            message.role == Role::Assistant && message.reasoning_content.is_none() && self.knows_reasoning;
        let Some((head, tail)) = content.split_once(THOUGHTS_END).filter(|_| may_cut) else {
            return (None, content);
        };
        let head = head.trim_end_matches('\n');
        let thoughts = head.rsplit_once(THOUGHTS_BEGIN).map_or(head, |(_, thoughts)| thoughts);
        let answer = tail.rsplit_once(THOUGHTS_END).map_or(tail, |(_, answer)| answer);
        (Some(thoughts), answer.trim_end().trim_start_matches('\n'))
    }
}

/// A rendered conversation that still knows which markers are the template's.
#[derive(Clone, Debug)]
pub struct RenderedPrompt {
    rendered: String,
    stand_ins: StandIns,
}

impl RenderedPrompt {
    /// The prompt as a person reads it. It doesn't say who wrote a marker: tokenise with [`Self::encode`], not this.
    pub fn text(&self) -> Cow<'_, str> {
        self.stand_ins.restore(&self.rendered)
    }

    /// The tokens of the prompt, by the tokenizer that the template was made for.
    ///
    /// # Errors
    /// [`TextError::Bpe`]: the BPE model failed.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, TextError> {
        tokenizer.encode_scaffold(&self.rendered, |plain| self.stand_ins.restore(plain))
    }
}

/// The template itself said no.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// Runs `work` on a stack that holds what a hostile template can nest.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, TextError> + Send) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name(NAME.into()).stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|source| TextError::Stack { stack_bytes: STACK_BYTES, source })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn environment(syntax: impl Fn(minijinja::Error) -> TextError) -> Result<Environment<'static>, TextError> {
    let mut environment = Environment::new();
    let rules = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(rules.map_err(syntax)?);
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_debug(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", python::tojson);
    environment.add_function("raise_exception", |reason: String| -> Result<Value, minijinja::Error> {
        let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
        Err(error.with_source(Refusal(reason)))
    });
    Ok(environment)
}

fn fuel(request: &RenderRequest<'_>, guard: &Guard<'_>) -> u64 {
    let parts = [
        (request.messages.len(), FUEL_PER_MESSAGE),
        (guard.n_values, FUEL_PER_VALUE),
        (guard.n_bytes, FUEL_PER_BYTE),
    ];
    let fuel =
        parts.iter().fold(FUEL_BASE, |sum, &(n, each)| sum.saturating_add((n as u64).saturating_mul(each)));
    fuel.min(FUEL_MAX)
}

fn tool_call(message: usize, call: &ToolCall, guard: &mut Guard<'_>) -> Result<Value, TextError> {
    let function = &call.function;
    let arguments = guard.arguments(&*arguments(message, &function.name, &function.arguments)?)?;
    let name = guard.text(&function.name)?;
    let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
    let mut fields = vec![("type", Value::from("function")), ("function", function)];
    if let Some(id) = &call.id {
        fields.push(("id", guard.text(id)?));
    }
    Ok(Value::from_pairs(fields))
}

/// The arguments as an object, whichever way they were sent.
fn arguments<'a>(message: usize, function: &str, sent: &'a Json) -> Result<Cow<'a, Json>, TextError> {
    let wrong = |found: &str| {
        let found = found.chars().take(SHOWN_CHARS_MAX).collect();
        TextError::ToolArguments {
            message,
            function: function.chars().take(SHOWN_CHARS_MAX).collect(),
            found,
        }
    };
    match sent {
        Json::Object(_) => Ok(Cow::Borrowed(sent)),
        Json::Null => Ok(Cow::Owned(Json::Object(serde_json::Map::new()))),
        Json::String(text) if text.trim().is_empty() => Ok(Cow::Owned(Json::Object(serde_json::Map::new()))),
        Json::String(text) => match serde_json::from_str(text) {
            Ok(object @ Json::Object(_)) => Ok(Cow::Owned(object)),
            _ => Err(wrong(text)),
        },
        other => Err(wrong(&other.to_string())),
    }
}

fn failure(error: &minijinja::Error, fuel: u64, stand_ins: &StandIns) -> TextError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateRunaway { fuel };
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Refusal(reason)) = cause.downcast_ref() {
            return TextError::TemplateRefused { reason: stand_ins.restore(reason).into_owned() };
        }
        if cause.downcast_ref().is_some_and(|e: &minijinja::Error| e.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateRunaway { fuel };
        }
        source = cause.source();
    }
    let reason = format!("{error:#}");
    TextError::TemplateFailed { reason: stand_ins.restore(&reason).into_owned() }
}
