//! A backend over one model, driven call by call. Experts with even numbers are lent where the file lies in memory, the
//! others come through slots.

use bytes::Bytes;
use forerun_arena::{Arena, ReadLease, SlotIdx};
use forerun_compute::{
    Backend, Checkpoint, ExpertJob, Part, Row, SequenceIdx, StackConfig, Step, StepOutput, Taps,
};
use forerun_decode::engine::bind_weights;
use forerun_model::{ExpertKey, LayerId, ModelShape, PartOffsets, Routing, TokenId};
use forerun_storage::{Catalog, Gguf, Resident, ResidentMode};

use super::{Subject, Tolerance};
use crate::support::fixture;
use crate::support::rig::text_rows;

/// A part of which all rows will be accepted.
pub(crate) fn part(sequence: SequenceIdx, past: usize, n_rows: usize) -> Part {
    Part { sequence, past, n_rows, may_reject: false }
}

/// In which order a layer's experts run, and when the shared one does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Order {
    /// The experts' places are turned by so many.
    pub(crate) turn: usize,
    pub(crate) is_reversed: bool,
    /// The shared expert runs after so many others.
    pub(crate) shared_after: usize,
}

pub(crate) struct Bench {
    pub(crate) shape: ModelShape,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) tolerance: Tolerance,
    pub(crate) routing: Routing,
    /// What the last step left.
    pub(crate) output: StepOutput,
    pub(crate) order: Order,
    experts: Experts,
}

impl Bench {
    /// Opens the subject's model, whose bytes `edit` may change first.
    pub(crate) fn new(
        subject: &Subject,
        config: StackConfig,
        taps: Taps,
        edit: impl FnOnce(&Gguf, &mut [u8]),
    ) -> Self {
        let mut bytes = std::fs::read(fixture(subject.model)).unwrap();
        let gguf = Gguf::open_bytes(subject.model, bytes.clone().into()).unwrap();
        edit(&gguf, &mut bytes);
        let bytes = Bytes::from(bytes);
        let gguf = Gguf::open_bytes(subject.model, bytes.clone()).unwrap();
        let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
        let catalog = Catalog::new(&shape, &gguf).unwrap();
        let resident = Resident::load(&shape, &gguf, ResidentMode::Owned).unwrap();
        let weights = bind_weights(&shape, &catalog, &resident).unwrap();
        let arena = Arena::new(shape.moe.n_experts, catalog.slot_bytes(1)).unwrap();
        Self {
            backend: (subject.make)(weights, config, taps),
            tolerance: subject.tolerance,
            routing: Routing::default(),
            output: StepOutput::default(),
            order: Order::default(),
            experts: Experts { bytes, catalog, arena },
            shape,
        }
    }

    pub(crate) fn begin(&mut self, parts: &[Part], rows: &[Row]) {
        self.backend.begin(&Step { parts, rows }).unwrap();
    }

    pub(crate) fn n_layers(&self) -> usize {
        self.shape.n_layers()
    }

    /// Runs some layers of the step that was begun.
    pub(crate) fn layers(&mut self, layers: std::ops::Range<usize>) {
        for layer in layers {
            self.mix_route(layer);
            self.experts_of(layer);
        }
    }

    pub(crate) fn mix_route(&mut self, layer: usize) {
        self.backend.mix_route(layer_id(layer), &mut self.routing).unwrap();
    }

    /// Runs all experts of a layer whose router was asked, and closes it.
    pub(crate) fn experts_of(&mut self, layer: usize) {
        let layer = layer_id(layer);
        let mut wanted: Vec<_> = self.routing.experts().collect();
        let Order { turn, is_reversed, shared_after } = self.order;
        let n = wanted.len();
        wanted.rotate_left(turn % n);
        if is_reversed {
            wanted.reverse();
        }
        for (i, expert) in wanted.into_iter().enumerate() {
            if i == shared_after.min(n - 1) {
                self.backend.run_shared(layer).unwrap();
            }
            let (weights, parts) = self.experts.lease(ExpertKey { layer, expert });
            let uses = self.routing.uses(expert);
            self.backend.run_expert(ExpertJob { layer, weights, parts, uses }).unwrap();
        }
        self.backend.close_layer(layer).unwrap();
    }

