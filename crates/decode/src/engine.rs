//! Builds the parts from a file and a budget, and runs steps through them.

mod budget;
mod checkpoints;
mod drafting;
mod expert_map;
mod opening;
mod outlook;
mod parts;
mod planned_drafter;
mod saved;
mod steps;

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

use forerun_compute::workers::Workers;
use forerun_compute::{Backend, SequenceIdx, StepOutput};
use forerun_model::{Clock, ModelShape, SystemClock};
use forerun_scheduler::{LookaheadConfig, Predictor, Scheduler, SchedulerConfig, SchedulerStats};
use forerun_storage::{Resident, StoreStats};

use crate::DecodeError;
use crate::config::EngineConfig;
use crate::device;
use crate::draft::Drafter;
use crate::input_sums::{InputSums, SharedSums};
use crate::io::Disk;
use crate::memory_plan::MemoryPlan;
use crate::observe::RoutingObserver;
use crate::sampler::SamplerConfig;
use crate::step::StepLoop;
use crate::telemetry::Decision;
use crate::text::{ChatTemplate, Tokenizer};
pub use budget::{MemoryWatch, system_memory};
pub use expert_map::{ExpertState, UseMap};
pub use outlook::Outlook;
pub use parts::bind_weights;
pub(crate) use parts::tensor_of;

use checkpoints::Checkpoints;
pub(crate) use drafting::Choosing;
use drafting::Drafting;
use opening::Opening;
use planned_drafter::PlannedDrafter;
pub(crate) use saved::SavedShape;
use steps::Pass;
pub(crate) use steps::{Place, Share};

/// Pages of this size are what a mapping rounds up to.
const PAGE_BYTES: usize = 4096;
/// A model, ready to answer. It keeps one conversation or several: see [`crate::Session`].
pub struct Engine {
    shape: ModelShape,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    path: PathBuf,
    suggested: Option<SamplerConfig>,
    resident: Resident,
    backend: Box<dyn Backend + Send>,
    scheduler: Scheduler,
    steps: StepLoop,
    output: StepOutput,
    plan: MemoryPlan,
    disk: Disk,
    decisions: Vec<Decision>,
    clock: Arc<dyn Clock>,
    n_threads: usize,
    traffic: TokenTraffic,
    sums: Option<SharedSums>,
    has_pinned_slots: bool,
    memory_watch: Option<MemoryWatch>,
    pass: Pass,
    /// The step that was put aside.
    aside: Pass,
    sequences: Vec<Held>,
    saved: SavedShape,
}

/// What is known of a sequence that the backend keeps.
struct Held {
    drafting: Option<Drafting>,
    checkpoints: Checkpoints,
    /// Counts how often the sequence was started anew.
    epoch: u64,
}

impl Held {
    fn new(config: &EngineConfig, drafting: Option<Drafting>) -> Self {
        Self { drafting, checkpoints: Checkpoints::new(config.checkpoints), epoch: 0 }
    }
}

/// Bytes of weights that one token of plain decoding reads from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTraffic {
    /// Resident tensors: all but the table of embeddings, of which it is one row.
    pub dense: u64,
    /// Routed experts, as many as a token uses in every layer.
    pub experts: u64,
}

impl TokenTraffic {
    /// Both.
    pub fn total(self) -> u64 {
        self.dense.saturating_add(self.experts)
    }
}

/// What a caller may put in place of the engine's own choice.
pub struct Parts {
    /// A scheduler with its slots and store; `None`: made as the configuration and the plan say.
    pub scheduler: Option<Scheduler>,
    /// Who guesses; `None`: whom the configuration names.
    pub predictor: Option<Box<dyn Predictor>>,
    /// Which guesses are read; `None`: as the configuration says.
    pub lookahead: Option<LookaheadConfig>,
    /// Who guesses tokens, in memory of the caller's; `None`: whom the configuration names.
    pub drafter: Option<Box<dyn Drafter>>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            scheduler: None,
            predictor: None,
            lookahead: None,
            drafter: None,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl Parts {
    /// A scheduler of the caller's, which may listen to guesses.
    pub fn over(scheduler: Scheduler, clock: Arc<dyn Clock>) -> Self {
        Self { scheduler: Some(scheduler), clock, ..Self::default() }
    }
}

impl Engine {
    /// Opens the model of `config`.
    ///
    /// # Errors
    /// [`DecodeError`]: the file, its header, the budget, or what the system refuses. When a budget is refused,
    /// nothing large has been allocated but a few buffers of a probe, which are gone again, and, of a file whose
    /// matrices keep their rows in groups (the older layout of `qwen3next`), the copies of those matrices: they are made
    /// before the plan, outside any budget, and freed with the error.
    pub fn open(config: &EngineConfig) -> Result<Self, DecodeError> {
        Self::open_with(config, Parts::default())
    }

