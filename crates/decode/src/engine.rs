//! Builds the parts from a file and a budget, and runs steps through them.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use forerun_arena::Arena;
use forerun_compute::{
    Backend, ComputeError, Cpu, KvType, Reference, Row, SequenceIdx, Step, StepOutput, Tensor, Weights,
};
use forerun_model::metadata::float;
use forerun_model::{Clock, KeyValue, KeyValues, LayerId, ModelShape, Position, SystemClock, TokenId};
use forerun_scheduler::{CachePolicy, NoPredictor, Predictor, Scheduler, SchedulerConfig, SchedulerStats};
use forerun_storage::{Catalog, FileStore, Gguf, Resident, ResidentMode, StoreStats};

use crate::DecodeError;
use crate::config::{BackendChoice, EngineConfig, ModelSource};
use crate::io;
use crate::memory_plan::{MemoryPlan, PlanInput, SlotWish};
use crate::sampler::SamplerConfig;
use crate::step::{Lookahead, StepLoop};
use crate::telemetry::Decision;
use crate::text::{ChatTemplate, Tokenizer, VocabularyParts};

/// Pages of this size are what a mapping rounds up to.
const PAGE_BYTES: u64 = 4096;
/// Metadata that is not needed once the tokenizer stands.
const TEXT_KEYS: [&str; 4] =
    ["tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"];

/// A model, ready to answer. One conversation at a time uses it: see [`crate::Session`].
pub struct Engine {
    shape: ModelShape,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    path: PathBuf,
    suggested: Option<SamplerConfig>,
    resident: Resident,
    backend: Box<dyn Backend + Send>,
    scheduler: Scheduler,
    steps: StepLoop,
    output: StepOutput,
    plan: MemoryPlan,
    decisions: Vec<Decision>,
    clock: Arc<dyn Clock>,
    rows: Vec<Row>,
}

/// What a caller may put in place of the engine's own choice.
pub struct Parts {
    /// A scheduler with its slots and store; `None`: made as the configuration and the plan say.
    pub scheduler: Option<Scheduler>,
    /// Who guesses.
    pub predictor: Box<dyn Predictor>,
    /// Whether routers are asked for guesses.
    pub lookahead: Lookahead,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            scheduler: None,
            predictor: Box::new(NoPredictor),
            lookahead: Lookahead::Off,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl Parts {
    /// A scheduler of the caller's, which may listen to guesses.
    pub fn over(scheduler: Scheduler, clock: Arc<dyn Clock>) -> Self {
        Self { scheduler: Some(scheduler), lookahead: Lookahead::On, clock, ..Self::default() }
    }
}

impl Engine {
    /// Opens the model of `config`.
    ///
    /// # Errors
    /// [`DecodeError`]: the file, its header, the budget, or what the system refuses. Nothing large has been
    /// allocated when a budget is refused.
    pub fn open(config: &EngineConfig) -> Result<Self, DecodeError> {
        Self::open_with(config, Parts::default())
    }

    /// Opens the model of `config` with some parts of the caller's.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(config: &EngineConfig, parts: Parts) -> Result<Self, DecodeError> {
        let (mut gguf, path) = open(&config.model)?;
        let shape = ModelShape::from_metadata(&gguf.metadata)?;
        let catalog = Arc::new(Catalog::new(&shape, &gguf)?);
        let tokenizer = Tokenizer::new(&VocabularyParts::from_metadata(&gguf.metadata)?)?;
        let template = template(&gguf, &tokenizer)?;
        for key in TEXT_KEYS {
            gguf.metadata.take(key);
        }
        let suggested = suggested_sampling(&gguf);
        let resident = Resident::load(&shape, &gguf, ResidentMode::Mapped)?;
        let weights = bind_weights(&shape, &catalog, &resident)?;
        let mut decisions = Vec::new();
        let context = context(config, &shape, &mut decisions)?;
        let io = io::choose(config, &gguf, &catalog, &mut decisions)?;
        let plan = MemoryPlan::new(&PlanInput {
            shape: &shape,
            slot_bytes: catalog.slot_bytes() as u64,
            dense_bytes: dense_bytes(&resident, &config.model, &weights),
            text_bytes: tokenizer.estimated_bytes() as u64 + header_bytes(&gguf),
            io_bytes: io.bytes,
            context,
            kv: kv_type(config.backend),
            budget_bytes: config.budget_bytes,
            slots: config.slots,
        })?;
        explain(&plan, config, &mut decisions);
        let backend = backend(config, weights, &plan, context, &mut decisions)?;
        let Parts { scheduler, predictor, lookahead, clock } = parts;
        let scheduler = match scheduler {
            Some(scheduler) => scheduler,
            None => Scheduler::new(SchedulerConfig {
                arena: Arena::new(plan.n_slots, catalog.slot_bytes())?,
                store: Box::new(FileStore::new(catalog, gguf.files().clone(), io.open(&gguf, &clock)?)),
                predictor,
                policy: policy(config.slots),
                clock: Arc::clone(&clock),
            })?,
        };
        let steps = StepLoop::new(&shape, lookahead);
        let (output, rows) = (StepOutput::default(), Vec::new());
        Ok(Self {
            shape,
            tokenizer,
            template,
            path,
            suggested,
            resident,
            backend,
            scheduler,
            steps,
            output,
            plan,
            decisions,
            clock,
            rows,
        })
    }

