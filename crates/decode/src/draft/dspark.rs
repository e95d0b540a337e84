//! A drafter of its own file that reads the model's states: DSpark, or DFlash where the file has no Markov table.

use std::path::{Path, PathBuf};

use forerun_compute::kernels::best;
use forerun_compute::products::{Exact, Products, Quantised};
use forerun_compute::workers::Workers;
use forerun_compute::{ComputeError, Dspark, DsparkConfig, DsparkWeights, Taps, Weights};
use forerun_model::drafter::{TARGET_IDS, check_known, specs};
use forerun_model::{DrafterShape, ModelShape, QuantType, ShapeError, TokenId};
use forerun_scheduler::Scheduler;
use forerun_storage::{Gguf, Metadata, OpenError, Resident, ResidentMode};

use super::{Anchor, Draft, Drafter, Seen, VERIFIED_ROWS_MAX, is_coarse};
use crate::config::BackendChoice;
use crate::engine::tensor_of;
use crate::{DecodeError, heap};

/// Positions whose states may wait.
const WAITING_MAX: usize = 64;
/// Pages of this size are what a mapping rounds up to.
const PAGE_BYTES: u64 = 4096;
/// What a header's remaining values and its list of tensors take, about.
const PER_TENSOR_BYTES: u64 = 160;

/// A drafter's file whose header was read and fits the model; nothing large has been allocated.
#[derive(Debug)]
pub struct DsparkFile {
    path: PathBuf,
    gguf: Gguf,
    shape: DrafterShape,
}

/// Memory that a drafter takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrafterBytes {
    /// Its weights, as they will lie in memory.
    pub weights: u64,
    /// What it remembers of the context.
    pub context: u64,
    /// Buffers.
    pub scratch: u64,
}

impl DrafterBytes {
    /// All of it.
    pub fn total(self) -> u64 {
        self.weights.saturating_add(self.context).saturating_add(self.scratch)
    }
}

impl DsparkFile {
    /// Opens the file at `path`, which must be a drafter for a model of shape `target`.
    ///
    /// # Errors
    /// [`DecodeError::Open`] when it is no GGUF file, [`DecodeError::Drafter`] when it is no drafter that can be used with
    /// this model.
    pub fn open(path: &Path, target: &ModelShape) -> Result<Self, DecodeError> {
        let mut gguf = Gguf::open(path)?;
        let dims = |name: &str| gguf.tensor(name).map(|tensor| tensor.dims().to_vec());
        let refused = |source: ShapeError| refused(path, source.into());
        let shape = DrafterShape::read(&gguf.metadata, &dims, target).map_err(refused)?;
        check_known(&specs(&shape), gguf.tensors().iter().map(|tensor| &*tensor.name)).map_err(refused)?;
        // A vocabulary was counted and is not needed.
        gguf.metadata = Metadata::default();
        heap::release();
        Ok(Self { path: path.to_owned(), gguf, shape })
    }

    /// What the file says.
    pub fn shape(&self) -> &DrafterShape {
        &self.shape
    }

    /// A matrix of it in so few bits that its drafts can't be expected to be right.
    pub fn coarse(&self) -> Option<(&str, QuantType)> {
        let mut tensors = self.gguf.tensors().iter();
        let coarse = tensors.find(|tensor| tensor.dims().len() > 1 && is_coarse(tensor.quant));
        coarse.map(|tensor| (&*tensor.name, tensor.quant))
    }

    /// What [`Self::start`] will allocate and map.
    pub fn bytes(&self, context: usize, backend: BackendChoice) -> DrafterBytes {
        let config = DsparkConfig { context, kv: backend.kv_type() };
        let bytes = config.bytes(&self.shape, self.gguf.tensor(TARGET_IDS).is_some());
        let tensors = self.gguf.tensors().iter();
        // A mapping of its own for each.
        let mapped = tensors.map(|tensor| (tensor.len_bytes + PAGE_BYTES).next_multiple_of(PAGE_BYTES));
        let list = self.gguf.tensors().len() as u64 * PER_TENSOR_BYTES;
        DrafterBytes {
            weights: mapped.sum::<u64>() + bytes.own + list,
            context: bytes.kv,
            scratch: bytes.scratch + (4 * WAITING_MAX * tapped(&self.shape)) as u64,
        }
    }

