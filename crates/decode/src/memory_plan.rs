//! Splits a memory budget, or refuses it before anything is loaded.
//!
//! Every allocation that grows with the model or the context has a line here. What is left after the fixed lines
//! becomes slots.

mod input;
mod lines;
mod sizes;

use forerun_compute::{Checkpoint, KvType, StackConfig};
use forerun_model::{ExpertId, ExpertLayout, ModelShape};
use forerun_scheduler::policy::alike::N_REMEMBERED;
use forerun_scheduler::{N_SLOTS_MIN, ROWS_GUESSED_MAX, RouterAhead, Scheduler};
use forerun_storage::Lendable;

use crate::DecodeError;
use crate::config::BackendChoice;
use crate::device;
pub use input::{DraftInput, GrammarInput};
pub use sizes::{bytes_text, parse_bytes};

/// Memory of the process that grows with neither model nor context: the C library, stacks of a few threads, the
/// allocator's slack, command line and template. Measured; see `docs/measurements.md`.
pub const RUNTIME_BYTES: u64 = 5 * 1024 * 1024;
/// Rows of a prefill step, largest first: more rows read fewer experts twice but take more scratch.
const CHUNKS: [usize; 7] = [512, 256, 128, 64, 32, 16, 8];
/// A prefill step's scratch may take this share of what the fixed lines leave.
const SCRATCH_SHARE: u64 = 6;
/// What the system may make resident at once.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Bytes per entry of the vocabulary and row of logits.
const LOGIT_BYTES: usize = 4;
/// Bytes per entry of the vocabulary: a sampler's candidate, and a logit after the penalties.
const CANDIDATE_BYTES: usize = 12;
/// What the scheduler keeps per slot and per expert.
const SLOT_ENTRY_BYTES: u64 = 224;
const EXPERT_ENTRY_BYTES: u64 = 32;
/// What the cache policy remembers per layer and rank: the ids of so many tokens.
const REMEMBERED_BYTES: usize = N_REMEMBERED * size_of::<ExpertId>();
/// What a routing keeps per row and rank, twice: by row and by expert.
const USE_BYTES: usize = 40;
/// What a token of the context takes in prompt, session and history.
const TOKEN_BYTES: usize = 64;
/// How often a prompt's text exists at once while it is rendered and tokenised.
const TEXT_COPIES: usize = 8;
/// What one thread takes: the touched part of its stack and its share of the pool. Measured at about 24 KiB; see
/// `docs/measurements.md`.
const THREAD_BYTES: u64 = 40 << 10;

/// How many experts stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotWish {
    /// As many as the budget holds, at most all.
    Fill,
    /// This many per layer on average; 0 keeps nothing after use.
    PerLayer(usize),
}

/// What the plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// How an expert's matrices lie, per layer of the model.
    pub experts: &'a [ExpertLayout],
    /// Layers of experts, with that of a prediction block that is used.
    pub expert_layers: usize,
    /// Bytes of one slot: the largest record.
    pub slot_bytes: u64,
    /// Bytes of the resident tensors, as they will lie in memory.
    pub dense_bytes: u64,
    /// Bytes of vocabulary, merges and file header.
    pub text_bytes: u64,
    /// Bytes of the longest token, which bounds a prompt's text.
    pub token_bytes_max: usize,
    /// Bytes of read buffers and reader threads.
    pub io_bytes: u64,
    /// Threads that compute.
    pub n_threads: usize,
    /// Tokens of context.
    pub context: usize,
    /// What computes: says how keys and values are stored, and what else is allocated.
    pub backend: BackendChoice,
    /// Bytes of the backend's own copies of resident tensors.
    pub copies_bytes: u64,
    /// The budget; `None` takes what it takes.
    pub budget_bytes: Option<u64>,
    /// How many slots are wanted.
    pub slots: SlotWish,
    /// What of the experts can be used where it is mapped; `None` when everything goes through slots.
    pub lendable: Option<Lendable>,
    /// Most rows of a step whose logits are wanted; a step has no more than its rows.
    pub logit_rows: usize,
    /// Bytes of the sums of inputs that are collected.
    pub sums_bytes: u64,
    /// What drafts take.
    pub draft: DraftInput,
    /// Checkpoints of each sequence that may be kept.
    pub n_checkpoints: usize,
    /// Conversations that are kept at once, at least one.
    pub n_sequences: usize,
    /// Bytes for conversations that are kept without a sequence of their own.
    pub prefix_bytes: u64,
    /// What grammars take.
    pub grammars: GrammarInput,
    /// Bytes of a server around the engine.
    pub server_bytes: u64,
}