    /// Runs one step over consecutive text tokens that follow `past` ones and accepts them. Returns the logits of
    /// the last token if they are wanted.
    ///
    /// # Errors
    /// [`DecodeError`]; what was accepted before stays as it was, and the step can be tried again.
    pub fn step(
        &mut self,
        past: usize,
        tokens: &[TokenId],
        wish: Logits,
    ) -> Result<Option<&[f32]>, DecodeError> {
        let first = u32::try_from(past).unwrap_or(u32::MAX);
        let last = tokens.len().saturating_sub(1);
        self.rows.clear();
        self.rows.extend((first..).zip(tokens).enumerate().map(|(i, (position, &token))| Row {
            token,
            position: Position::text(position),
            wants_logits: wish == Logits::Last && i == last,
        }));
        let step = Step { sequence: SequenceIdx(0), past, rows: &self.rows, may_reject: false };
        self.steps.run(&mut *self.backend, &mut self.scheduler, &step, &mut self.output)?;
        self.backend.accept(tokens.len())?;
        Ok((wish == Logits::Last).then(|| self.output.row(0)))
    }

    /// Pages of the resident tensors, to be touched in order: reads them from disk before the first token needs
    /// them. Each item is a number of bytes that are in memory now.
    pub fn warm_up(&self) -> impl Iterator<Item = u64> + '_ {
        let step = usize::try_from(PAGE_BYTES).unwrap_or(usize::MAX);
        let pieces = self.resident.tensors().iter().flat_map(|tensor| tensor.bytes.chunks(1 << 20));
        pieces.map(move |piece| {
            let touched: u64 = piece.iter().step_by(step).map(|&b| u64::from(b)).sum();
            std::hint::black_box(touched);
            piece.len() as u64
        })
    }

    /// Bytes that [`Self::warm_up`] goes through.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.len_bytes()
    }

    /// Tensors of the file that nothing here uses.
    pub fn unknown_tensors(&self) -> &[String] {
        self.resident.unknown()
    }

    /// The model's shape.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The file's chat template.
    ///
    /// # Errors
    /// [`DecodeError::NoTemplate`] when it has none.
    pub fn template(&self) -> Result<&ChatTemplate, DecodeError> {
        self.template.as_ref().ok_or_else(|| DecodeError::NoTemplate { path: self.path.clone() })
    }

    /// The sampling that the file suggests (`general.sampling.*`), over our defaults; `None` when it doesn't.
    pub fn suggested_sampling(&self) -> Option<&SamplerConfig> {
        self.suggested.as_ref()
    }

    /// Where the memory goes.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// What was decided automatically, and why.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Counts of the scheduler.
    pub fn scheduler_stats(&self) -> SchedulerStats {
        self.scheduler.stats()
    }

    /// Counts of the store.
    pub fn store_stats(&self) -> StoreStats {
        self.scheduler.store_stats()
    }

    /// Where time comes from.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }
}

/// Whether a step's last logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Those of the last token.
    Last,
    /// None: the prompt goes on.
    None,
}

fn open(model: &ModelSource) -> Result<(Gguf, PathBuf), DecodeError> {
    Ok(match model {
        ModelSource::Path(path) => (Gguf::open(path)?, path.clone()),
        ModelSource::Embedded { name, bytes } => {
            (Gguf::open_bytes(name, bytes.clone())?, PathBuf::from(name))
        }
    })
}

