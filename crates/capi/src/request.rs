//! From what C asks to what the engine takes.

use std::hash::{BuildHasher, RandomState};

use forerun_decode::text::{Message, RenderRequest, Role, Thinking, Thoughts};
use forerun_decode::{Engine, GenerationConfig, SamplerConfig};
use forerun_model::TokenId;

use crate::CapiError;
use crate::abi::{self, Request, Sampling};

/// A request, all of whose pointers were looked at.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    /// Its numbers.
    pub(crate) request: Request,
    /// Roles and words.
    pub(crate) messages: Vec<(i32, &'a str)>,
    pub(crate) prompt: Option<&'a str>,
    pub(crate) sampling: Option<Sampling>,
    pub(crate) stops: Vec<&'a str>,
}

/// What the engine is to read, and how it is to answer.
pub(crate) struct Prepared {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) config: GenerationConfig,
    /// How the answer is parted.
    pub(crate) thoughts: Thoughts,
}

impl Ask<'_> {
    /// Renders and tokenises.
    ///
    /// # Errors
    /// [`CapiError`] names the field that is wrong, or says that the prompt doesn't fit.
    pub(crate) fn prepare(&self, engine: &Engine) -> Result<Prepared, CapiError> {
        let thinking = self.thinking()?;
        let sampler = self.sampler(engine);
        sampler.validate().map_err(|error| CapiError::answer(error.into()))?;
        let (tokens, checkpoint_at, thoughts) = match (self.prompt, &self.messages[..]) {
            (None, []) => return Err(CapiError::Asked { found: "neither" }),
            (Some(_), [_, ..]) => return Err(CapiError::Asked { found: "both" }),
            (Some(prompt), []) => (self.plain(prompt, engine)?, None, Thoughts::none()),
            (None, messages) => {
                let (tokens, n_lasting, thoughts) = chat(messages, thinking, engine)?;
                (tokens, Some(n_lasting), thoughts)
            }
        };
        let max_tokens = usize::try_from(self.request.max_tokens).ok().filter(|&n| n > 0);
        let stops = self.stops.iter().map(|&stop| stop.to_owned()).collect();
        let config =
            GenerationConfig { sampler, max_tokens, stops, checkpoint_at, ..GenerationConfig::default() };
        Ok(Prepared { tokens, config, thoughts })
    }

    fn thinking(&self) -> Result<Thinking, CapiError> {
        match self.request.thinking {
            abi::THINKING_DEFAULT => Ok(Thinking::Default),
            abi::THINKING_ON => Ok(Thinking::On),
            abi::THINKING_OFF => Ok(Thinking::Off),
            other => Err(CapiError::Value {
                name: "thinking".to_owned(),
                found: other.into(),
                right: "one of FORERUN_THINKING_DEFAULT (0), FORERUN_THINKING_ON (1), FORERUN_THINKING_OFF (2)",
            }),
        }
    }

    /// What is asked for, or else what the file suggests, or else the most probable token.
    fn sampler(&self, engine: &Engine) -> SamplerConfig {
        let mut sampler = match self.sampling {
            None => engine.suggested_sampling().cloned().unwrap_or_else(SamplerConfig::greedy),
            Some(sampling) => sampler(&sampling),
        };
        if self.sampling.is_none_or(|sampling| sampling.seed == 0) {
            sampler.seed = fresh_seed();
        }
        sampler
    }

    fn plain(&self, prompt: &str, engine: &Engine) -> Result<Vec<TokenId>, CapiError> {
        check_size(prompt.len(), engine)?;
        let tokenizer = engine.tokenizer();
        // An empty prompt stays one, to be refused.
        let opening = tokenizer.vocabulary().opening().filter(|_| !prompt.is_empty());
        let tokens = match self.request.prompt_has_control_tokens {
            0 => tokenizer.encode_plain(prompt),
            _ => tokenizer.encode_special(prompt),
        };
        let tokens = tokens.map_err(|error| CapiError::answer(error.into()))?;
        Ok(opening.into_iter().chain(tokens).collect())
    }
}

