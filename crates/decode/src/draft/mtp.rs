//! The model's own prediction block (MTP): one more layer that guesses the token after next, then goes on from its own
//! guess. Its experts come through the scheduler like those of any layer.

use std::collections::VecDeque;

use forerun_compute::kernels::best;
use forerun_compute::products::{Exact, Products, Quantised};
use forerun_compute::workers::Workers;
use forerun_compute::{
    Backend, Checkpoint, ExpertJob, Part, Row, SequenceIdx, Stack, StackConfig, Step, StepOutput, Taps,
    Weights,
};
use forerun_model::names::prediction;
use forerun_model::{LayerId, LayerKind, ModelShape, Position, QuantType, Routing, TokenId};
use forerun_scheduler::{Ready, Scheduler};
use forerun_storage::{Catalog, Gguf, Resident, ResidentMode};

use super::{Anchor, Draft, Drafter, Seen, VERIFIED_ROWS_MAX, is_coarse};
use crate::DecodeError;
use crate::config::BackendChoice;
use crate::engine::tensor_of;

/// Rows that may wait for the next draft; older ones are left out of what the block remembers.
const WAITING_MAX: usize = 128;
/// The same where experts are read from a disk: rows that wait are read for in one pass, which mustn't cost more than a draft
/// can bring.
const WAITING_READ_MAX: usize = 12;
/// Pages of this size are what a mapping rounds up to.
const PAGE_BYTES: u64 = 4096;

/// A prediction block that was found; nothing large has been allocated.
#[derive(Debug)]
pub struct MtpBlock {
    resident: Resident,
}

impl MtpBlock {
    /// Maps the first prediction block of a model of `shape`.
    ///
    /// # Errors
    /// [`DecodeError::Open`] when the header has none, or a tensor of it is missing.
    pub fn open(shape: &ModelShape, gguf: &Gguf) -> Result<Self, DecodeError> {
        Ok(Self { resident: Resident::load_specs(&prediction(shape), gguf, ResidentMode::Mapped)? })
    }

    /// A matrix of it in so few bits that its drafts can't be expected to be right.
    pub fn coarse(&self) -> Option<(&str, QuantType)> {
        let mut tensors = self.resident.tensors().iter();
        let coarse = tensors.find(|tensor| tensor.dims.as_slice().len() > 1 && is_coarse(tensor.quant));
        coarse.map(|tensor| (&*tensor.name, tensor.quant))
    }

    /// Bytes of weights, caches and buffers for a context of `context` tokens; experts apart.
    pub fn bytes(&self, shape: &ModelShape, context: usize, backend: BackendChoice) -> u64 {
        let stack = config(context, backend).bytes(&block_shape(shape));
        let mapped = self.resident.tensors().iter();
        let mapped: u64 =
            mapped.map(|t| (t.bytes.len() as u64 + PAGE_BYTES).next_multiple_of(PAGE_BYTES)).sum();
        let (rows, d, f32) = (WAITING_MAX as u64, shape.hidden as u64, 4);
        let logits = f32 * shape.n_vocab as u64;
        // States wait, are gathered for a step, and come out of it.
        let states = 3 * rows * d * f32 + f32 * context as u64;
        let norms = 8 * d * f32;
        let entry = Stack::<Exact>::entry_bytes(WAITING_MAX, shape.hidden);
        mapped + stack.kv + stack.state + stack.scratch + logits + states + norms + entry
    }

    /// Allocates what drafting for a context of `context` tokens takes; `is_resident` when all experts of `catalog` stay in
    /// memory.
    ///
    /// # Errors
    /// [`DecodeError`] for a tensor that can't be computed with.
    pub fn start(
        &self,
        target: &Weights,
        (catalog, is_resident): (&Catalog, bool),
        context: usize,
        backend: BackendChoice,
        workers: &Workers,
    ) -> Result<Box<dyn Drafter>, DecodeError> {
        let layer = LayerId(u16::try_from(target.shape.n_layers()).unwrap_or(u16::MAX));
        let missing = || DecodeError::NoPredictionBlock;
        let experts = *catalog.layout(layer).ok_or_else(missing)?;
        let weights =
            Weights::bind_prediction(target, experts, |name| self.resident.get(name).map(tensor_of))?;
        let config = config(context, backend);
        let waiting_max = if is_resident { WAITING_MAX } else { WAITING_READ_MAX };
        Ok(match backend {
            BackendChoice::Reference(rounding) => Box::new(Mtp::new(
                layer,
                Stack::new(weights, config, Exact::new(rounding)),
                context,
                waiting_max,
            )),
            BackendChoice::Cpu | BackendChoice::Candle(_) => {
                let products = Quantised::new(best(), workers.clone());
                Box::new(Mtp::new(layer, Stack::new(weights, config, products), context, waiting_max))
            }
        })
    }
}

