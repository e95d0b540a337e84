//! A compute backend that checks every byte it is handed and every call it gets.
//!
//! Its arithmetic is small but honest: results are `f32` sums whose bits depend on the expert's bytes, the weights,
//! the ranks and the order of addition, and on all tokens before through a recurrent state per layer. So equal logits
//! mean that the right bytes met the right rows in the right order. Its router hashes the token history.

mod lane;

use std::io::{Read, Write};
use std::ops::Range;

use forerun_compute::{
    Backend, Checkpoint, ComputeError, ExpertJob, Part, Scores, SequenceIdx, Step, StepOutput,
};
use forerun_model::{ExpertId, ExpertKey, LayerId, PartOffsets, Routing, Stage};

use crate::ToyModel;
use crate::rng::{Rng, hash};
use crate::toy_file::Part as Matrix;
use lane::{History, Lane, PartState, Phase, RowState, Vector, WIDTH};

/// The toy. Panics where a caller breaks the contract of [`Backend`], and at the first byte that isn't the expert's.
#[derive(Clone, Debug)]
pub struct ToyBackend {
    model: ToyModel,
    sequences: Vec<History>,
    /// Of each sequence, the hash of its history after each token: what it has of rows.
    rows: Vec<Vec<u64>>,
    lane: Lane,
    aside: Lane,
}

impl ToyBackend {
    /// A backend for `n_sequences` sequences.
    pub fn new(model: ToyModel, n_sequences: usize) -> Self {
        Self {
            model,
            sequences: vec![History::default(); n_sequences],
            rows: vec![Vec::new(); n_sequences],
            lane: Lane::new(),
            aside: Lane::new(),
        }
    }

    /// The experts that the router chooses after a history with that hash. Half of the choices come from a few
    /// popular experts, so that a cache has something to keep.
    fn route(&self, layer: LayerId, history: u64) -> Vec<(ExpertId, f32)> {
        let mut rng = Rng::new(hash(&[history, layer.0.into(), 1]));
        let n_experts = u64::from(self.model.n_experts);
        let n_popular = (n_experts / 4).max(1);
        let mut chosen: Vec<ExpertId> = Vec::with_capacity(self.model.top_k);
        while chosen.len() < self.model.top_k {
            let range = if rng.happens(500) { n_popular } else { n_experts };
            let expert = ExpertId(u16::try_from(rng.below(range)).unwrap_or(0));
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen.into_iter().map(|expert| (expert, unit(rng.next_u64()) + 1.5)).collect()
    }

    /// Compares the slot with what the file has, byte by byte; returns numbers that depend on all of them.
    fn check_bytes(&self, key: ExpertKey, slot: &[u8], parts: PartOffsets) -> Vector {
        let mut digest = [0.0; WIDTH];
        for (part, start) in [(Matrix::Gate, parts.gate), (Matrix::Up, parts.up), (Matrix::Down, parts.down)]
        {
            let want = self.model.part_bytes(key, part);
            let found = &slot[start..start + want.len()];
            if let Some(i) = (0..want.len()).find(|&i| found[i] != want[i]) {
                let (found, want) = (found[i], want[i]);
                panic!("expert {key}: byte {i} of {part:?}, at {start} of its slot, is {found}, not {want}");
            }
            for (i, &byte) in found.iter().enumerate() {
                digest[i % WIDTH] = digest[i % WIDTH] * 0.97 + f32::from(byte) * 0.001;
            }
        }
        digest
    }
}

impl Backend for ToyBackend {
    fn begin(&mut self, step: &Step<'_>) -> Result<(), ComputeError> {
        self.lane = Lane::new();
        let mut rows = step.rows;
        for &part in step.parts {
            let SequenceIdx(sequence) = part.sequence;
            if self.aside.parts.iter().any(|aside| aside.part.sequence == part.sequence) {
                return Err(ComputeError::Part { part: 0, rule: "its sequence is in the step put aside" });
            }
            let n_sequences = self.sequences.len();
            let held = self.sequences.get(sequence);
            let mut after = held.ok_or(ComputeError::Sequence { sequence, n_sequences })?.clone();
            if part.past == 0 {
                let states = vec![[0.0; WIDTH]; self.model.n_layers.into()];
                after = History { states, ..History::default() };
            }
            if part.past != after.n_tokens {
                return Err(ComputeError::Past { past: part.past, held: after.n_tokens });
            }
            if part.n_rows == 0 || part.n_rows > rows.len() {
                return Err(ComputeError::Rows { rows: part.n_rows, rows_max: rows.len() });
            }
            let (first, states) = (self.lane.rows.len(), after.states.clone());
            self.lane.parts.push(PartState { part, first, states, is_accepted: false });
            let (own, others) = rows.split_at(part.n_rows);
            rows = others;
            for row in own {
                if row.token.idx() >= self.model.n_vocab {
                    return Err(ComputeError::Token { token: row.token.0, n_vocab: self.model.n_vocab });
                }
                after.n_tokens += 1;
                after.hash = hash(&[after.hash, row.token.0.into()]);
                let x = vector(hash(&[self.model.seed, row.token.0.into(), 2]));
                let (wants_logits, after) = (row.wants_logits, after.clone());
                self.lane.rows.push(RowState { wants_logits, x, after, results: vec![] });
            }
        }
        self.lane.phase = Phase::Layer(0);
        Ok(())
    }