/// A filter or a penalty of zero is none.
fn sampler(sampling: &Sampling) -> SamplerConfig {
    let or_one = |value: f32| if value == 0.0 { 1.0 } else { value };
    SamplerConfig {
        temperature: sampling.temperature,
        top_k: usize::try_from(sampling.top_k).unwrap_or(usize::MAX),
        top_p: or_one(sampling.top_p),
        min_p: sampling.min_p,
        repetition_penalty: or_one(sampling.repetition_penalty),
        seed: sampling.seed,
        ..SamplerConfig::default()
    }
}

/// The tokens of a conversation, how many of them will begin the next turn's, and how its answer is parted.
fn chat(
    messages: &[(i32, &str)],
    thinking: Thinking,
    engine: &Engine,
) -> Result<(Vec<TokenId>, usize, Thoughts), CapiError> {
    let of_text = |error: forerun_decode::text::TextError| CapiError::answer(error.into());
    let template = engine.template().map_err(CapiError::answer)?;
    check_size(messages.iter().map(|(_, content)| content.len()).sum(), engine)?;
    let messages = messages.iter().enumerate();
    let messages = messages.map(|(i, &(role, content))| Ok(Message::new(self::role(i, role)?, content)));
    let messages = messages.collect::<Result<Vec<_>, CapiError>>()?;
    let request = RenderRequest { thinking, ..RenderRequest::new(&messages) };
    let rendered = template.render(&request).map_err(of_text)?;
    let tokens = rendered.encode(engine.tokenizer()).map_err(of_text)?;
    let n_lasting = template.lasting(&request, &tokens, engine.tokenizer());
    Ok((tokens, n_lasting, Thoughts::after(&rendered.text())))
}

/// Refuses what can't fit whatever its tokens are, before memory is spent on it.
fn check_size(prompt_bytes: usize, engine: &Engine) -> Result<(), CapiError> {
    let (bytes_max, context) = (engine.prompt_bytes_max(), engine.plan().context);
    if prompt_bytes < bytes_max {
        return Ok(());
    }
    let prompt_tokens = prompt_bytes / (bytes_max / context).max(1);
    Err(CapiError::Context { at_least: "at least ", prompt_tokens, context })
}

fn role(i: usize, role: i32) -> Result<Role, CapiError> {
    match role {
        abi::ROLE_SYSTEM => Ok(Role::System),
        abi::ROLE_USER => Ok(Role::User),
        abi::ROLE_ASSISTANT => Ok(Role::Assistant),
        other => Err(CapiError::Value {
            name: format!("messages[{i}].role"),
            found: other.into(),
            right: "one of FORERUN_ROLE_SYSTEM (1), FORERUN_ROLE_USER (2), FORERUN_ROLE_ASSISTANT (3)",
        }),
    }
}

/// A seed from the standard library's own random state, never 0.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0).max(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ptr;

    use super::*;

    /// A request to go on with `prompt` for so many tokens.
    pub(crate) fn ask(prompt: &str, max_tokens: u32) -> Ask<'_> {
        let request = Request {
            size: size_of::<Request>(),
            messages: ptr::null(),
            n_messages: 0,
            prompt: ptr::null(),
            prompt_has_control_tokens: 0,
            thinking: abi::THINKING_DEFAULT,
            max_tokens,
            sampling: ptr::null(),
            stops: ptr::null(),
            n_stops: 0,
        };
        Ask { request, messages: Vec::new(), prompt: Some(prompt), sampling: None, stops: Vec::new() }
    }

    #[test]
    fn zero_switches_a_filter_off() {
        let zero = Sampling {
            size: size_of::<Sampling>(),
            seed: 3,
            temperature: 0.7,
            top_p: 0.0,
            min_p: 0.0,
            top_k: 0,
            repetition_penalty: 0.0,
        };
        let plain = SamplerConfig {
            temperature: 0.7,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 3,
            ..SamplerConfig::default()
        };
        assert_eq!(sampler(&zero), plain);
        let some = Sampling { top_p: 0.5, repetition_penalty: 1.1, ..zero };
        assert_eq!(sampler(&some), SamplerConfig { top_p: 0.5, repetition_penalty: 1.1, ..plain });
    }
}