    /// The logits of the step whose layers have run.
    pub(crate) fn finish(&mut self) -> Vec<f32> {
        self.backend.finish(&mut self.output).unwrap();
        self.output.logits.clone()
    }

    /// The logits of a step's rows.
    pub(crate) fn run(&mut self, parts: &[Part], rows: &[Row]) -> Vec<f32> {
        self.begin(parts, rows);
        self.layers(0..self.n_layers());
        self.finish()
    }

    /// Reads `tokens` into a sequence that holds `past`; returns the logits of all.
    pub(crate) fn read(&mut self, sequence: SequenceIdx, past: usize, tokens: &[TokenId]) -> Vec<f32> {
        let logits = self.run(&[part(sequence, past, tokens.len())], &text_rows(past, tokens));
        self.backend.accept(0, tokens.len()).unwrap();
        logits
    }

    /// The logits of every token of a text, which is read anew, one token a step.
    pub(crate) fn one_by_one(&mut self, sequence: SequenceIdx, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        tokens.iter().enumerate().map(|(past, token)| self.read(sequence, past, &[*token])).collect()
    }

    /// Tokens that a sequence holds.
    pub(crate) fn held(&self, sequence: SequenceIdx) -> usize {
        self.checkpoint(sequence).len
    }

    /// The states of a sequence as they are now.
    pub(crate) fn checkpoint(&self, sequence: SequenceIdx) -> Checkpoint {
        let mut checkpoint = Checkpoint::default();
        self.backend.save(sequence, &mut checkpoint).unwrap();
        checkpoint
    }

    /// Keys and values of the first `n` tokens of a sequence.
    pub(crate) fn rows(&self, sequence: SequenceIdx, n: usize) -> Vec<u8> {
        let mut rows = Vec::new();
        self.backend.save_rows(sequence, 0..n, &mut rows).unwrap();
        rows
    }

    /// An expert's bytes.
    pub(crate) fn lease(&mut self, key: ExpertKey) -> (ReadLease, PartOffsets) {
        self.experts.lease(key)
    }

    /// `found` is what it should be.
    #[track_caller]
    pub(crate) fn same(&self, found: &[f32], want: &[f32], what: impl std::fmt::Display) {
        self.tolerance.same(found, want, what);
    }
}

pub(crate) fn layer_id(layer: usize) -> LayerId {
    LayerId(u16::try_from(layer).unwrap())
}

/// Every expert of a file in memory.
struct Experts {
    bytes: Bytes,
    catalog: Catalog,
    arena: Arena,
}

impl Experts {
    fn lease(&self, key: ExpertKey) -> (ReadLease, PartOffsets) {
        let record = self.catalog.record(key).unwrap();
        let [gate, up, down] = record.parts.map(|part| {
            let first = usize::try_from(part.offset_bytes).unwrap();
            first..first + part.len_bytes as usize
        });
        // A device keeps the slots that it still reads, so there may be none.
        let mut slots = (0..u32::try_from(self.arena.n_slots()).unwrap()).map(SlotIdx);
        let slot = slots.find_map(|slot| self.arena.try_write(slot)).filter(|_| key.expert.idx() % 2 == 1);
        let Some(mut slot) = slot else {
            let parts = PartOffsets { gate: gate.start, up: up.start, down: down.start };
            return (ReadLease::from(self.bytes.clone()), parts);
        };
        let parts = self.catalog.layout(key.layer).unwrap().offsets();
        for (at, range) in [(parts.gate, gate), (parts.up, up), (parts.down, down)] {
            slot.bytes_mut()[at..at + range.len()].copy_from_slice(&self.bytes[range]);
        }
        (slot.seal(), parts)
    }
}
