//! The whole stack over one of candle's devices.

use std::io::{Read, Write};
use std::mem;
use std::ops::Range;

use forerun_arena::Arena;
use forerun_compute::dequant::dequantise;
use forerun_compute::rope::Rope;
use forerun_compute::stepping::{Bounds, check};
use forerun_compute::{
    Backend, Checkpoint, ComputeError, DeviceName, ExpertJob, Row, Scores, SequenceIdx, StackConfig, Step,
    StepOutput, Taps, Weights,
};
use forerun_model::{ExpertId, LayerId, ModelShape, Routing, Stage};

use crate::device::{Machine, read};
use crate::error::Failure;
use crate::metal::{InSlots, own_kernels};
use crate::ops::{Turns, rms_norm};
use crate::recurrence::Recurrence;
use crate::state::{Recurrent, Sequence};
use crate::step::{Flow, Ranked, Running};
use crate::weights::DeviceWeights;

/// A model's layers on one of candle's devices.
pub struct CandleStack {
    /// Keeps the slots page-locked; goes before the device does.
    #[cfg(feature = "cuda")]
    pinned: Option<crate::pinned::Pinned>,
    pub(crate) machine: Machine,
    pub(crate) weights: DeviceWeights,
    pub(crate) rule: Box<dyn Recurrence>,
    /// Runs experts where they lie, on devices that can.
    pub(crate) in_slots: Option<InSlots>,
    rope: Rope,
    config: StackConfig,
    taps: Taps,
    pub(crate) sequences: Vec<Sequence>,
    /// What a sequence that begins remembers.
    zero: Option<Recurrent>,
    pub(crate) step: Running,
    /// The step that was put aside, or room for one.
    aside: Running,
    pub(crate) chosen: Vec<(ExpertId, f32)>,
}

impl CandleStack {
    /// A stack over `weights` on `device`, whose steps bring out what `taps` names: layers in ascending order, all the model's.
    /// Copies the resident matrices to the device and allocates caches now; `weights` may be dropped, but for the table of
    /// embeddings, which stays where it is.
    ///
    /// # Errors
    /// [`ComputeError::DeviceMissing`] when the device can't be used, [`ComputeError::Device`] when it fails, as for want of
    /// memory.
    pub fn new(
        weights: &Weights,
        config: StackConfig,
        taps: Taps,
        device: DeviceName,
    ) -> Result<Self, ComputeError> {
        let machine = Machine::open(device)?;
        Self::on(weights, config, taps, machine).map_err(|failure| failure.on(device))
    }

    fn on(weights: &Weights, config: StackConfig, taps: Taps, machine: Machine) -> Result<Self, Failure> {
        let shape = &weights.shape;
        let zero = Recurrent::zero(shape, &machine)?;
        let (rule, in_slots) = own_kernels(&machine)?;
        let sequence = |_| Sequence::new(shape, &config, zero.as_ref(), &machine);
        let running = |rows_max| Running::new(rows_max, config.n_sequences);
        Ok(Self {
            rope: Rope::new(&shape.rope),
            rule,
            in_slots,
            sequences: (0..config.n_sequences).map(sequence).collect::<Result<_, _>>()?,
            step: running(config.rows_max),
            aside: running(config.aside_rows),
            chosen: Vec::with_capacity(shape.moe.top_k),
            weights: DeviceWeights::new(weights, &machine)?,
            machine,
            config,
            taps,
            zero,
            #[cfg(feature = "cuda")]
            pinned: None,
        })
    }

    /// Page-locks the slots of `arena`, out of which experts come, so that a CUDA device reads them without the driver's staging.
    /// Their memory can't be given back for as long as the stack lives.
    ///
    /// # Errors
    /// [`ComputeError::Device`] on any other device, and when the driver refuses.
    pub fn pin(&mut self, arena: &Arena) -> Result<(), ComputeError> {
        let device = self.machine.name;
        let refused = |reason: String| ComputeError::Device { device, reason };
        #[cfg(feature = "cuda")]
        if let DeviceName::Cuda(_) = device {
            self.pinned = Some(crate::pinned::Pinned::new(arena, &self.machine.device).map_err(refused)?);
            self.machine.reads_slots = true;
            return Ok(());
        }
        let _ = arena;
        Err(refused("only CUDA devices take page-locked slots".into()))
    }

    /// The model's shape.
    pub fn shape(&self) -> &ModelShape {
        &self.weights.shape
    }

    /// The device that it computes on.
    pub fn device(&self) -> DeviceName {
        self.machine.name
    }

