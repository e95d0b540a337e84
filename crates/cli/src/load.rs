//! From arguments to an engine: what every command that runs a model does first.

use std::error::Error;

use clap::CommandFactory;
use clap::error::ErrorKind;
use forerun_decode::config::{GrammarRoom, SequenceConfig};
use forerun_decode::text::Thinking;
use forerun_decode::{
    Decision, DiskProbe, Engine, EngineConfig, GenerationConfig, ModelSource, SamplerConfig, SlotWish,
};

use crate::args::{Args, DraftArgs, ModelArgs, SamplingArgs, ThinkingName, backend_choice};
use crate::embedded;
use crate::interrupt::Interrupt;
use crate::pressure;
use crate::probe::{cache_folder, unix_seconds};
use crate::progress::{Bar, Unit};
use crate::say::say;

/// A model that is ready, and how it is to answer.
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    pub(crate) generation: GenerationConfig,
    pub(crate) thinking: Thinking,
    /// What was decided here, beyond the engine's decisions.
    pub(crate) decisions: Vec<Decision>,
}

/// What a command wants of the engine beyond the arguments of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish<'a> {
    pub(crate) draft: Option<&'a DraftArgs>,
    /// Checkpoints that are kept if the arguments don't say otherwise.
    pub(crate) n_checkpoints: usize,
    pub(crate) sequences: SequenceConfig,
    /// Memory for conversations without a seat.
    pub(crate) prefix_bytes: u64,
    pub(crate) grammars: GrammarRoom,
    /// Memory of a server around the engine.
    pub(crate) server_bytes: u64,
}

/// Opens the model, says what was decided, and reads the resident tensors. `None` when interrupted.
pub(crate) fn load(
    model: &ModelArgs,
    sampling: &SamplingArgs,
    Wish { draft, n_checkpoints, sequences, prefix_bytes, grammars, server_bytes }: Wish<'_>,
    interrupt: &Interrupt,
) -> Result<Option<Loaded>, Box<dyn Error>> {
    let mut config =
        EngineConfig { sequences, prefix_bytes, grammars, server_bytes, ..engine_config(model)? };
    if let Some(draft) = draft {
        config.draft = draft.draft.clone();
        config.draft_length = draft.draft_length.0;
        config.checkpoints = draft.checkpoints(n_checkpoints);
    }
    let is_embedded = matches!(config.model, ModelSource::Embedded { .. });
    let mut engine = Engine::open(&config)?;
    pressure::watch(&mut engine, model.quiet);
    let mut decisions = Vec::new();
    let generation = generation(sampling, &engine, &mut decisions);
    let thinking = thinking(sampling.thinking, is_embedded, &mut decisions);
    if !model.quiet {
        report(&engine, &decisions);
    }
    if !warm_up(&engine, model.quiet, interrupt) {
        return Ok(None);
    }
    Ok(Some(Loaded { engine, generation, thinking, decisions }))
}

/// What the arguments say of the engine.
pub(crate) fn engine_config(model: &ModelArgs) -> Result<EngineConfig, Box<dyn Error>> {
    let mut config = EngineConfig::new(embedded::source(model.model.as_ref())?);
    config.budget_bytes = model.memory;
    config.context = model.ctx.map(|ctx| usize::try_from(ctx).unwrap_or(usize::MAX));
    config.slots = model.slots.map_or(SlotWish::Fill, SlotWish::PerLayer);
    config.io = model.io.into();
    config.verify_reads = model.verify_reads;
    config.predictor = model.predictor.into();
    config.lookahead = model.lookahead.0;
    config.policy = model.policy.into();
    config.schedule = model.schedule.into();
    config.disk_limit = model.disk_limit;
    config.probe =
        Some(DiskProbe { folder: cache_folder(), unix_seconds: unix_seconds(), seed: random_seed() });
    config.n_threads = model.threads.map(usize::from);
    config.backend = backend_choice(model.backend, model.device)
        .unwrap_or_else(|words| Args::command().error(ErrorKind::ArgumentConflict, words).exit());
    config.pin_slots = model.pin_slots;
    config.touch_slots = model.touch_slots;
    Ok(config)
}

/// Reads the resident tensors; `false` when interrupted.
pub(crate) fn warm_up(engine: &Engine, quiet: bool, interrupt: &Interrupt) -> bool {
    let bar = Bar::new("loading", Unit::Bytes, engine.resident_bytes(), quiet);
    let mut done = 0;
    for bytes in engine.warm_up() {
        done += bytes;
        bar.set(done);
        if interrupt.is_set() {
            return false;
        }
    }
    true
}

/// Says what was decided, on stderr.
pub(crate) fn report(engine: &Engine, decisions: &[Decision]) {
    for Decision { what, choice, reason } in engine.decisions().iter().chain(decisions) {
        say!("{what}: {choice} ({reason})");
    }
    if engine.plan().budget.is_some() {
        say!("memory\n{}", engine.plan());
    }
    let unknown = engine.unknown_tensors();
    if let Some(first) = unknown.first() {
        say!("warning: {} tensors of the file are not used, such as `{first}`", unknown.len());
    }
}

fn generation(args: &SamplingArgs, engine: &Engine, decisions: &mut Vec<Decision>) -> GenerationConfig {
    let base = match engine.suggested_sampling() {
        Some(suggested) if args.temp.is_none() => {
            let choice = format!("temperature {}", suggested.temperature);
            decisions.push(Decision::new("sampling", choice, "the file suggests it".into()));
            suggested.clone()
        }
        Some(suggested) => suggested.clone(),
        None if args.temp.is_none() => {
            let reason = "the file suggests nothing; --temp changes it".into();
            decisions.push(Decision::new("sampling", "greedy", reason));
            SamplerConfig::greedy()
        }
        None => SamplerConfig::default(),
    };
    let temperature = args.temp.unwrap_or(base.temperature);
    let seed = args.seed.unwrap_or_else(|| {
        let seed = random_seed();
        if temperature > 0.0 {
            decisions.push(Decision::new("seed", seed, "another one each time; --seed repeats one".into()));
        }
        seed
    });
    let sampler = SamplerConfig {
        temperature,
        top_k: args.top_k.unwrap_or(base.top_k),
        top_p: args.top_p.unwrap_or(base.top_p),
        min_p: args.min_p.unwrap_or(base.min_p),
        repetition_penalty: args.repeat_penalty.unwrap_or(base.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(base.frequency_penalty),
        seed,
    };
    GenerationConfig {
        sampler,
        max_tokens: args.max_tokens,
        stops: args.stop.clone(),
        ..GenerationConfig::default()
    }
}

/// A seed from the standard library's own random state, cut to 32 bits so that it is easy to type again.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) >> 32
}

fn thinking(name: ThinkingName, is_embedded: bool, decisions: &mut Vec<Decision>) -> Thinking {
    match name {
        ThinkingName::On => Thinking::On,
        ThinkingName::Off => Thinking::Off,
        ThinkingName::Auto if is_embedded => {
            let reason = "the embedded model is too small to gain by it; --thinking changes it".into();
            decisions.push(Decision::new("thinking", "off", reason));
            Thinking::Off
        }
        ThinkingName::Auto => Thinking::Default,
    }
}