impl PlanInput<'_> {
    /// The same, with experts lent only if `may`.
    pub(crate) fn lending(self, may: bool) -> Self {
        Self { lendable: self.lendable.filter(|_| may), ..self }
    }
}

/// Where the memory goes. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The budget, if there is one.
    pub budget: Option<u64>,
    /// Resident tensors.
    pub dense: u64,
    /// The backend's own copies of them, where it computes on another device or in another order.
    pub copies: u64,
    /// Keys and values.
    pub kv: u64,
    /// Recurrent states, and the log of a step of which rows may be rejected.
    pub state: u64,
    /// Recurrent states that are kept to go back to.
    pub checkpoints: u64,
    /// Conversations that are kept without a sequence of their own, and what passes them on.
    pub prefixes: u64,
    /// Grammars that answers keep to.
    pub grammars: u64,
    /// Connections and requests of a server.
    pub server: u64,
    /// The drafter, and what it is shown.
    pub drafter: u64,
    /// Buffers of a step, and logits.
    pub scratch: u64,
    /// Vocabulary and file header.
    pub text: u64,
    /// Read buffers and reader threads.
    pub io: u64,
    /// The conversation's text and tokens.
    pub conversation: u64,
    /// Tables of slots and experts, and a step's routing.
    pub tables: u64,
    /// Sums of the matrices' inputs, where they are collected.
    pub sums: u64,
    /// Threads that compute.
    pub threads: u64,
    /// The process itself.
    pub runtime: u64,
    /// Experts that are used where they are mapped; 0 when all go through slots.
    pub mapped: u64,
    /// Expert slots. With mapped experts, those that the others need.
    pub slots: u64,
    /// How many slots. With mapped experts, also as many as their memory would hold, which nobody touches unless it is
    /// given up.
    pub n_slots: usize,
    /// Bytes of one.
    pub slot_bytes: u64,
    /// Experts of the model.
    pub n_experts: usize,
    /// Rows of a prefill step.
    pub rows_max: usize,
    /// Rows of a step whose logits are wanted, at most.
    pub logit_rows: usize,
    /// Rows of a step that verifies a draft, at most; 0: there are no drafts.
    pub draft_rows: usize,
    /// Checkpoints of each sequence that may be kept.
    pub n_checkpoints: usize,
    /// Conversations that are kept at once.
    pub n_sequences: usize,
    /// Rows of a step that runs while a prompt's is put aside, at most; 0: with one conversation nothing is put aside.
    pub aside_rows: usize,
    /// Tokens of context of each conversation.
    pub context: usize,
}