    /// Gives back the leases of slots that the device may have read.
    fn release(&mut self) -> Result<(), ComputeError> {
        let Some(in_slots) = &mut self.in_slots else { return Ok(()) };
        in_slots.release().map_err(|failure| failure.on(self.machine.name))
    }

    fn check(&self, step: &Step<'_>) -> Result<(), ComputeError> {
        let bounds = Bounds {
            rows_max: self.step.rows_max,
            log_rows: self.config.log_rows,
            context: self.config.context,
            n_vocab: self.weights.shape.n_vocab,
            n_sequences: self.sequences.len(),
        };
        check(step, bounds, |sequence| self.sequences[sequence].len, &self.aside.current)
    }

    /// The rows of a step, embedded, and all that flows with them.
    fn embed(&self, step: &Step<'_>) -> Result<Flow, Failure> {
        let (shape, rows) = (&self.weights.shape, step.rows);
        let embedding = self.weights.embedding.matrix();
        let mut x = vec![0.0; rows.len() * shape.hidden];
        for (row, x) in rows.iter().zip(x.chunks_exact_mut(shape.hidden)) {
            dequantise(embedding.layout.quant, embedding.row(row.token.idx()), x);
        }
        let x = self.machine.rows(&x, shape.hidden)?;
        let per_part = || vec![None; shape.n_layers()];
        Ok(Flow {
            normed: x.clone(),
            x,
            turns: self.turns(rows)?,
            shared: None,
            ranked: Ranked::default(),
            tapped: Vec::with_capacity(self.taps.layers.len()),
            states: step.parts.iter().map(|_| per_part()).collect(),
            logs: step.parts.iter().map(|_| vec![None; shape.n_layers()]).collect(),
        })
    }

    fn turns(&self, rows: &[Row]) -> Result<Turns, Failure> {
        let (len, half) = (self.rope.table_len(), self.rope.table_len() / 2);
        let mut table = vec![0.0; len];
        let (mut cos, mut sin) =
            (Vec::with_capacity(rows.len() * half), Vec::with_capacity(rows.len() * half));
        for row in rows {
            self.rope.table(row.position, &mut table);
            cos.extend(table.iter().step_by(2));
            sin.extend(table.iter().skip(1).step_by(2));
        }
        let on = |values: &[f32]| -> Result<_, Failure> {
            Ok(self.machine.vector(values)?.reshape((rows.len(), 1, half))?)
        };
        Ok(Turns { cos: on(&cos)?, sin: on(&sin)? })
    }

    fn close(&mut self, layer: LayerId) -> Result<(), Failure> {
        self.add_experts()?;
        if self.taps.layers.binary_search(&layer).is_ok() {
            let flow = self.step.flow();
            flow.tapped.push(flow.x.clone());
        }
        Ok(())
    }

    /// What the step leaves, logits that aren't numbers included; whether all that they are made of are numbers, since products
    /// that round what they multiply may lose one that isn't.
    fn output(&mut self, output: &mut StepOutput) -> Result<bool, Failure> {
        let (w, eps) = (&self.weights, self.weights.shape.norm_eps);
        let (hidden, n_wanted) = (w.shape.hidden, self.step.wanted.len());
        let wanted = self.machine.indices(&self.step.wanted)?;
        let (current, flow) = self.step.split();
        let n = current.n_rows();
        let tapped = flow.tapped.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        output.taps.clear();
        for row in 0..n {
            tapped.iter().for_each(|x| output.taps.extend_from_slice(&x[row * hidden..(row + 1) * hidden]));
        }
        output.normed.clear();
        if self.taps.normed {
            output.normed = read(&rms_norm(&flow.x, &w.output_norm, eps)?)?;
        }
        output.n_vocab = w.shape.n_vocab;
        // Gone before the product, which has the memory that a row's logits take twice: on the device, and as they are read.
        output.logits = Vec::new();
        let mut are_finite = true;
        if n_wanted > 0 {
            let normed = rms_norm(&flow.x.index_select(&wanted, 0)?, &w.output_norm, eps)?;
            output.logits = read(&w.output.times(&normed)?)?;
            let values = read(&normed)?;
            are_finite = values.iter().chain(&output.logits).all(|value| value.is_finite());
        }
        Ok(are_finite)
    }

    fn keep(&mut self, part: usize, n_rows: usize) -> Result<(), Failure> {
        let placed = self.step.current.accept(part, n_rows)?;
        if n_rows == 0 {
            return Ok(());
        }
        let states = if n_rows < placed.n_rows {
            self.replay(part, placed.sequence, n_rows)?
        } else {
            mem::take(&mut self.step.flow().states[part])
        };
        self.sequences[placed.sequence].commit(n_rows, states);
        Ok(())
    }

