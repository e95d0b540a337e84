//! A model file that was opened, before any memory is spent on running it.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_arena::SLOT_ALIGN_BYTES;
use forerun_compute::Weights;
use forerun_model::{Clock, ModelShape};
use forerun_storage::{Catalog, Gguf, Resident};

use super::planned_drafter::PlannedDrafter;
use super::{TokenTraffic, parts};
use crate::DecodeError;
use crate::config::{BackendChoice, DraftChoice, EngineConfig, GrammarRoom};
use crate::device;
use crate::grammar::{Grammar, GrammarFactory};
use crate::input_sums::InputSums;
use crate::io::{self, Io};
use crate::memory_plan::{DraftInput, GrammarInput, MemoryPlan, PlanInput};
use crate::telemetry::Decision;
use crate::text::{ChatTemplate, Tokenizer};

/// Share of the slots that a drafter nobody asked for may take from experts: misses grow by about as much, and drafts may
/// never pay.
const SLOTS_LOST_MAX: f64 = 0.01;

/// Share of the slots that conversations beyond the first may take from experts, if nobody asked for them.
const SLOTS_FOR_SEATS_MAX: f64 = 0.2;

/// Share of the slots that grammars may take from experts, if nobody asked for them.
const SLOTS_FOR_GRAMMARS_MAX: f64 = 0.1;

/// Whether a budget has room for drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// The plan doesn't fit.
    None,
    /// They take more slots than they may, unasked.
    Little,
    /// Yes.
    Enough,
}

/// What a file says, and what was decided from it.
pub(super) struct Opening {
    pub(super) gguf: Gguf,
    pub(super) path: PathBuf,
    pub(super) shape: ModelShape,
    pub(super) catalog: Arc<Catalog>,
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Option<ChatTemplate>,
    pub(super) resident: Resident,
    pub(super) weights: Weights,
    pub(super) traffic: TokenTraffic,
    pub(super) context: usize,
    pub(super) n_threads: usize,
    pub(super) io: Io,
    pub(super) drafter: PlannedDrafter,
}

impl Opening {
    /// Opens the model of `config`: maps it, reads its header and its vocabulary.
    pub(super) fn new(
        config: &EngineConfig,
        clock: &Arc<dyn Clock>,
        decisions: &mut Vec<Decision>,
    ) -> Result<Self, DecodeError> {
        device::check(config)?;
        let (mut gguf, path) = parts::open(&config.model)?;
        let shape = ModelShape::from_metadata(&gguf.metadata)?;
        let (drafter, catalog) = PlannedDrafter::choose(&config.draft, &shape, &gguf, decisions)?;
        let catalog = Arc::new(catalog);
        let (tokenizer, template) = parts::text(&mut gguf)?;
        let (resident, weights) = parts::weights(&shape, &catalog, &gguf)?;
        let traffic = parts::token_traffic(&shape, &catalog, &resident, &weights);
        let context = parts::context(config, &shape, decisions)?;
        let n_threads = parts::threads(config, decisions);
        let io = io::choose(config, &gguf, &catalog, clock, decisions)?;
        Ok(Self {
            gguf,
            path,
            shape,
            catalog,
            tokenizer,
            template,
            resident,
            weights,
            traffic,
            context,
            n_threads,
            io,
            drafter,
        })
    }

