//! The steps of opening a model, one function each.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use forerun_arena::Arena;
use forerun_compute::products::Products;
use forerun_compute::workers::Workers;
use forerun_compute::{Backend, ComputeError, Cpu, Reference, Stack, Taps, Tensor, Weights};
use forerun_model::metadata::float;
use forerun_model::names::{OUTPUT, TOKEN_EMBD};
use forerun_model::{Clock, KeyValue, KeyValues, LayerId, ModelShape, Nanos};
use forerun_scheduler::{Blend, LookaheadConfig, NoPredictor, PolicyName, Predictor, Recent, RouterAhead};
use forerun_storage::{
    Catalog, ExpertStore, FileStore, Gguf, Mapped, Resident, ResidentMode, ResidentTensor,
};

use super::planned_drafter::PlannedDrafter;
use super::{PAGE_BYTES, TokenTraffic};
use crate::DecodeError;
use crate::config::{BackendChoice, EngineConfig, ModelSource, PredictorChoice};
use crate::device;
use crate::heap;
use crate::input_sums::SharedSums;
use crate::io::{Disk, Io};
use crate::memory_plan::{MemoryPlan, PlanInput, SlotWish, bytes_text};
use crate::sampler::SamplerConfig;
use crate::telemetry::Decision;
use crate::text::{ChatTemplate, Tokenizer, VocabularyParts};

/// Whether Linux makes huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// Metadata that is not needed once the tokenizer stands.
const TEXT_KEYS: [&str; 4] =
    ["tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"];

pub(super) fn open(model: &ModelSource) -> Result<(Gguf, PathBuf), DecodeError> {
    Ok(match model {
        ModelSource::Path(path) => (Gguf::open(path)?, path.clone()),
        ModelSource::Embedded { name, bytes } => {
            (Gguf::open_bytes(name, bytes.clone())?, PathBuf::from(name))
        }
    })
}

/// Builds what turns text into tokens, and gives back the memory of what it was built from.
pub(super) fn text(gguf: &mut Gguf) -> Result<(Tokenizer, Option<ChatTemplate>), DecodeError> {
    let tokenizer = Tokenizer::new(&VocabularyParts::from_metadata(&gguf.metadata)?)?;
    let template = match gguf.metadata.get("tokenizer.chat_template") {
        Some(KeyValue::Text(source)) => Some(ChatTemplate::new(source, &tokenizer)?),
        _ => None,
    };
    for key in TEXT_KEYS {
        gguf.metadata.take(key);
    }
    heap::release();
    Ok((tokenizer, template))
}

/// Maps a file's resident tensors and binds them; lets go of those of which the weights have a copy.
pub(super) fn weights(
    shape: &ModelShape,
    catalog: &Catalog,
    gguf: &Gguf,
) -> Result<(Resident, Weights), DecodeError> {
    let mut resident = Resident::load(shape, gguf, ResidentMode::Mapped)?;
    let weights = bind_weights(shape, catalog, &resident)?;
    resident.release(weights.regrouped());
    Ok((resident, weights))
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
    let weights = Weights::bind(shape, &layouts, |name| resident.get(name).map(tensor_of));
    weights.map_err(|error| match error {
        ComputeError::Shape(shape) => shape.into(),
        other => other.into(),
    })
}

/// A file's tensor, for computing.
pub(crate) fn tensor_of(tensor: &ResidentTensor) -> Result<Tensor, ComputeError> {
    let dims = tensor.dims.as_slice();
    let length = |dim: Option<&u64>| usize::try_from(dim.copied().unwrap_or(1)).unwrap_or(usize::MAX);
    let (n_cols, n_rows) = (length(dims.first()), length(dims.get(1)));
    Tensor::new(&tensor.name, tensor.quant, n_rows, n_cols, tensor.bytes.clone())
}