    fn held(&self, SequenceIdx(sequence): SequenceIdx) -> Result<&Sequence, ComputeError> {
        let n_sequences = self.sequences.len();
        self.sequences.get(sequence).ok_or(ComputeError::Sequence { sequence, n_sequences })
    }

    fn read_rows(
        &mut self,
        sequence: SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), Failure> {
        let (context, need) = (self.config.context, self.held(sequence)?.n_state_values());
        let found = checkpoint.values.len();
        if found != need {
            return Err(ComputeError::SavedState { found, need }.into());
        }
        if checkpoint.len > context {
            return Err(ComputeError::ContextFull { past: checkpoint.len, rows: 0, context }.into());
        }
        // Both are asked before either changes.
        self.step.current.check_let_go(sequence.0)?;
        self.aside.current.check_let_go(sequence.0)?;
        self.step.current.let_go(sequence.0);
        self.aside.current.let_go(sequence.0);
        let Self { sequences, zero, machine, .. } = self;
        sequences[sequence.0].load(checkpoint, zero.as_ref(), rows, machine)
    }
}

impl Backend for CandleStack {
    fn begin(&mut self, step: &Step<'_>) -> Result<(), ComputeError> {
        self.step.abandon();
        self.release()?;
        self.check(step)?;
        for part in step.parts.iter().filter(|part| part.past == 0) {
            self.sequences[part.sequence.0].clear(self.zero.as_ref());
        }
        let flow = self.embed(step).map_err(|failure| failure.on(self.machine.name))?;
        self.step.wanted.clear();
        let wanted = (0..).zip(step.rows).filter(|(_, row)| row.wants_logits).map(|(i, _)| i);
        self.step.wanted.extend(wanted);
        self.step.start(flow);
        self.step.current.begin(step);
        Ok(())
    }

    fn mix_route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        let done = self.mix(layer).and_then(|()| self.route(layer, routing));
        done.map_err(|failure| failure.on(self.machine.name))
    }

    fn scores(&mut self, _stage: Stage, layer: LayerId, scores: &mut Scores) -> Result<(), ComputeError> {
        self.guess(layer, scores).map_err(|failure| failure.on(self.machine.name))
    }

    fn run_shared(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.shared_expert(layer).map_err(|failure| failure.on(self.machine.name))
    }

    fn run_expert(&mut self, job: ExpertJob<'_>) -> Result<(), ComputeError> {
        self.routed_expert(&job).map_err(|failure| failure.on(self.machine.name))
    }

    fn close_layer(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.close(layer).map_err(|failure| failure.on(self.machine.name))
    }

    fn finish(&mut self, output: &mut StepOutput) -> Result<(), ComputeError> {
        let is_finite = self.output(output).map_err(|failure| failure.on(self.machine.name))?;
        self.release()?;
        if !is_finite {
            let layer = LayerId(u16::try_from(self.weights.shape.n_layers() - 1).unwrap_or(u16::MAX));
            return Err(ComputeError::NotFinite { what: "a logit", layer });
        }
        self.step.current.finish();
        Ok(())
    }

    fn accept(&mut self, part: usize, n_rows: usize) -> Result<(), ComputeError> {
        self.keep(part, n_rows).map_err(|failure| failure.on(self.machine.name))
    }

    fn exchange(&mut self) {
        if self.aside.current.is_under_way() {
            // Whoever takes a step up is done with the one that ran meanwhile, accepted or not.
            self.step.abandon();
        }
        mem::swap(&mut self.step, &mut self.aside);
    }

    fn save(&self, sequence: SequenceIdx, checkpoint: &mut Checkpoint) -> Result<(), ComputeError> {
        let saved = self.held(sequence)?.save(checkpoint);
        saved.map_err(|failure| failure.on(self.machine.name))
    }

    fn restore(&mut self, sequence: SequenceIdx, checkpoint: &Checkpoint) -> Result<(), ComputeError> {
        if self.step.current.holds(sequence.0) {
            self.step.abandon();
        }
        self.held(sequence)?;
        let Self { sequences, machine, .. } = self;
        let restored = sequences[sequence.0].restore(checkpoint, machine);
        restored.map_err(|failure| failure.on(machine.name))
    }

    fn save_rows(
        &self,
        sequence: SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError> {
        let held = self.held(sequence)?;
        if rows.start > rows.end || rows.end > held.len {
            return Err(ComputeError::SavedRows { first: rows.start, end: rows.end, held: held.len });
        }
        held.save_rows(rows, out).map_err(|failure| failure.on(self.machine.name))
    }

    fn load(
        &mut self,
        sequence: SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError> {
        self.read_rows(sequence, checkpoint, rows).map_err(|failure| failure.on(self.machine.name))
    }
}