    fn mix_route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        assert_eq!(
            self.lane.phase,
            Phase::Layer(layer.0),
            "layers run in order, each closed before the next"
        );
        routing.reset(self.model.top_k);
        for part in 0..self.lane.parts.len() {
            let PartState { part: Part { n_rows, .. }, first, ref states, .. } = self.lane.parts[part];
            let mut state = states[layer.idx()];
            for row in first..first + n_rows {
                let chosen = self.route(layer, self.lane.rows[row].after.hash);
                routing.push_row(&chosen);
                let row = &mut self.lane.rows[row];
                for (s, x) in state.iter_mut().zip(&mut row.x) {
                    *s = *s * 0.9 + *x * 0.3;
                    *x += *s * 0.5;
                }
                row.after.states[layer.idx()] = state;
                row.results = vec![None; self.model.top_k];
            }
        }
        routing.group();
        self.lane.missing = routing.experts().collect();
        self.lane.shared_ran = false;
        self.lane.phase = Phase::Experts(layer.0);
        Ok(())
    }

    fn scores(&mut self, _stage: Stage, layer: LayerId, scores: &mut Scores) -> Result<(), ComputeError> {
        let n_experts = usize::from(self.model.n_experts);
        scores.layer = layer;
        scores.n_experts = n_experts;
        scores.probabilities.clear();
        scores.probabilities.resize(n_experts * self.lane.rows.len(), 0.0);
        for (row, probabilities) in self.lane.rows.iter().zip(scores.probabilities.chunks_mut(n_experts)) {
            for (expert, weight) in self.route(layer, row.after.hash) {
                probabilities[expert.idx()] = weight / 16.0;
            }
        }
        Ok(())
    }

    fn run_shared(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        assert_eq!(self.lane.phase, Phase::Experts(layer.0), "the shared expert runs in its layer");
        assert!(!self.lane.shared_ran, "the shared expert runs once");
        self.lane.shared_ran = true;
        Ok(())
    }

    fn run_expert(&mut self, job: ExpertJob<'_>) -> Result<(), ComputeError> {
        assert_eq!(self.lane.phase, Phase::Experts(job.layer.0), "experts run in their layer");
        let expert = job.uses.first().expect("an expert runs for the rows that want it").expert;
        assert!(self.lane.missing.remove(&expert), "expert {expert} isn't wanted, or ran before");
        let key = ExpertKey { layer: job.layer, expert };
        let digest = self.check_bytes(key, job.weights.bytes(), job.parts);
        for u in job.uses {
            assert_eq!(u.expert, expert, "a job is for one expert");
            let row = &mut self.lane.rows[u.row as usize];
            let result = std::array::from_fn(|i| {
                u.weight * (row.x[(i + 1) % WIDTH] * digest[i] - digest[WIDTH - 1 - i])
            });
            let before = row.results[u.rank as usize].replace(result);
            assert!(before.is_none(), "rank {} of row {} was computed twice", u.rank, u.row);
        }
        Ok(())
    }

    fn close_layer(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        assert_eq!(self.lane.phase, Phase::Experts(layer.0), "a layer closes once, after it was mixed");
        assert!(
            self.lane.shared_ran && self.lane.missing.is_empty(),
            "{:?} of {layer} never ran",
            self.lane.missing
        );
        for row in &mut self.lane.rows {
            let shared: Vector = std::array::from_fn(|i| row.x[i] * row.x[WIDTH - 1 - i]);
            let mut sum = [0.0f32; WIDTH];
            for (i, result) in row.results.drain(..).enumerate() {
                let result =
                    result.unwrap_or_else(|| panic!("rank {i} of a row of {layer} was never computed"));
                sum = std::array::from_fn(|i| sum[i] + result[i]);
            }
            // Squashed, so that sums stay finite however many layers there are.
            row.x = std::array::from_fn(|i| {
                let y = row.x[i] + sum[i] + shared[i];
                y / (1.0 + y.abs())
            });
        }
        self.lane.phase =
            if layer.0 + 1 == self.model.n_layers { Phase::Finished } else { Phase::Layer(layer.0 + 1) };
        Ok(())
    }

    fn finish(&mut self, output: &mut StepOutput) -> Result<(), ComputeError> {
        assert_eq!(self.lane.phase, Phase::Finished, "logits come after the last layer");
        output.n_vocab = self.model.n_vocab;
        output.logits.clear();
        for row in self.lane.rows.iter().filter(|row| row.wants_logits) {
            for token in 0..self.model.n_vocab {
                let head = vector(hash(&[self.model.seed, token as u64, 3]));
                output.logits.push(head.iter().zip(&row.x).fold(0.0, |sum, (h, x)| sum + h * x));
            }
        }
        Ok(())
    }