    /// The same; what nobody asked for, conversations beyond the first, drafts and checkpoints, is left out where the budget
    /// has no room for it. Returns the configuration that remains.
    pub(super) fn within_budget(
        config: &EngineConfig,
        clock: &Arc<dyn Clock>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(EngineConfig, Self), DecodeError> {
        let mut config = config.clone();
        loop {
            let mut so_far = decisions.clone();
            let opening = Self::new(&config, clock, &mut so_far)?;
            let room = opening.room(&config);
            let reason = |why: &str| format!("{why}, and nobody asked for it");
            let seats = config.sequences.n.get();
            if config.grammars == GrammarRoom::Auto && opening.grammars_lose(&config) {
                config.grammars = GrammarRoom::Off;
                let why = "grammars would take a tenth of this budget's slots or more";
                decisions.push(Decision::new("grammars", "off", reason(why)));
            } else if !config.sequences.is_asked && seats > 1 && opening.seats_lose(&config) {
                config.sequences.n = NonZeroUsize::new(seats / 2).unwrap_or(NonZeroUsize::MIN);
                let why = format!(
                    "{seats} conversations at once would take a fifth of this budget's slots or more"
                );
                decisions.push(Decision::new("conversations", config.sequences.n, reason(&why)));
            } else if room != Room::Enough && config.draft == DraftChoice::Auto {
                config.draft = DraftChoice::None;
                let why = "a drafter would take a hundredth of this budget's slots or more";
                decisions.push(Decision::new("draft", "none", reason(why)));
            } else if room == Room::None && !config.checkpoints.is_asked && config.checkpoints.n_max > 0 {
                config.checkpoints.n_max = 0;
                let why = "the budget has no room for a checkpoint";
                decisions.push(Decision::new("checkpoints", "none", reason(why)));
            } else {
                *decisions = so_far;
                return Ok((config, opening));
            }
        }
    }

    /// What compiles grammars for the vocabulary, a large one that is compiled, and one that is followed.
    fn grammars(&self, config: &EngineConfig) -> GrammarInput {
        let vocabulary = self.tokenizer.vocabulary();
        match config.grammars {
            GrammarRoom::Off => GrammarInput::default(),
            GrammarRoom::Auto | GrammarRoom::On => GrammarInput {
                shared_bytes: GrammarFactory::bytes_of(vocabulary.len(), vocabulary.text_bytes())
                    + Grammar::COMPILED_BYTES_MAX,
                live_bytes: Grammar::LIVE_BYTES_MAX,
            },
        }
    }

    /// Whether grammars take more slots than they may, unasked, or don't fit.
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
    fn grammars_lose(&self, config: &EngineConfig) -> bool {
        let input = PlanInput { draft: DraftInput::default(), n_sequences: 1, ..self.plan_input(config) };
        let Ok(with) = MemoryPlan::new(&input) else { return true };
        let without = MemoryPlan::new(&PlanInput { grammars: GrammarInput::default(), ..input })
            .map_or(0, |plan| plan.n_slots);
        let is_tight = with.mapped == 0 && with.n_slots < with.n_experts;
        is_tight && (with.n_slots as f64) < (1.0 - SLOTS_FOR_GRAMMARS_MAX) * without as f64
    }

    /// Whether conversations beyond the first take more slots than they may, unasked, or don't fit.
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
    fn seats_lose(&self, config: &EngineConfig) -> bool {
        let input = PlanInput { draft: DraftInput::default(), ..self.plan_input(config) };
        let Ok(with) = MemoryPlan::new(&input) else { return true };
        let alone = MemoryPlan::new(&PlanInput { n_sequences: 1, ..input }).map_or(0, |plan| plan.n_slots);
        let is_tight = with.mapped == 0 && with.n_slots < with.n_experts;
        is_tight && (with.n_slots as f64) < (1.0 - SLOTS_FOR_SEATS_MAX) * alone as f64
    }

    /// Whether the budget of `config` has room for what drafts take.
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
    fn room(&self, config: &EngineConfig) -> Room {
        let input = self.plan_input(config);
        let Ok(with) = MemoryPlan::new(&input) else { return Room::None };
        let without = MemoryPlan::new(&PlanInput { draft: DraftInput::default(), ..input });
        let without = without.map_or(0, |plan| plan.n_slots);
        let is_tight = with.mapped == 0 && with.n_slots < with.n_experts;
        let loses = (with.n_slots as f64) < (1.0 - SLOTS_LOST_MAX) * without as f64;
        if is_tight && loses { Room::Little } else { Room::Enough }
    }

    /// Threads of the engine's own.
    pub(super) fn own_threads(&self, config: &EngineConfig) -> usize {
        parts::own_threads(config, self.n_threads, &self.drafter)
    }

    /// What a plan for it is made from.
    pub(super) fn plan_input(&self, config: &EngineConfig) -> PlanInput<'_> {
        let slot_bytes = self.catalog.slot_bytes(self.io.align_bytes);
        PlanInput {
            shape: &self.shape,
            experts: &self.weights.experts,
            expert_layers: self.catalog.n_layers(),
            slot_bytes: slot_bytes.next_multiple_of(SLOT_ALIGN_BYTES) as u64,
            dense_bytes: parts::dense_bytes(&self.resident, &config.model, &self.weights)
                + parts::guess_router_bytes(config, &self.weights),
            text_bytes: self.tokenizer.estimated_bytes() as u64 + parts::header_bytes(&self.gguf),
            io_bytes: self.io.bytes,
            n_threads: match config.backend {
                BackendChoice::Candle(_) => self.n_threads + self.own_threads(config),
                BackendChoice::Cpu | BackendChoice::Reference(_) => self.n_threads,
            },
            context: self.context,
            backend: config.backend,
            copies_bytes: device::copies_bytes(config.backend, &self.weights),
            token_bytes_max: self.tokenizer.vocabulary().token_bytes_max(),
            budget_bytes: config.budget_bytes,
            slots: config.slots,
            lendable: self.io.lendable,
            logit_rows: config.logit_rows,
            draft: self.drafter.input(config, &self.shape, self.context),
            n_checkpoints: config.checkpoints.n_max,
            n_sequences: config.sequences.n.get(),
            prefix_bytes: config.prefix_bytes,
            grammars: self.grammars(config),
            server_bytes: config.server_bytes,
            sums_bytes: config.collects.map_or(0, |collect| InputSums::bytes(&self.shape, collect)),
        }
    }
}
