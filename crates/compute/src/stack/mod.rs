//! The whole stack over one kind of products: what [`Reference`] and [`Cpu`] have in common.

mod entry;
mod mixer;
pub(crate) mod moe;
pub(crate) mod recurrence;
mod saved;
mod scratch;

use std::io::{Read, Write};
use std::mem;
use std::ops::Range;

use forerun_model::{LayerId, ModelShape, Routing, Stage};

use crate::activation::{Activations, Rows};
use crate::backend::{Backend, ExpertJob, Row, Scores, Step, StepOutput, Taps};
use crate::dequant::dequantise;
use crate::kernels::{Loop, best};
use crate::kv_cache::KvType;
use crate::loops::Norm;
use crate::products::{Exact, Product, Products, Quantised, Rounding};
use crate::rope::Rope;
use crate::sequence::{Checkpoint, Sequence};
use crate::stepping::{Bounds, Current, check};
use crate::tap::{InputTap, Inputs, Tap};
use crate::weights::Weights;
use crate::workers::Workers;
use crate::{ComputeError, SequenceIdx};
pub use moe::Closing;
pub use recurrence::{Inputs as RecurrenceInputs, Outputs as RecurrenceOutputs, Recurrence};
use scratch::Scratch;

/// The definition of right: decoded weights, plain f32 products, one thread.
pub type Reference = Stack<Exact>;
/// Products on the stored blocks, on several threads.
pub type Cpu = Stack<Quantised>;

/// How much a stack keeps and takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Sequences.
    pub n_sequences: usize,
    /// Tokens of context per sequence.
    pub context: usize,
    /// Most rows of a step.
    pub rows_max: usize,
    /// Most rows of a step's part of which fewer may be accepted; 0: there are no such parts.
    pub log_rows: usize,
    /// Most rows of a step that runs while another is put aside; 0: there are no such steps.
    pub aside_rows: usize,
    /// How keys and values are stored.
    pub kv: KvType,
}

/// Bytes that a stack allocates, by purpose; weights apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackBytes {
    /// Keys and values.
    pub kv: u64,
    /// Recurrent states, in two copies, and the logs of steps that may be rejected.
    pub state: u64,
    /// Buffers of a step.
    pub scratch: u64,
}

impl StackConfig {
    /// What a stack of `shape` with this configuration allocates.
    pub fn bytes(&self, shape: &ModelShape) -> StackBytes {
        let n = self.n_sequences as u64;
        StackBytes {
            kv: Sequence::kv_bytes(shape, self.kv, self.context).saturating_mul(n),
            state: (Sequence::state_bytes(shape) + Sequence::log_bytes(shape, self.log_rows))
                .saturating_mul(n),
            scratch: Scratch::bytes(shape, self.rows_max) + Scratch::bytes(shape, self.aside_rows),
        }
    }
}

/// A model's layers over products `P`.
#[derive(Debug)]
pub struct Stack<P> {
    weights: Weights,
    products: P,
    rope: Rope,
    config: StackConfig,
    sequences: Vec<Sequence>,
    scratch: Scratch,
    step: Current,
    /// Rows of the step whose logits are wanted.
    wanted: Vec<u32>,
    chosen: Vec<(forerun_model::ExpertId, f32)>,
    expert_rows: Vec<u32>,
    tap: Tap,
    taps: Taps,
    /// Outputs of the tapped layers, `[rows, layers, hidden]`.
    tapped: Vec<f32>,
    /// What enters a prediction block, `[rows, 2 * hidden]`.
    entry: Activations,
    aside: Aside,
}

/// The step that was put aside, or the memory for one.
#[derive(Debug)]
struct Aside {
    scratch: Scratch,
    step: Current,
    wanted: Vec<u32>,
    tapped: Vec<f32>,
}

impl Reference {
    /// The reference over `weights`, with activations rounded as `rounding` says.
    pub fn reference(weights: Weights, config: StackConfig, rounding: Rounding) -> Self {
        Self::new(weights, config, Exact::new(rounding))
    }
}

impl Cpu {
    /// The fast backend over `weights` with the best kernels of this CPU.
    ///
    /// # Errors
    /// [`ComputeError::Threads`] when the threads can't be started.
    pub fn cpu(weights: Weights, config: StackConfig, n_threads: usize) -> Result<Self, ComputeError> {
        Ok(Self::on(weights, config, Workers::new(n_threads)?))
    }

    /// The same on threads that are there already.
    pub fn on(weights: Weights, config: StackConfig, workers: Workers) -> Self {
        Self::new(weights, config, Quantised::new(best(), workers))
    }

    /// The name of the kernels in use.
    pub fn kernels(&self) -> &'static str {
        self.products.kernels()
    }
}

