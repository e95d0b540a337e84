//! Fields that chat and plain completions share.

use forerun_decode::SamplerConfig;
use serde_json::Value;

use super::forms;
use crate::ask::Form;
use crate::desk::Facts;
use crate::fields::{Fields, wrong};
use crate::refusal::Refusal;

/// Most answers to all prompts of a request.
const CHOICES_MAX: usize = 64;
/// Most alternatives beside a token.
pub(super) const TOP_LOGPROBS_MAX: usize = 20;

/// Fields that would change an answer in any shape, are other servers' or other models', and have no counterpart here.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("logit_bias", "biases of single tokens can't be given"),
    ("guided_choice", "write `regex` with the choices"),
    ("structured_outputs", "write `response_format`, `regex` or `grammar`"),
    ("use_beam_search", "answers are drawn token by token"),
    ("min_tokens", "an answer ends where the model ends it"),
    ("ignore_eos", "an answer ends where the model ends it"),
    ("stop_token_ids", "write stop texts in `stop`"),
    ("bad_words", "words can't be forbidden"),
    ("include_stop_str_in_output", "stop texts are never part of an answer"),
    ("mirostat", "use temperature, top_k, top_p and min_p"),
    ("dry_multiplier", "use the repetition, presence and frequency penalties"),
    ("xtc_probability", "use temperature, top_k, top_p and min_p"),
    ("dynatemp_range", "use temperature"),
    ("samplers", "filters have one order, that of docs/api.md"),
    ("n_probs", "write logprobs"),
    ("prompt_logprobs", "log-probabilities are of answers only"),
    ("truncate_prompt_tokens", "prompts are never cut"),
    ("n_predict", "write `max_tokens`"),
    ("typical_p", "use temperature, top_k, top_p and min_p"),
    ("tfs_z", "use temperature, top_k, top_p and min_p"),
    ("top_a", "use temperature, top_k, top_p and min_p"),
    ("top_n_sigma", "use temperature, top_k, top_p and min_p"),
    ("length_penalty", "answers are drawn token by token"),
    ("allowed_token_ids", "write `regex` or `grammar`"),
    ("logits_processors", "no code is run here"),
    ("lora", ADAPTERS),
    ("lora_request", ADAPTERS),
    ("adapters", ADAPTERS),
    ("documents", "write them into the messages"),
];
const ADAPTERS: &str = "adapters aren't applied; merge them into the model";
/// Values of some of them that ask for nothing.
const OFF: &[(&str, f64)] =
    &[("typical_p", 1.0), ("tfs_z", 1.0), ("top_n_sigma", -1.0), ("length_penalty", 1.0)];

/// What chat and plain completions share.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) sampler: SamplerConfig,
    pub(super) stops: Vec<String>,
    pub(super) max_tokens: Option<usize>,
    pub(super) n: u32,
    pub(super) stream: Option<StreamOptions>,
    pub(super) form: Option<Form>,
}

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamOptions {
    /// A last chunk tells the counts of tokens.
    pub(super) include_usage: bool,
    /// Chunks tell how far the reading of the prompt is.
    pub(super) prompt_progress: bool,
}

impl Settings {
    /// Takes the fields.
    ///
    /// # Errors
    /// A refusal that names the first wrong one.
    pub(super) fn take(fields: &mut Fields, facts: &Facts) -> Result<Self, Refusal> {
        let defaults = &facts.config.defaults;
        let mut stops = defaults.stops.clone();
        stops.extend(texts(fields, "stop")?);
        Ok(Self {
            sampler: sampler(fields, facts)?,
            stops,
            max_tokens: max_tokens(fields)?.or(defaults.max_tokens),
            n: u32::try_from(fields.count("n", 1..=CHOICES_MAX)?.unwrap_or(1)).unwrap_or(1),
            stream: stream(fields)?,
            form: forms::take(fields)?,
        })
    }

    /// Refuses more answers than may wait.
    ///
    /// # Errors
    /// A refusal with both numbers.
    pub(super) fn check_choices(&self, n_prompts: usize, facts: &Facts) -> Result<(), Refusal> {
        let max = CHOICES_MAX.min(facts.config.queue_max + facts.n_parallel);
        let wanted = n_prompts.saturating_mul(self.n as usize);
        if wanted <= max {
            return Ok(());
        }
        let words = format!("{wanted} answers are asked for at once; at most {max} are possible");
        Err(Refusal::invalid(if n_prompts > 1 { "prompt" } else { "n" }, words))
    }
}