    fn accept(&mut self, part: usize, n_rows: usize) -> Result<(), ComputeError> {
        let (phase, n_parts) = (self.lane.phase, self.lane.parts.len());
        let refused = |rows, rule| Err(ComputeError::Accept { accepted: n_rows, rows, rule });
        let Some(accepted) = self.lane.parts.get_mut(part) else {
            return refused(n_parts, "the step must have such a part");
        };
        let rows = accepted.part.n_rows;
        if phase != Phase::Finished || accepted.is_accepted {
            return refused(rows, "a step must be finished, and each part is accepted once");
        }
        if n_rows > rows || (n_rows < rows && !accepted.part.may_reject) {
            return refused(rows, "all rows are accepted unless the step said that it may reject");
        }
        if n_rows > 0 {
            let new = &self.lane.rows[accepted.first..accepted.first + n_rows];
            let SequenceIdx(sequence) = accepted.part.sequence;
            self.sequences[sequence] = new[n_rows - 1].after.clone();
            self.rows[sequence].truncate(accepted.part.past);
            self.rows[sequence].extend(new.iter().map(|row| row.after.hash));
        }
        accepted.is_accepted = true;
        Ok(())
    }

    fn exchange(&mut self) {
        if self.aside.phase != Phase::Idle {
            self.lane = Lane::new();
        }
        std::mem::swap(&mut self.lane, &mut self.aside);
    }

    /// The checkpoint's values are the states, and before them the bits of the hash.
    fn save(&self, sequence: SequenceIdx, checkpoint: &mut Checkpoint) -> Result<(), ComputeError> {
        let n_sequences = self.sequences.len();
        let held = self.sequences.get(sequence.0);
        let held = held.ok_or(ComputeError::Sequence { sequence: sequence.0, n_sequences })?;
        checkpoint.len = held.n_tokens;
        checkpoint.values.clear();
        for half in [held.hash >> 32, held.hash & u64::from(u32::MAX)] {
            checkpoint.values.push(f32::from_bits(u32::try_from(half).unwrap_or(0)));
        }
        checkpoint.values.extend(held.states.iter().flatten());
        Ok(())
    }

    fn restore(&mut self, sequence: SequenceIdx, checkpoint: &Checkpoint) -> Result<(), ComputeError> {
        let n_sequences = self.sequences.len();
        let held = self.sequences.get_mut(sequence.0);
        let held = held.ok_or(ComputeError::Sequence { sequence: sequence.0, n_sequences })?;
        if self.lane.parts.iter().any(|part| part.part.sequence == sequence) {
            self.lane.phase = Phase::Idle;
        }
        let refused = ComputeError::Checkpoint { checkpoint: checkpoint.len, held: held.n_tokens };
        if checkpoint.len > held.n_tokens {
            return Err(refused);
        }
        *held = History::of(checkpoint, self.model.n_layers).ok_or(refused)?;
        self.rows[sequence.0].truncate(checkpoint.len);
        Ok(())
    }

    /// A row is the hash after its token.
    fn save_rows(
        &self,
        SequenceIdx(sequence): SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError> {
        let n_sequences = self.sequences.len();
        let held = self.rows.get(sequence).ok_or(ComputeError::Sequence { sequence, n_sequences })?;
        let refused = ComputeError::SavedRows { first: rows.start, end: rows.end, held: held.len() };
        for row in held.get(rows).ok_or(refused)? {
            out.write_all(&row.to_le_bytes()).map_err(|source| ComputeError::SavedBytes { source })?;
        }
        Ok(())
    }

    fn load(
        &mut self,
        SequenceIdx(sequence): SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError> {
        let n_sequences = self.sequences.len();
        let held =
            self.sequences.get_mut(sequence).ok_or(ComputeError::Sequence { sequence, n_sequences })?;
        let need = 2 + usize::from(self.model.n_layers) * WIDTH;
        let refused = ComputeError::SavedState { found: checkpoint.values.len(), need };
        let loaded = History::of(checkpoint, self.model.n_layers).ok_or(refused)?;
        self.lane.check_let_go(sequence)?;
        self.aside.check_let_go(sequence)?;
        self.lane.let_go(sequence);
        self.aside.let_go(sequence);
        *held = History::default();
        let own = &mut self.rows[sequence];
        own.clear();
        let mut row = [0; 8];
        for _ in 0..checkpoint.len {
            rows.read_exact(&mut row).map_err(|source| ComputeError::SavedBytes { source })?;
            own.push(u64::from_le_bytes(row));
        }
        assert_eq!(
            own.last().copied().unwrap_or(0),
            loaded.hash,
            "rows and state of one sequence belong together"
        );
        *held = loaded;
        Ok(())
    }
}

/// A number in -1..1.
fn unit(bits: u64) -> f32 {
    let top = i16::from_le_bytes([bits.to_le_bytes()[6], bits.to_le_bytes()[7]]);
    f32::from(top) / 32_768.0
}

fn vector(seed: u64) -> Vector {
    let mut rng = Rng::new(seed);
    std::array::from_fn(|_| unit(rng.next_u64()))
}