    /// Opens the model of `config` with some parts of the caller's.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(config: &EngineConfig, own: Parts) -> Result<Self, DecodeError> {
        let mut decisions = Vec::new();
        let mut own = own;
        let (config, mut opening) = Opening::within_budget(config, &own.clock, &mut decisions)?;
        if let Some(drafter) = own.drafter.take() {
            opening.drafter = PlannedDrafter::Own(drafter);
        }
        Self::build(&config, opening, own, decisions)
    }

    /// Plans, allocates and starts what runs the model that was opened.
    fn build(
        config: &EngineConfig,
        opening: Opening,
        own: Parts,
        mut decisions: Vec<Decision>,
    ) -> Result<Self, DecodeError> {
        let plan = parts::plan(opening.plan_input(config).lending(own.scheduler.is_none()), &mut decisions)?;
        let workers = Workers::new(opening.own_threads(config))?;
        let Opening { gguf, path, shape, catalog, tokenizer, template, .. } = opening;
        let Opening { resident, weights, traffic, n_threads, io, drafter, .. } = opening;
        let disk = io.disk.clone();
        let sums = config.collects.map(|collect| SharedSums::new(&shape, collect));
        let saved = SavedShape::new(config, (&shape, plan.context), &gguf, &mut decisions);
        let taps = drafter.taps();
        let draftings = drafter.build(config, &plan, (&weights, &catalog, &workers), &disk)?;
        let sequences = draftings.into_iter().map(|drafting| Held::new(config, drafting)).collect();
        let touched_by = config.touch_slots.then_some(n_threads);
        let arena = || parts::arena(&plan, catalog.slot_bytes(io.align_bytes), touched_by, &mut decisions);
        let arena = own.scheduler.is_none().then(arena).transpose()?;
        let (held, seen) = ((&plan, arena.as_ref()), (&workers, sums.as_ref(), taps));
        let backend = parts::backend(config, weights, held, seen, &mut decisions)?;
        let Parts { scheduler, predictor, lookahead, clock, .. } = own;
        let times = parts::guess_times(&shape, &disk, &catalog);
        let scheduler = match arena {
            None => scheduler.expect("there is an arena where none was given"),
            Some(arena) => Scheduler::new(SchedulerConfig {
                arena,
                store: parts::store(&plan, catalog, &gguf, io, &clock, &mut decisions)?,
                predictor: predictor.unwrap_or_else(|| parts::predictor(config.predictor)),
                lookahead: lookahead.unwrap_or_else(|| parts::lookahead(config, times, &mut decisions)),
                policy: parts::policy(config).into(),
                clock: Arc::clone(&clock),
            })?,
        };
        Ok(Self {
            steps: StepLoop::new(&shape).scheduled(config.schedule),
            shape,
            tokenizer: tokenizer.into(),
            template: template.map(Arc::new),
            path,
            suggested: parts::suggested_sampling(&gguf),
            resident,
            backend,
            scheduler,
            output: StepOutput::default(),
            plan,
            disk,
            decisions,
            clock,
            n_threads,
            traffic,
            sums,
            has_pinned_slots: device::keeps_slots(config),
            memory_watch: None,
            pass: Pass::default(),
            aside: Pass::default(),
            sequences,
            saved,
        })
    }

    /// From now on `observer` hears what routers say in every step, or nobody does. Its memory is the caller's affair.
    pub fn watch(&mut self, observer: Option<Box<dyn RoutingObserver>>) {
        self.steps.watch(observer);
    }