/// Values outside their range are as if the file said nothing: they are suggestions.
pub(super) fn suggested_sampling(gguf: &Gguf) -> Option<SamplerConfig> {
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

pub(super) fn context(
    config: &EngineConfig,
    shape: &ModelShape,
    decisions: &mut Vec<Decision>,
) -> Result<usize, DecodeError> {
    let context_max = shape.context_max;
    let context = config.context.unwrap_or_else(|| {
        let context = context_max.min(config.context_default);
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
pub(super) fn dense_bytes(resident: &Resident, model: &ModelSource, weights: &Weights) -> u64 {
    let mapped = match model {
        ModelSource::Embedded { .. } => 0,
        ModelSource::Path(_) => resident
            .tensors()
            .iter()
            .map(|tensor| (tensor.bytes.len() + PAGE_BYTES).next_multiple_of(PAGE_BYTES) as u64)
            .sum(),
    };
    mapped + weights.own_bytes()
}

/// The table of embeddings is read whole only where it is the head as well.
/// Matrices of which the weights have a copy in another order are no longer resident, and are read from the copy.
pub(super) fn token_traffic(
    shape: &ModelShape,
    catalog: &Catalog,
    resident: &Resident,
    weights: &Weights,
) -> TokenTraffic {
    let table = resident.get(TOKEN_EMBD).filter(|_| resident.get(OUTPUT).is_some());
    let rows_left_out = table.map_or(0, |table| table.bytes.len() - table.bytes.len() / shape.n_vocab.max(1));
    let expert = |layer| catalog.layout(layer).map_or(0, |layout| layout.weight_bytes() as u64);
    TokenTraffic {
        dense: resident.len_bytes() + weights.regrouped_bytes() - rows_left_out as u64,
        experts: shape.layer_ids().map(expert).sum::<u64>() * shape.moe.top_k as u64,
    }
}

/// What the header's remaining values and the tensor list take, about.
pub(super) fn header_bytes(gguf: &Gguf) -> u64 {
    const PER_TENSOR: u64 = 160;
    const PER_KEY: u64 = 256;
    gguf.tensors().len() as u64 * PER_TENSOR + gguf.metadata.entries().len() as u64 * PER_KEY
}

pub(super) fn policy(config: &EngineConfig) -> PolicyName {
    if config.slots == SlotWish::PerLayer(0) { PolicyName::KeepNone } else { config.policy }
}

/// How long the disk takes for one expert, and for what it may still move of a guess that was given up.
pub(super) fn guess_times(
    shape: &ModelShape,
    disk: &Disk,
    catalog: &Catalog,
) -> (Option<Nanos>, Option<Nanos>) {
    (read_time(shape, disk, catalog), hold_time(disk))
}

/// Time that the probed disk, or what it is let give, takes for one expert.
fn read_time(shape: &ModelShape, disk: &Disk, catalog: &Catalog) -> Option<Nanos> {
    let rate = disk.rate()?;
    let layouts = shape.layer_ids().filter_map(|layer| catalog.layout(layer));
    let bytes = layouts.map(|layout| layout.weight_bytes() as u64).max()?;
    Some(Nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1)))
}

/// Time for which guesses that were given up still hold up demands: as many pieces may be on the wire as the disk is given
/// at once.
fn hold_time(disk: &Disk) -> Option<Nanos> {
    let bytes = u64::from(disk.bite_bytes?).saturating_mul(disk.depth as u64);
    Some(Nanos(bytes.saturating_mul(1_000_000_000) / disk.rate()?.max(1)))
}

/// What routers for guesses take, if guesses are made with routers. Candle's guesses are of the routers themselves.
pub(super) fn guess_router_bytes(config: &EngineConfig, weights: &Weights) -> u64 {
    let asks = matches!(config.predictor, PredictorChoice::RouterAhead | PredictorChoice::Blend);
    let is_own = !matches!(config.backend, BackendChoice::Candle(_));
    if asks && is_own && config.lookahead != Some(0) { weights.guess_router_bytes() } else { 0 }
}

pub(super) fn predictor(choice: PredictorChoice) -> Box<dyn Predictor> {
    match choice {
        PredictorChoice::RouterAhead => Box::new(RouterAhead::default()),
        PredictorChoice::Recent => Box::new(Recent::default()),
        PredictorChoice::Blend => Box::new(Blend::default()),
        PredictorChoice::None => Box::new(NoPredictor),
    }
}

/// Which guesses are read, and why.
pub(super) fn lookahead(
    config: &EngineConfig,
    (read, hold): (Option<Nanos>, Option<Nanos>),
    decisions: &mut Vec<Decision>,
) -> LookaheadConfig {
    let base = LookaheadConfig { read, hold, ..LookaheadConfig::default() };
    let lookahead = LookaheadConfig { width_max: config.lookahead.unwrap_or(base.width_max), ..base };
    if !config.looks_ahead() {
        return LookaheadConfig { width_max: 0, ..lookahead };
    }
    let (width, percent) = (lookahead.width_max, lookahead.extra_permille / 10);
    let reason = format!(
        "experts of layers to come are read ahead as far as that pays for its bytes, at most {percent} % of them in \
         vain; of a long prompt's layers all are, while the layer before is computed"
    );
    decisions.push(Decision::new("lookahead", format!("up to {width} guesses a layer"), reason));
    lookahead
}

/// The slots of `plan`, all of their memory resident where so many threads are to see to that.
pub(super) fn arena(
    plan: &MemoryPlan,
    slot_bytes: usize,
    touched_by: Option<usize>,
    decisions: &mut Vec<Decision>,
) -> Result<Arena, DecodeError> {
    let arena = Arena::new(plan.n_slots, slot_bytes)?;
    let never = || std::fs::read_to_string(HUGE_PAGES).is_ok_and(|setting| setting.contains("[never]"));
    let (choice, reason) = match arena.no_huge_pages() {
        // They are no more than addresses.
        _ if plan.mapped > 0 => return Ok(arena),
        Some(why) => ("small", why.to_owned()),
        None if never() => ("small", format!("{HUGE_PAGES} says never")),
        None => ("huge", "slots in huge pages need fewer address look-ups".to_owned()),
    };
    decisions.push(Decision::new("slot pages", choice, reason));
    if let Some(n_threads) = touched_by {
        let (choice, reason) = match arena.touch(n_threads) {
            Ok(()) => ("at the start", "as was asked for".to_owned()),
            Err(error) => ("as they are filled", error.to_string()),
        };
        decisions.push(Decision::new("slot memory", choice, reason));
    }
    Ok(arena)
}

/// The store over the backend that was chosen, which lends if the plan says so.
pub(super) fn store(
    plan: &MemoryPlan,
    catalog: Arc<Catalog>,
    gguf: &Gguf,
    io: Io,
    clock: &Arc<dyn Clock>,
    decisions: &mut Vec<Decision>,
) -> Result<Box<dyn ExpertStore>, DecodeError> {
    let config = io.store;
    let backend = io.open(gguf, clock, decisions)?;
    let mapped = if plan.mapped > 0 { Some(Mapped::new(&catalog, gguf.files())?) } else { None };
    let store = FileStore::with_config(catalog, gguf.files().clone(), backend, config);
    Ok(match mapped {
        Some(mapped) => Box::new(store.lending(mapped)),
        None => Box::new(store),
    })
}

/// The plan, with its reasons.
pub(super) fn plan(input: PlanInput<'_>, decisions: &mut Vec<Decision>) -> Result<MemoryPlan, DecodeError> {
    let slots = input.slots;
    let plan = affordable(input, decisions)?;
    explain(&plan, slots, decisions);
    Ok(plan)
}

/// Without a budget of the user's, a model that wants more than the system has gets what there is.
fn affordable(input: PlanInput<'_>, decisions: &mut Vec<Decision>) -> Result<MemoryPlan, DecodeError> {
    let plan = MemoryPlan::new(&input)?;
    let Some(available) = super::budget::available_bytes().filter(|_| input.budget_bytes.is_none()) else {
        return Ok(plan);
    };
    let ceiling = available / 10 * 9;
    if plan.total() <= ceiling {
        return Ok(plan);
    }
    let reason = "nine tenths of what the system has to give now; --memory changes it".to_owned();
    decisions.push(Decision::new("memory", bytes_text(ceiling), reason));
    MemoryPlan::new(&PlanInput { budget_bytes: Some(ceiling), ..input })
}

/// The reference computes on one thread, whatever is asked for, and candle on a pool of its own.
pub(super) fn threads(config: &EngineConfig, decisions: &mut Vec<Decision>) -> usize {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let (n_threads, reason) = match (config.backend, config.n_threads) {
        (BackendChoice::Reference(_), _) => return 1,
        (BackendChoice::Cpu, Some(n)) => return n.max(1),
        (BackendChoice::Cpu, None) => (cores(), "one per core"),
        (BackendChoice::Candle(_), _) => {
            (cores(), "candle's own pool has one per core; --threads binds those of a drafter alone")
        }
    };
    decisions.push(Decision::new("threads", n_threads, reason.into()));
    n_threads
}

/// Threads of our own: all that compute, but beside candle's those of a drafter.
pub(super) fn own_threads(config: &EngineConfig, n_threads: usize, drafter: &PlannedDrafter) -> usize {
    match config.backend {
        BackendChoice::Candle(_) if drafter.computes() => config.n_threads.unwrap_or(n_threads).max(1),
        BackendChoice::Candle(_) => 1,
        BackendChoice::Cpu | BackendChoice::Reference(_) => n_threads,
    }
}

pub(super) fn backend(
    config: &EngineConfig,
    mut weights: Weights,
    (plan, arena): (&MemoryPlan, Option<&Arena>),
    (workers, sums, taps): (&Workers, Option<&SharedSums>, Taps),
    decisions: &mut Vec<Decision>,
) -> Result<Box<dyn Backend + Send>, DecodeError> {
    if guess_router_bytes(config, &weights) > 0 {
        weights.add_guess_routers();
    }
    let stack = plan.stack(config.backend.kv_type());
    match config.backend {
        BackendChoice::Reference(rounding) => {
            Ok(boxed(Reference::reference(weights, stack, rounding), sums, taps))
        }
        BackendChoice::Cpu => {
            let cpu = Cpu::on(weights, stack, workers.clone());
            let reason = "the fastest that this CPU can run".into();
            decisions.push(Decision::new("kernels", cpu.kernels(), reason));
            Ok(boxed(cpu, sums, taps))
        }
        BackendChoice::Candle(device) => {
            let copies = bytes_text(plan.copies);
            let reason =
                format!("candle computes there, with {copies} of its own copies of resident weights");
            decisions.push(Decision::new("device", device, reason));
            let slots = arena.filter(|_| config.pin_slots);
            Ok(device::stack(device, &weights, stack, (taps, slots))?)
        }
    }
}

/// With what is to be heard or brought out of its steps.
fn boxed<P: Products + Send + 'static>(
    stack: Stack<P>,
    sums: Option<&SharedSums>,
    taps: Taps,
) -> Box<dyn Backend + Send> {
    let stack = stack.bringing(taps);
    match sums {
        Some(sums) => Box::new(stack.tapped(Box::new(sums.clone()))),
        None => Box::new(stack),
    }
}

fn explain(plan: &MemoryPlan, slots: SlotWish, decisions: &mut Vec<Decision>) {
    if plan.mapped > 0 {
        let all = if plan.budget.is_some() { "the budget holds them all" } else { "no budget was given" };
        let reason = format!("{all}, so experts are used where they are mapped, without copies");
        decisions.push(Decision::new("experts", "mapped", reason));
    } else if slots == SlotWish::Fill {
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