impl<P: Products> Stack<P> {
    /// A stack over `weights`; allocates caches, states and buffers now.
    pub fn new(weights: Weights, config: StackConfig, products: P) -> Self {
        let shape = &weights.shape;
        let entry_rows = weights.entry.as_ref().map_or(0, |_| config.rows_max);
        let sequence = |_| Sequence::new(shape, config.kv, config.context, config.log_rows);
        let step = || Current::with_capacity(config.n_sequences);
        Self {
            rope: Rope::new(&shape.rope),
            sequences: (0..config.n_sequences).map(sequence).collect(),
            scratch: Scratch::new(shape, config.rows_max),
            products,
            config,
            step: step(),
            wanted: Vec::with_capacity(config.rows_max),
            chosen: Vec::with_capacity(shape.moe.top_k),
            expert_rows: Vec::with_capacity(config.rows_max),
            tap: Tap::default(),
            taps: Taps::default(),
            tapped: Vec::new(),
            entry: Activations::with_capacity(entry_rows, 2 * shape.hidden),
            aside: Aside {
                scratch: Scratch::new(shape, config.aside_rows),
                step: step(),
                wanted: Vec::with_capacity(config.aside_rows),
                tapped: Vec::new(),
            },
            weights,
        }
    }

    /// The same stack, whose products' inputs `tap` hears.
    #[must_use]
    pub fn tapped(self, tap: Box<dyn InputTap>) -> Self {
        Self { tap: Tap::new(tap), ..self }
    }

    /// The same stack, whose steps bring out what `taps` names. Layers must be in ascending order and the model's.
    #[must_use]
    pub fn bringing(self, taps: Taps) -> Self {
        let row = taps.layers.len() * self.weights.shape.hidden;
        let aside = Aside { tapped: vec![0.0; row * self.config.aside_rows], ..self.aside };
        Self { tapped: vec![0.0; row * self.config.rows_max], aside, taps, ..self }
    }

    /// The model's shape.
    pub fn shape(&self) -> &ModelShape {
        &self.weights.shape
    }

    /// What sequence `sequence` remembers.
    pub fn sequence(&self, sequence: SequenceIdx) -> &Sequence {
        &self.sequences[sequence.0]
    }

    fn check(&self, step: &Step<'_>) -> Result<(), ComputeError> {
        let bounds = Bounds {
            rows_max: self.scratch.rows_max,
            log_rows: self.config.log_rows,
            context: self.config.context,
            n_vocab: self.weights.shape.n_vocab,
            n_sequences: self.sequences.len(),
        };
        check(step, bounds, |sequence| self.sequences[sequence].len, &self.aside.step)
    }

    fn embed(&mut self, rows: &[Row]) {
        let d = self.weights.shape.hidden;
        let embedding = self.weights.embedding.matrix();
        for (row, x) in rows.iter().zip(self.scratch.x.chunks_exact_mut(d)) {
            dequantise(embedding.layout.quant, embedding.row(row.token.idx()), x);
        }
        let len = self.rope.table_len();
        for (row, table) in rows.iter().zip(self.scratch.rope.chunks_exact_mut(len.max(1))) {
            self.rope.table(row.position, table);
        }
    }

    /// Normalises the step's rows with `weight` into `normed`.
    fn normalise(products: &P, scratch: &mut Scratch, n_rows: usize, weight: &[f32], eps: f32) {
        let (d, x, isa) = (weight.len(), &scratch.x, products.isa());
        let out = scratch.normed.start(n_rows, d);
        products.workers().rows(out, d, 4 * n_rows * d, |row, out| {
            isa.run(Norm { x: &x[row * d..(row + 1) * d], weight, eps, out });
        });
    }
}

/// Whether all values are numbers.
struct AllFinite<'a>(&'a [f32]);

impl Loop for AllFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        // Without an early end, so that the loop has no branch a value.
        self.0.iter().fold(true, |all, v| all & v.is_finite())
    }
}

impl<P: Products> Backend for Stack<P> {
    fn begin(&mut self, step: &Step<'_>) -> Result<(), ComputeError> {
        self.step.abandon();
        self.check(step)?;
        for part in step.parts.iter().filter(|part| part.past == 0) {
            self.sequences[part.sequence.0].clear();
        }
        self.embed(step.rows);
        self.wanted.clear();
        self.wanted.extend((0..).zip(step.rows).filter(|(_, row)| row.wants_logits).map(|(i, _)| i));
        self.step.begin(step);
        Ok(())
    }