impl MemoryPlan {
    /// Splits the budget of `input`.
    ///
    /// # Errors
    /// [`DecodeError::Budget`] when it doesn't hold the fixed lines and the fewest slots, with the smallest plan.
    pub fn new(input: &PlanInput<'_>) -> Result<Self, DecodeError> {
        let n_experts = input.expert_layers * input.shape.moe.n_experts;
        if let Some(plan) = Self::mapped(input) {
            return Ok(plan);
        }
        let wish = match input.slots {
            SlotWish::Fill => n_experts,
            SlotWish::PerLayer(n) => n.saturating_mul(input.expert_layers),
        };
        let n_wanted = wish.clamp(N_SLOTS_MIN, n_experts.max(N_SLOTS_MIN));
        let Some(budget) = input.budget_bytes else {
            return Ok(Self::with(input, CHUNKS[0].min(input.context), n_wanted));
        };
        let n_least = if input.slots == SlotWish::Fill { N_SLOTS_MIN } else { n_wanted };
        let least = Self::with(input, CHUNKS[CHUNKS.len() - 1].min(input.context), n_least);
        if least.total() > budget {
            return Err(DecodeError::Budget {
                budget_bytes: budget,
                smallest_bytes: least.total(),
                plan: Box::new(least),
            });
        }
        let rows_max = Self::chunk(budget, &least, |rows| Self::with(input, rows, n_least));
        let fixed = Self::with(input, rows_max, 0).total();
        let room =
            usize::try_from((budget - fixed) / (input.slot_bytes + SLOT_ENTRY_BYTES)).unwrap_or(usize::MAX);
        Ok(Self::with(input, rows_max, n_wanted.min(room)))
    }

    /// The largest prefill step whose scratch is a fair share of what the smallest plan leaves.
    fn chunk(budget: u64, least: &Self, with: impl Fn(usize) -> Self) -> usize {
        let spare = budget - least.total();
        let fits = |rows: &usize| with(*rows).total() - least.total() <= spare / SCRATCH_SHARE;
        CHUNKS.iter().map(|rows| (*rows).min(least.context)).find(fits).unwrap_or(least.rows_max)
    }

    /// The plan in which experts are used where they are mapped, if there are such and the budget holds them all.
    fn mapped(input: &PlanInput<'_>) -> Option<Self> {
        let lendable = input.lendable.filter(|lendable| lendable.n_experts > 0)?;
        let with = |rows_max: usize| {
            let plan = Self::with(input, rows_max, 0);
            let n_others = (plan.n_experts - lendable.n_experts).max(N_SLOTS_MIN);
            let n_instead = usize::try_from(lendable.bytes / input.slot_bytes).unwrap_or(usize::MAX);
            let n_slots = n_others.saturating_add(n_instead).min(plan.n_experts.max(N_SLOTS_MIN));
            // The arena has more slots than these, so the huge page that the last of them begins is resident as a whole.
            let slots = (n_others as u64 * input.slot_bytes).next_multiple_of(HUGE_PAGE_BYTES);
            let tables = plan.tables + n_slots as u64 * SLOT_ENTRY_BYTES;
            Self { mapped: lendable.bytes, slots, n_slots, tables, ..plan }
        };
        let Some(budget) = input.budget_bytes else { return Some(with(CHUNKS[0].min(input.context))) };
        let least = with(CHUNKS[CHUNKS.len() - 1].min(input.context));
        (least.total() <= budget).then(|| with(Self::chunk(budget, &least, with)))
    }