fn template(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, DecodeError> {
    match gguf.metadata.get("tokenizer.chat_template") {
        Some(KeyValue::Text(source)) => Ok(Some(ChatTemplate::new(source, tokenizer)?)),
        _ => Ok(None),
    }
}

/// Binds a file's resident tensors and its experts' layouts for computing.
///
/// # Errors
/// [`DecodeError`] for a missing tensor or a type without a kernel.
///
/// # Panics
/// When the catalog isn't of this shape.
pub fn bind_weights(
    shape: &ModelShape,
    catalog: &Catalog,
    resident: &Resident,
) -> Result<Weights, DecodeError> {
    let layout = |layer: LayerId| *catalog.layout(layer).expect("the catalog has every layer of the shape");
    let layouts: Vec<_> = shape.layer_ids().map(layout).collect();
    let weights = Weights::bind(shape, &layouts, |name| {
        let tensor = resident.get(name)?;
        let dims = tensor.dims.as_slice();
        let length = |dim: Option<&u64>| usize::try_from(dim.copied().unwrap_or(1)).unwrap_or(usize::MAX);
        let (n_cols, n_rows) = (length(dims.first()), length(dims.get(1)));
        Some(Tensor::new(name, tensor.quant, n_rows, n_cols, tensor.bytes.clone()))
    });
    weights.map_err(|error| match error {
        ComputeError::Shape(shape) => shape.into(),
        other => other.into(),
    })
}

/// Values outside their range are as if the file said nothing: they are suggestions.
fn suggested_sampling(gguf: &Gguf) -> Option<SamplerConfig> {
    #[expect(clippy::cast_possible_truncation, reason = "a sampling parameter is used as f32")]
    let number = |name: &str| {
        let key = format!("general.sampling.{name}");
        float(&gguf.metadata, &key).ok().flatten().map(|value| value as f32)
    };
    let temperature = number("temp")?;
    let mut config = SamplerConfig { temperature, ..SamplerConfig::default() };
    if let Some(KeyValue::Integer(k)) = gguf.metadata.get("general.sampling.top_k") {
        config.top_k = usize::try_from(k).unwrap_or(config.top_k);
    }
    config.top_p = number("top_p").unwrap_or(config.top_p);
    config.min_p = number("min_p").unwrap_or(config.min_p);
    config.validate().is_ok().then_some(config)
}

fn context(
    config: &EngineConfig,
    shape: &ModelShape,
    decisions: &mut Vec<Decision>,
) -> Result<usize, DecodeError> {
    let context_max = shape.context_max;
    let context = config.context.unwrap_or_else(|| {
        let context = context_max.min(EngineConfig::CONTEXT_DEFAULT);
        let reason = format!("the model was trained for {context_max}; --ctx changes it");
        decisions.push(Decision::new("ctx", context, reason));
        context
    });
    if context == 0 || context > context_max {
        return Err(DecodeError::Context { context, context_max });
    }
    Ok(context)
}

/// Mapped tensors count whole pages; those of an embedded model are part of the program.
fn dense_bytes(resident: &Resident, model: &ModelSource, weights: &Weights) -> u64 {
    let mapped = match model {
        ModelSource::Embedded { .. } => 0,
        ModelSource::Path(_) => resident
            .tensors()
            .iter()
            .map(|tensor| (tensor.bytes.len() as u64 + PAGE_BYTES).next_multiple_of(PAGE_BYTES))
            .sum(),
    };
    mapped + weights.own_bytes()
}

/// What the header's remaining values and the tensor list take, about.
fn header_bytes(gguf: &Gguf) -> u64 {
    const PER_TENSOR: u64 = 160;
    const PER_KEY: u64 = 256;
    gguf.tensors().len() as u64 * PER_TENSOR + gguf.metadata.entries().len() as u64 * PER_KEY
}

fn policy(slots: SlotWish) -> CachePolicy {
    if slots == SlotWish::PerLayer(0) { CachePolicy::KeepNone } else { CachePolicy::Lru }
}

fn kv_type(backend: BackendChoice) -> KvType {
    match backend {
        BackendChoice::Cpu | BackendChoice::Reference(forerun_compute::Rounding::LikeQuantised) => {
            KvType::F16
        }
        BackendChoice::Reference(forerun_compute::Rounding::None) => KvType::F32,
    }
}

fn backend(
    config: &EngineConfig,
    weights: Weights,
    plan: &MemoryPlan,
    context: usize,
    decisions: &mut Vec<Decision>,
) -> Result<Box<dyn Backend + Send>, DecodeError> {
    let stack = forerun_compute::StackConfig {
        n_sequences: 1,
        context,
        rows_max: plan.rows_max,
        kv: kv_type(config.backend),
    };
    match config.backend {
        BackendChoice::Reference(rounding) => Ok(Box::new(Reference::reference(weights, stack, rounding))),
        BackendChoice::Cpu => {
            let n_threads = config.n_threads.unwrap_or_else(|| {
                let cores = thread::available_parallelism().map_or(1, usize::from);
                decisions.push(Decision::new("threads", cores, "one per core".into()));
                cores
            });
            let cpu = Cpu::cpu(weights, stack, n_threads)?;
            let reason = "the fastest that this CPU can run".into();
            decisions.push(Decision::new("kernels", cpu.kernels(), reason));
            Ok(Box::new(cpu))
        }
    }
}

fn explain(plan: &MemoryPlan, config: &EngineConfig, decisions: &mut Vec<Decision>) {
    if config.slots == SlotWish::Fill {
        let reason = match plan.budget {
            None => "no budget was given, so every expert may stay".to_owned(),
            Some(_) if plan.n_slots == plan.n_experts => "the budget holds every expert".to_owned(),
            Some(_) => format!("what the budget leaves, of {} experts", plan.n_experts),
        };
        decisions.push(Decision::new("slots", plan.n_slots, reason));
    }
    let reason = "the largest step whose scratch the budget affords".to_owned();
    decisions.push(Decision::new("prefill rows", plan.rows_max, reason));
}