    /// What was added up of the matrices' inputs; `None` unless the configuration [asked](EngineConfig::collects) for it.
    /// No step runs while it is held.
    pub fn input_sums(&self) -> Option<MutexGuard<'_, InputSums>> {
        self.sums.as_ref().map(SharedSums::lock)
    }

    /// How often the sequence was started anew: which session's tokens it holds.
    pub(crate) fn epoch(&self, sequence: SequenceIdx) -> u64 {
        self.sequences[sequence.0].epoch
    }

    fn sequence(&mut self, sequence: SequenceIdx) -> &mut Held {
        &mut self.sequences[sequence.0]
    }

    /// Conversations that it keeps at once.
    pub fn n_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Pages of the resident tensors, to be touched in order: reads them from disk before the first token needs
    /// them. Each item is a number of bytes that are in memory now.
    pub fn warm_up(&self) -> impl Iterator<Item = u64> + '_ {
        let pieces = self.resident.tensors().iter().flat_map(|tensor| tensor.bytes.chunks(1 << 20));
        pieces.map(|piece| {
            let touched: u64 = piece.iter().step_by(PAGE_BYTES).map(|&b| u64::from(b)).sum();
            std::hint::black_box(touched);
            piece.len() as u64
        })
    }

    /// Bytes that [`Self::warm_up`] goes through.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.len_bytes()
    }

    /// The resident tensors' bytes, one tensor after the other.
    pub fn resident_tensors(&self) -> impl Iterator<Item = &[u8]> {
        self.resident.tensors().iter().map(|tensor| &*tensor.bytes)
    }

    /// Bytes of weights that one token of plain decoding reads.
    pub fn token_traffic(&self) -> TokenTraffic {
        self.traffic
    }

    /// Threads that compute.
    pub fn n_threads(&self) -> usize {
        self.n_threads
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

    /// The same, for threads that prepare prompts while the engine works.
    pub fn shared_tokenizer(&self) -> Arc<Tokenizer> {
        Arc::clone(&self.tokenizer)
    }

    /// The file's chat template, if it has one, for such threads.
    pub fn shared_template(&self) -> Option<Arc<ChatTemplate>> {
        self.template.clone()
    }

    /// The file's chat template.
    ///
    /// # Errors
    /// [`DecodeError::NoTemplate`] when it has none.
    pub fn template(&self) -> Result<&ChatTemplate, DecodeError> {
        self.template.as_deref().ok_or_else(|| DecodeError::NoTemplate { path: self.path.clone() })
    }

    /// The sampling that the file suggests (`general.sampling.*`), over our defaults; `None` when it doesn't.
    pub fn suggested_sampling(&self) -> Option<&SamplerConfig> {
        self.suggested.as_ref()
    }

    /// Refuses a prompt that can't fit whatever its tokens are, before memory is spent on tokenising it.
    ///
    /// # Errors
    /// [`DecodeError::PromptTooLarge`].
    pub fn check_prompt_size(&self, text: &str) -> Result<(), DecodeError> {
        let (prompt_bytes, context) = (text.len(), self.plan.context);
        if prompt_bytes >= self.prompt_bytes_max() {
            let tokens_min = prompt_bytes / (self.prompt_bytes_max() / context);
            return Err(DecodeError::PromptTooLarge { prompt_bytes, tokens_min, context });
        }
        Ok(())
    }

    /// Bytes of text that no longer fit the context, whatever their tokens are.
    pub fn prompt_bytes_max(&self) -> usize {
        /// Normalisation may compose what was decomposed; no composition is shorter than a third.
        const SHRINKS_BY: usize = 3;
        SHRINKS_BY * self.tokenizer.vocabulary().token_bytes_max().max(1) * self.plan.context
    }

    /// Where the memory goes.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// What was decided automatically, and why, with what the system has decided otherwise since.
    pub fn decisions(&self) -> Vec<Decision> {
        let changes = self.scheduler.changes().iter();
        let changes = changes.map(|c| Decision::new("lookahead", &c.choice, c.reason.clone()));
        let drafts = self.sequences.iter().filter_map(|held| held.drafting.as_ref()?.decision());
        self.decisions.iter().cloned().chain(self.disk.fallback()).chain(changes).chain(drafts).collect()
    }

    /// What the disk gives and is let give.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
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

/// Which of a step's logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Those of the last token.
    Last,
    /// None: the prompt goes on.
    None,
    /// Those of every token; at most [`MemoryPlan::logit_rows`].
    All,
}