fn block_shape(shape: &ModelShape) -> ModelShape {
    ModelShape { layers: vec![LayerKind::Attention], n_mtp: 0, ..shape.clone() }
}

fn config(context: usize, backend: BackendChoice) -> StackConfig {
    let kv = backend.kv_type();
    StackConfig { n_sequences: 1, context, rows_max: WAITING_MAX, log_rows: 0, aside_rows: 0, kv }
}

/// A pair that enters the block: a token, and the state at the position before it.
#[derive(Debug)]
struct Pair {
    /// The state's position.
    position: u32,
    token: TokenId,
    state: Vec<f32>,
}

/// A prediction block at work.
#[derive(Debug)]
struct Mtp<P> {
    /// What the scheduler calls its layer.
    layer: LayerId,
    /// Pairs that may wait, the newest among them.
    waiting_max: usize,
    stack: Stack<P>,
    /// Position of each row that the block remembers.
    remembered: Vec<u32>,
    /// Pairs that it has not seen yet, oldest first.
    waiting: VecDeque<Pair>,
    /// Buffers of pairs that are gone.
    spare: Vec<Vec<f32>>,
    /// The state of the newest position; it waits for the token after it.
    newest: Vec<f32>,
    /// Positions observed.
    len: usize,
    rows: Vec<Row>,
    states: Vec<f32>,
    routing: Routing,
    output: StepOutput,
}

impl<P: Products> Mtp<P> {
    fn new(layer: LayerId, stack: Stack<P>, context: usize, waiting_max: usize) -> Self {
        Self {
            layer,
            waiting_max,
            stack: stack.bringing(Taps { layers: Vec::new(), normed: true }),
            remembered: Vec::with_capacity(context),
            waiting: VecDeque::with_capacity(WAITING_MAX),
            spare: Vec::with_capacity(WAITING_MAX),
            newest: Vec::new(),
            len: 0,
            rows: Vec::with_capacity(WAITING_MAX),
            states: Vec::new(),
            routing: Routing::default(),
            output: StepOutput::default(),
        }
    }