/// How tokens are drawn. Refuses what other servers take to change an answer, whatever the shape of the request.
///
/// # Errors
/// A refusal that names the first wrong field.
pub(crate) fn sampler(fields: &mut Fields, facts: &Facts) -> Result<SamplerConfig, Refusal> {
    for (field, off) in OFF {
        if let Some(value) = fields.take(field).filter(|value| value.as_f64() != Some(*off)) {
            fields.put(field, value);
        }
    }
    fields.refuse(UNSUPPORTED)?;
    let defaults = &facts.config.defaults;
    let base = &defaults.sampler;
    let repetition = fields.number("repetition_penalty")?;
    let repetition = repetition.or(fields.number("repeat_penalty")?);
    let top_p = fields.number("top_p")?;
    let seed = match fields.integer("seed")?.filter(|seed| *seed != ANY_SEED) {
        Some(seed) => Some(
            as_seed(seed)
                .ok_or_else(|| Refusal::invalid("seed", format!("`seed` is {seed}; it must fit 64 bits")))?,
        ),
        None => defaults.seed,
    };
    Ok(SamplerConfig {
        temperature: fields.number("temperature")?.unwrap_or(base.temperature),
        top_k: top_k(fields)?.unwrap_or(base.top_k),
        // 0 leaves the most probable token only; the sampler wants a share above 0 for that.
        top_p: top_p.map_or(base.top_p, |p| if p == 0.0 { f32::MIN_POSITIVE } else { p }),
        min_p: fields.number("min_p")?.unwrap_or(base.min_p),
        repetition_penalty: repetition.unwrap_or(base.repetition_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(base.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(base.frequency_penalty),
        seed: seed.unwrap_or_else(crate::chance::random),
    })
}

/// What clients send for another seed each time.
const ANY_SEED: i128 = -1;

/// Any integer of 64 bits, signed or not.
#[expect(clippy::cast_sign_loss, reason = "a negative seed is as good as its bits")]
fn as_seed(seed: i128) -> Option<u64> {
    u64::try_from(seed).ok().or_else(|| i64::try_from(seed).ok().map(|seed| seed as u64))
}

/// -1 and 0 are all.
fn top_k(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    match fields.integer("top_k")? {
        None => Ok(None),
        Some(-1) => Ok(Some(0)),
        Some(k) => match usize::try_from(k) {
            Ok(k) => Ok(Some(k)),
            Err(_) => Err(Refusal::invalid(
                "top_k",
                format!("`top_k` is {k}; it must be at least 0, or -1 for all"),
            )),
        },
    }
}

/// `max_completion_tokens`, or its older name; -1 is as many as fit.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    let mut found = None;
    for field in ["max_completion_tokens", "max_tokens"] {
        let Some(number) = fields.integer(field)? else { continue };
        let number = match (number, usize::try_from(number)) {
            (-1, _) => usize::MAX,
            (_, Ok(number)) => number,
            (_, Err(_)) => {
                let words = format!("`{field}` is {number}; it must be at least 0, or -1 for as many as fit");
                return Err(Refusal::invalid(field, words));
            }
        };
        if found.is_some_and(|found| found != number) {
            let words = "`max_tokens` and `max_completion_tokens` are different; write one of them";
            return Err(Refusal::invalid(field, words));
        }
        found = Some(number);
    }
    Ok(found)
}

/// A text or a list of texts.
///
/// # Errors
/// A refusal that names what is wrong.
pub(crate) fn texts(fields: &mut Fields, field: &str) -> Result<Vec<String>, Refusal> {
    let list = match fields.take(field) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![text]),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(fields.wrong(field, "a string or a list of strings", &other)),
    };
    let text = |(index, text)| match text {
        Value::String(text) => Ok(text),
        other => Err(wrong(&format!("{}[{index}]", fields.name(field)), "a string", &other)),
    };
    list.into_iter().enumerate().map(text).collect()
}

fn stream(fields: &mut Fields) -> Result<Option<StreamOptions>, Refusal> {
    let is_wanted = fields.flag("stream")?.unwrap_or(false);
    let mut options = StreamOptions::default();
    if let Some(mut given) = fields.object("stream_options")? {
        options.include_usage = given.flag("include_usage")?.unwrap_or(false);
    }
    for field in ["prompt_progress", "return_progress"] {
        options.prompt_progress |= fields.flag(field)?.unwrap_or(false);
    }
    Ok(is_wanted.then_some(options))
}