    fn mix_route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        self.mix(layer);
        self.route(layer, routing)
    }

    fn scores(&mut self, _stage: Stage, layer: LayerId, scores: &mut Scores) -> Result<(), ComputeError> {
        self.guess(layer, scores);
        Ok(())
    }

    fn run_shared(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.shared_expert(layer);
        Ok(())
    }

    fn run_expert(&mut self, job: ExpertJob<'_>) -> Result<(), ComputeError> {
        self.routed_expert(&job)
    }

    fn close_layer(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.add_experts();
        if let Ok(i) = self.taps.layers.binary_search(&layer) {
            let (n, d, n_taps) = (self.step.n_rows(), self.weights.shape.hidden, self.taps.layers.len());
            let rows = self.scratch.x[..n * d].chunks_exact(d);
            for (x, tapped) in rows.zip(self.tapped.chunks_exact_mut(n_taps * d)) {
                tapped[i * d..(i + 1) * d].copy_from_slice(x);
            }
        }
        Ok(())
    }

    fn finish(&mut self, output: &mut StepOutput) -> Result<(), ComputeError> {
        let Self { weights, products, scratch, step, wanted, tap, taps, tapped, .. } = self;
        let (shape, n_rows) = (&weights.shape, step.n_rows());
        let d = shape.hidden;
        output.taps.clear();
        output.taps.extend_from_slice(&tapped[..n_rows * taps.layers.len() * d]);
        output.normed.clear();
        if taps.normed {
            output.normed.resize(n_rows * d, 0.0);
            let (x, isa, weight, eps) = (&scratch.x, products.isa(), &weights.output_norm, shape.norm_eps);
            products.workers().rows(&mut output.normed, d, 4 * n_rows * d, |row, out| {
                isa.run(Norm { x: &x[row * d..(row + 1) * d], weight, eps, out });
            });
        }
        let layer = LayerId(u16::try_from(shape.n_layers() - 1).unwrap_or(u16::MAX));
        if tap.asks_head() {
            Self::normalise(products, scratch, n_rows, &weights.output_norm, shape.norm_eps);
            tap.hear(layer, Inputs::Head, &scratch.normed, 0, Rows::All);
        }
        output.n_vocab = shape.n_vocab;
        output.logits.clear();
        output.logits.resize(wanted.len() * shape.n_vocab, 0.0);
        let normed = scratch.normed.start(wanted.len(), d);
        for (&row, out) in wanted.iter().zip(normed.chunks_exact_mut(d)) {
            let x = &scratch.x[row as usize * d..][..d];
            products.isa().run(Norm { x, weight: &weights.output_norm, eps: shape.norm_eps, out });
        }
        let mut work = [Product { matrix: weights.output.matrix(), out: &mut output.logits }];
        products.multiply(&mut scratch.normed, Rows::All, &mut work);
        if !products.isa().run(AllFinite(&output.logits)) {
            return Err(ComputeError::NotFinite { what: "a logit", layer });
        }
        step.finish();
        Ok(())
    }

    fn accept(&mut self, part: usize, n_rows: usize) -> Result<(), ComputeError> {
        let placed = self.step.accept(part, n_rows)?;
        if n_rows == 0 {
            return Ok(());
        }
        if n_rows < placed.n_rows {
            self.replay(placed.sequence, n_rows);
        }
        self.sequences[placed.sequence].commit(n_rows);
        Ok(())
    }

    fn exchange(&mut self) {
        let Self { scratch, step, wanted, tapped, aside, .. } = self;
        if aside.step.is_under_way() {
            // Whoever takes a step up is done with the one that ran meanwhile, accepted or not.
            step.abandon();
        }
        mem::swap(scratch, &mut aside.scratch);
        mem::swap(step, &mut aside.step);
        mem::swap(wanted, &mut aside.wanted);
        mem::swap(tapped, &mut aside.tapped);
    }

    fn save(&self, sequence: SequenceIdx, checkpoint: &mut Checkpoint) -> Result<(), ComputeError> {
        let n_sequences = self.sequences.len();
        let held = self.sequences.get(sequence.0);
        held.ok_or(ComputeError::Sequence { sequence: sequence.0, n_sequences })?.save(checkpoint);
        Ok(())
    }

    fn restore(&mut self, sequence: SequenceIdx, checkpoint: &Checkpoint) -> Result<(), ComputeError> {
        if self.step.holds(sequence.0) {
            self.step.abandon();
        }
        let n_sequences = self.sequences.len();
        let held = self.sequences.get_mut(sequence.0);
        let held = held.ok_or(ComputeError::Sequence { sequence: sequence.0, n_sequences })?;
        if held.restore(checkpoint) {
            return Ok(());
        }
        Err(ComputeError::Checkpoint { checkpoint: checkpoint.len, held: held.len })
    }

    fn save_rows(
        &self,
        sequence: SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError> {
        self.write_rows(sequence, rows, out)
    }

    fn load(
        &mut self,
        sequence: SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError> {
        self.read_rows(sequence, checkpoint, rows)
    }
}