    /// Lets a pair wait; the oldest makes room.
    fn wait(&mut self, position: usize, token: TokenId, state: &[f32]) {
        // One place is the anchor's.
        if self.waiting.len() >= self.waiting_max - 1 {
            self.spare.extend(self.waiting.pop_front().map(|pair| pair.state));
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(state);
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        self.waiting.push_back(Pair { position, token, state: copy });
    }

    /// Runs the block over `rows` and `states`; leaves logits and state of the last in `output`.
    fn run(&mut self, scheduler: &mut Scheduler) -> Result<(), DecodeError> {
        let Self { stack, rows, states, routing, output, .. } = self;
        let own = LayerId(0);
        let part = Part { past: self.remembered.len(), n_rows: rows.len(), ..Part::default() };
        let step = Step::of(&part, rows);
        stack.enter(&step, states)?;
        stack.mix_route(own, routing)?;
        let mut turn = scheduler.open_layer(self.layer, routing)?;
        stack.run_shared(own)?;
        while let Some(Ready { key, lease, parts }) = turn.next_ready()? {
            let uses = routing.uses(key.expert);
            stack.run_expert(ExpertJob { layer: own, weights: lease, parts, uses })?;
        }
        drop(turn);
        stack.close_layer(own)?;
        stack.finish(output)?;
        stack.accept(0, rows.len())?;
        self.remembered.extend(rows.iter().map(|row| row.position.0[0]));
        Ok(())
    }

    /// Makes `rows` and `states` of what waits and of the newest state with `token`.
    fn gather(&mut self, token: TokenId) {
        self.rows.clear();
        self.states.clear();
        for Pair { position, token, state } in self.waiting.drain(..) {
            self.rows.push(Row { token, position: Position::text(position), wants_logits: false });
            self.states.extend_from_slice(&state);
            self.spare.push(state);
        }
        let position = Position::text(u32::try_from(self.len - 1).unwrap_or(u32::MAX));
        self.rows.push(Row { token, position, wants_logits: true });
        self.states.extend_from_slice(&self.newest);
    }

    /// Adds guesses to `draft`, each from the state of the one before.
    fn draft(
        &mut self,
        scheduler: &mut Scheduler,
        anchor: TokenId,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError> {
        for position in self.len..self.len + VERIFIED_ROWS_MAX - 1 {
            if !draft.admits(f32::NAN) {
                break;
            }
            // The first token's pair is with a state that the model has made, the others' with the block's own.
            if position == self.len {
                self.gather(anchor);
            }
            let n_rows = self.rows.len();
            self.run(scheduler)?;
            // What can't be chosen from ends the draft, not the answer.
            let Ok(token) = draft.choose(self.output.row(0)) else { break };
            let d = self.stack.shape().hidden;
            let position = Position::text(u32::try_from(position).unwrap_or(u32::MAX));
            self.rows.clear();
            self.rows.push(Row { token, position, wants_logits: true });
            self.states.clear();
            self.states.extend_from_slice(&self.output.normed[(n_rows - 1) * d..n_rows * d]);
        }
        Ok(())
    }

    /// Forgets remembered rows of positions from `len` on.
    fn forget(&mut self, len: usize) -> Result<(), DecodeError> {
        let keep = self.remembered.partition_point(|&position| (position as usize) < len);
        self.remembered.truncate(keep);
        Ok(self.stack.restore(SequenceIdx(0), &Checkpoint { len: keep, values: Vec::new() })?)
    }
}

impl<P: Products + Send> Drafter for Mtp<P> {
    fn name(&self) -> &'static str {
        "mtp"
    }

    fn taps(&self) -> Taps {
        Taps { layers: Vec::new(), normed: true }
    }

    fn n_max(&self) -> usize {
        VERIFIED_ROWS_MAX - 1
    }

    fn observe(&mut self, _: &mut Scheduler, seen: Seen<'_>) -> Result<(), DecodeError> {
        let d = self.stack.shape().hidden;
        for (i, (&token, state)) in seen.tokens.iter().zip(seen.normed.chunks_exact(d)).enumerate() {
            let position = seen.first + i;
            if let Some(before) = position.checked_sub(1)
                && self.len == position
                && !self.newest.is_empty()
            {
                let newest = std::mem::take(&mut self.newest);
                self.wait(before, token, &newest);
                self.newest = newest;
            }
            self.newest.clear();
            self.newest.extend_from_slice(state);
            self.len = position + 1;
        }
        Ok(())
    }

    fn propose(
        &mut self,
        scheduler: &mut Scheduler,
        anchor: Anchor<'_>,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError> {
        if self.newest.is_empty() || self.len == 0 {
            return Ok(());
        }
        let proposed = self.draft(scheduler, anchor.token, draft);
        // Rows of guesses are no longer needed, whatever became of them.
        self.forget(self.len - 1)?;
        proposed
    }

    fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        while self.waiting.back().is_some_and(|pair| pair.position as usize + 1 >= len) {
            self.spare.extend(self.waiting.pop_back().map(|pair| pair.state));
        }
        // A stack of attention alone can be cut back anywhere.
        let cut = self.forget(len.saturating_sub(1));
        debug_assert!(cut.is_ok(), "{cut:?}");
        self.newest.clear();
        self.len = len;
    }

    fn resume(&mut self, tokens: &[TokenId]) {
        self.truncate(0);
        // The block remembers rows of any positions, so it goes on with those to come.
        self.len = tokens.len();
    }
}