    fn with(input: &PlanInput<'_>, rows_max: usize, n_slots: usize) -> Self {
        let draft_rows = input.draft.rows.min(rows_max).min(input.context);
        let n_sequences = input.n_sequences.max(1);
        let n = n_sequences as u64;
        let n_experts = input.expert_layers * input.shape.moe.n_experts;
        let logit_rows = input.logit_rows.max(draft_rows).clamp(1, rows_max.max(1)).max(n_sequences);
        let aside_rows = if n_sequences > 1 { logit_rows } else { 0 };
        let config = StackConfig {
            n_sequences,
            context: input.context,
            rows_max,
            log_rows: draft_rows,
            aside_rows,
            kv: input.backend.kv_type(),
        };
        let stack = device::stack_bytes(input.backend, &config, (input.shape, input.experts));
        let logits = logit_rows * device::logits_held(input.backend) * LOGIT_BYTES;
        let logits = input.shape.n_vocab * (logits + n_sequences * CANDIDATE_BYTES);
        let conversation = (input.context * (TOKEN_BYTES + TEXT_COPIES * input.token_bytes_max)) as u64;
        Self {
            budget: input.budget_bytes,
            dense: input.dense_bytes,
            copies: input.copies_bytes,
            kv: stack.kv,
            state: stack.state,
            checkpoints: (input.n_checkpoints as u64 * n).saturating_mul(Checkpoint::bytes(input.shape)),
            prefixes: input.prefix_bytes,
            grammars: input.grammars.shared_bytes + input.grammars.live_bytes.saturating_mul(n),
            server: input.server_bytes,
            // What is tapped is gathered by the backend, then handed over as a whole.
            drafter: input.draft.bytes.saturating_mul(n)
                + (2 * 4 * input.draft.tapped * (rows_max + aside_rows)) as u64,
            scratch: stack.scratch.saturating_add(logits as u64),
            text: input.text_bytes,
            io: input.io_bytes,
            conversation: conversation.saturating_mul(n),
            tables: n_slots as u64 * SLOT_ENTRY_BYTES
                + n_experts as u64 * EXPERT_ENTRY_BYTES
                + (input.expert_layers * input.shape.moe.top_k * REMEMBERED_BYTES) as u64
                + (rows_max * input.shape.moe.top_k * USE_BYTES) as u64
                + lookahead_bytes(input),
            sums: input.sums_bytes,
            threads: input.n_threads as u64 * THREAD_BYTES,
            runtime: RUNTIME_BYTES,
            mapped: 0,
            slots: (n_slots as u64).saturating_mul(input.slot_bytes),
            n_slots,
            slot_bytes: input.slot_bytes,
            n_experts,
            rows_max,
            logit_rows,
            draft_rows,
            n_checkpoints: input.n_checkpoints,
            n_sequences,
            aside_rows,
            context: input.context,
        }
    }

    /// This plan with fewer slots, so that it holds a lower budget; no other line changes, but that mapped experts go
    /// through slots when it doesn't hold them. A higher budget changes nothing.
    ///
    /// # Errors
    /// [`DecodeError::Budget`] when that isn't enough.
    pub fn lowered(&self, budget_bytes: u64) -> Result<Self, DecodeError> {
        let with = |n_slots: usize| {
            let slots = (n_slots as u64).saturating_mul(self.slot_bytes);
            Self { n_slots, slots, mapped: 0, budget: Some(budget_bytes), ..self.clone() }
        };
        if self.mapped > 0 && self.total() <= budget_bytes {
            let budget = self.budget.map_or(budget_bytes, |budget| budget.min(budget_bytes));
            return Ok(Self { budget: Some(budget), ..self.clone() });
        }
        let least = with(N_SLOTS_MIN);
        if least.total() > budget_bytes {
            let smallest_bytes = least.total();
            return Err(DecodeError::Budget { budget_bytes, smallest_bytes, plan: Box::new(least) });
        }
        let room = (budget_bytes - with(0).total()) / self.slot_bytes;
        let n_slots = usize::try_from(room).unwrap_or(usize::MAX).min(self.n_slots);
        Ok(if self.budget.is_some_and(|budget| budget <= budget_bytes) {
            self.clone()
        } else {
            with(n_slots)
        })
    }

    /// The backend that it has room for.
    pub(crate) fn stack(&self, kv: KvType) -> StackConfig {
        StackConfig {
            n_sequences: self.n_sequences,
            context: self.context,
            rows_max: self.rows_max,
            log_rows: self.draft_rows,
            aside_rows: self.aside_rows,
            kv,
        }
    }

    /// All lines together.
    pub fn total(&self) -> u64 {
        self.lines().iter().fold(0, |sum, line| sum.saturating_add(line.1))
    }
}

/// What is learnt for guesses, and the routers' scores for the rows of a pass in which guesses are made.
fn lookahead_bytes(input: &PlanInput<'_>) -> u64 {
    let (n_layers, n_experts) = (input.expert_layers, input.shape.moe.n_experts);
    let scores = ROWS_GUESSED_MAX * n_experts * size_of::<f32>();
    (Scheduler::lookahead_bytes(n_layers) + RouterAhead::bytes(n_layers, n_experts) + scores) as u64
}

#[cfg(test)]
mod tests;