    /// Maps the weights and allocates what drafting for a context of `context` tokens takes. Embeddings and head are
    /// `target`'s unless the file has its own; `workers` should be those of the model.
    ///
    /// # Errors
    /// [`DecodeError::Drafter`] names a tensor that can't be used, [`DecodeError::Open`] says what the system refuses.
    pub fn start(
        &self,
        target: &Weights,
        context: usize,
        backend: BackendChoice,
        workers: &Workers,
    ) -> Result<Box<dyn Drafter>, DecodeError> {
        let specs = specs(&self.shape);
        let resident = Resident::load_specs(&specs, &self.gguf, ResidentMode::Mapped);
        let resident = resident.map_err(|error| match error {
            OpenError::Shape(shape) => refused(&self.path, shape.into()),
            other => other.into(),
        })?;
        let weights = self.bind(target, &resident).map_err(|error| refused(&self.path, error))?;
        let config = DsparkConfig { context, kv: backend.kv_type() };
        Ok(match backend {
            BackendChoice::Reference(rounding) => boxed(Dspark::new(weights, config, Exact::new(rounding))),
            BackendChoice::Cpu | BackendChoice::Candle(_) => {
                boxed(Dspark::new(weights, config, Quantised::new(best(), workers.clone())))
            }
        })
    }

    fn bind(&self, target: &Weights, resident: &Resident) -> Result<DsparkWeights, ComputeError> {
        let ids = resident.get(TARGET_IDS).map(|tensor| match tensor.quant {
            QuantType::I64 => {
                let (ids, _) = tensor.bytes.as_chunks::<8>();
                Ok(ids.iter().map(|id| i64::from_le_bytes(*id)).collect::<Vec<_>>())
            }
            QuantType::I32 => {
                let (ids, _) = tensor.bytes.as_chunks::<4>();
                Ok(ids.iter().map(|id| i32::from_le_bytes(*id).into()).collect())
            }
            quant => {
                let (name, quant) = (tensor.name.clone(), quant.name());
                Err(ComputeError::UnsupportedType { name, quant, supported: "I64, I32" })
            }
        });
        DsparkWeights::bind(&self.shape, target, ids.transpose()?.as_deref(), |name| {
            resident.get(name).map(tensor_of)
        })
    }
}

fn refused(path: &Path, source: ComputeError) -> DecodeError {
    DecodeError::Drafter { path: path.to_owned(), source }
}

fn boxed<P: Products + Send + 'static>(model: Dspark<P>) -> Box<dyn Drafter> {
    let shape = model.shape();
    let (taps, row) = (Taps { layers: shape.taps.clone(), normed: false }, tapped(shape));
    Box::new(Running { taps, row, waiting: Vec::with_capacity(WAITING_MAX * row), first: 0, model })
}

/// Values that are tapped of one position.
fn tapped(shape: &DrafterShape) -> usize {
    shape.taps.len() * shape.hidden
}

/// A drafter at work. What it is shown waits until a draft is asked for, or enough is there that its weights are read once
/// for many positions: a model that doesn't draft at present pays next to nothing for its drafter.
#[derive(Debug)]
struct Running<P> {
    taps: Taps,
    /// Values of one position.
    row: usize,
    /// States of positions that the model hasn't seen.
    waiting: Vec<f32>,
    /// The position of the first of them.
    first: usize,
    model: Dspark<P>,
}

impl<P: Products> Running<P> {
    /// Shows the model what waits.
    fn catch_up(&mut self) -> Result<(), DecodeError> {
        if !self.waiting.is_empty() {
            let shown = self.model.observe(self.first, &self.waiting);
            self.first += self.waiting.len() / self.row;
            self.waiting.clear();
            shown?;
        }
        Ok(())
    }
}

impl<P: Products + Send> Drafter for Running<P> {
    fn name(&self) -> &'static str {
        "dspark"
    }

    fn taps(&self) -> Taps {
        self.taps.clone()
    }

    fn n_max(&self) -> usize {
        self.model.shape().n_drafts().min(VERIFIED_ROWS_MAX - 1)
    }

    fn observe(&mut self, _: &mut Scheduler, seen: Seen<'_>) -> Result<(), DecodeError> {
        if self.waiting.len() + seen.taps.len() > WAITING_MAX * self.row {
            self.catch_up()?;
        }
        if seen.taps.len() > WAITING_MAX * self.row {
            self.first = seen.first + seen.tokens.len();
            return Ok(self.model.observe(seen.first, seen.taps)?);
        }
        self.waiting.extend_from_slice(seen.taps);
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Scheduler,
        anchor: Anchor<'_>,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError> {
        self.catch_up()?;
        self.model.block(anchor.token)?;
        let mut before = anchor.token;
        for i in 0..self.n_max() {
            if !draft.admits(self.model.confidence(i, before)?) {
                break;
            }
            // What can't be chosen from ends the draft, not the answer.
            let Ok(token) = draft.choose(self.model.logits(i, before)?) else { break };
            before = token;
        }
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.waiting.truncate(len.saturating_sub(self.first) * self.row);
        if len < self.first {
            self.first = len;
            self.model.truncate(len);
        }
    }

    fn resume(&mut self, tokens: &[TokenId]) {
        self.waiting.clear();
        self.model.truncate(0);
        // The model goes on at any position; what was left out it never sees.
        self.first = tokens.len();
    }
}
