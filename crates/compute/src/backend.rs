//! The trait that every device implements, and what travels through it.

use std::io::{Read, Write};
use std::ops::Range;

use forerun_arena::ReadLease;
use forerun_model::{LayerId, PartOffsets, Position, Routing, Stage, TokenId, Use};

use crate::ComputeError;
use crate::sequence::Checkpoint;

/// One of the sequences (token histories with their caches) that a backend keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequenceIdx(pub usize);

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token.
    pub token: TokenId,
    /// Its rotary position.
    pub position: Position,
    /// Whether its logits are wanted.
    pub wants_logits: bool,
}

/// Consecutive tokens of one sequence in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The sequence.
    pub sequence: SequenceIdx,
    /// Tokens that the sequence holds already. Zero starts it anew: what it held is forgotten when the step begins,
    /// whether or not the step is ever accepted. Any other number must be what was accepted.
    pub past: usize,
    /// How many tokens, at least one.
    pub n_rows: usize,
    /// Whether fewer than all rows may be accepted: costs a log of the recurrent layers' inputs.
    pub may_reject: bool,
}

/// What one pass through the layers works on: consecutive tokens of one or several sequences.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Whose tokens they are, no sequence twice; at least one part.
    pub parts: &'a [Part],
    /// The tokens, part after part.
    pub rows: &'a [Row],
}

impl<'a> Step<'a> {
    /// A step of one part.
    pub fn of(part: &'a Part, rows: &'a [Row]) -> Self {
        Self { parts: std::slice::from_ref(part), rows }
    }
}

/// Router probabilities of one layer, `[n_rows, n_experts]`, as a guess.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// The layer whose router was asked.
    pub layer: LayerId,
    /// Experts per row.
    pub n_experts: usize,
    /// Probabilities, row-major.
    pub probabilities: Vec<f32>,
}

/// One expert and the rows that want it.
#[derive(Debug)]
pub struct ExpertJob<'a> {
    /// The layer.
    pub layer: LayerId,
    /// The expert's bytes; a device may keep a clone until it is done.
    pub weights: ReadLease,
    /// Where its matrices begin.
    pub parts: PartOffsets,
    /// The rows, by row; all of one expert.
    pub uses: &'a [Use],
}

/// Which of a model's states a step brings out, of every row: what drafters read. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taps {
    /// Layers whose outputs (the residual stream after them) are wanted, ascending.
    pub layers: Vec<LayerId>,
    /// Whether the states after the last norm are wanted.
    pub normed: bool,
}

/// What a step leaves: logits `[n_wanted, n_vocab]` of the rows that wanted them, in row order, and what is tapped of
/// every row.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// Entries per row.
    pub n_vocab: usize,
    /// Logits, row-major.
    pub logits: Vec<f32>,
    /// Outputs of the tapped layers, `[rows, layers, hidden]`; empty when there are none.
    pub taps: Vec<f32>,
    /// States after the last norm, `[rows, hidden]`; empty when they aren't tapped.
    pub normed: Vec<f32>,
}

impl StepOutput {
    /// The logits of the `i`-th row that wanted them.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.logits[i * self.n_vocab..(i + 1) * self.n_vocab]
    }
}

/// A device that computes a model's layers.
///
/// One step is: `begin`; for each layer `mix_route`, then `run_shared` and one `run_expert` per distinct expert of
/// the routing in any order, then `close_layer`; after the last layer `finish`; then `accept`. `scores` may be asked
/// at any time between `begin` and the last `mix_route`. The bits of a row's results depend on nothing but the
/// sequence's tokens: not on the other rows of the step, the order of experts, or the number of threads.
///
/// Between two layers a long step may be put [aside](Self::exchange) while another one runs from its `begin` to its
/// `accept`s.
///
/// A step that fails or is abandoned changes nothing: the next `begin` starts from what was last accepted. Only a step
/// from past 0 forgets what the sequence held as soon as it begins.
pub trait Backend {
    /// Takes the rows of a step and embeds them.
    ///
    /// # Errors
    /// [`ComputeError`] for a token outside the vocabulary, a full context, too many rows, a `past` that isn't
    /// what was accepted, or a sequence that is in two parts or in the step that was put aside.
    fn begin(&mut self, step: &Step<'_>) -> Result<(), ComputeError>;

    /// Runs the layer's mixer and its router; fills `routing` and groups it.
    ///
    /// # Errors
    /// [`ComputeError::NotFinite`] when the router's input isn't.
    fn mix_route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError>;

    /// Asks the router of `layer` about the residual stream as it is now. Never changes a result.
    ///
    /// # Errors
    /// [`ComputeError`] when the device fails.
    fn scores(&mut self, stage: Stage, layer: LayerId, scores: &mut Scores) -> Result<(), ComputeError>;

    /// Runs the layer's shared expert on every row.
    ///
    /// # Errors
    /// [`ComputeError`] when the device fails.
    fn run_shared(&mut self, layer: LayerId) -> Result<(), ComputeError>;

    /// Runs one routed expert on the rows that want it and keeps the results by row and rank.
    ///
    /// # Errors
    /// [`ComputeError`] when the device fails or the slot is smaller than the layout says.
    fn run_expert(&mut self, job: ExpertJob<'_>) -> Result<(), ComputeError>;

    /// Adds the experts' results in rank order, then the shared expert's, to the residual stream.
    ///
    /// # Errors
    /// [`ComputeError`] when the device fails.
    fn close_layer(&mut self, layer: LayerId) -> Result<(), ComputeError>;

    /// The last norm and the head, for the rows that want logits.
    ///
    /// # Errors
    /// [`ComputeError::NotFinite`] when a logit isn't.
    fn finish(&mut self, output: &mut StepOutput) -> Result<(), ComputeError>;

    /// Commits the first `n_rows` rows of the step's part `part` to its sequence's caches and states and forgets the
    /// part's others. Each part is accepted once, in any order; one that isn't before the next `begin` is forgotten.
    ///
    /// # Errors
    /// [`ComputeError`] when there is no finished step with such a part, it was accepted, or fewer than all rows are
    /// accepted without `may_reject`.
    fn accept(&mut self, part: usize, n_rows: usize) -> Result<(), ComputeError>;

    /// Puts the step under way aside, between two of its layers; or, if one was put aside before, takes that one up again and
    /// forgets what wasn't accepted of the one that ran meanwhile. A device without buffers for a second step refuses its `begin`.
    fn exchange(&mut self);

    /// Copies what can't be cut back of what was accepted (recurrent states) into `checkpoint`, in place of what it held.
    ///
    /// # Errors
    /// [`ComputeError::Sequence`] when there is no such sequence.
    fn save(&self, sequence: SequenceIdx, checkpoint: &mut Checkpoint) -> Result<(), ComputeError>;

    /// Cuts a sequence back to where `checkpoint` was saved; a step under way that has rows of it is abandoned. What was accepted until then
    /// must still be what the sequence begins with.
    ///
    /// # Errors
    /// [`ComputeError`] when there is no such sequence, it holds fewer tokens, or the checkpoint is another model's.
    fn restore(&mut self, sequence: SequenceIdx, checkpoint: &Checkpoint) -> Result<(), ComputeError>;

    /// Writes what is remembered of each of the accepted tokens `rows` (keys and values) to `out`, token by token, each
    /// with as many bytes, in an order of its own. Changes nothing; may be asked between two layers of any step.
    ///
    /// # Errors
    /// [`ComputeError`] when there is no such sequence, it holds fewer tokens, or `out` fails.
    fn save_rows(
        &self,
        sequence: SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError>;

    /// Makes a sequence hold what it, another, or one of another process with the same model and the same arithmetic held
    /// when `checkpoint` was saved: that many tokens, whose [rows](Self::save_rows) are read from `rows`, no byte more.
    /// What it held before is forgotten. Steps of other sequences go on undisturbed, between any two of their layers; one that
    /// has rows of this sequence alone is abandoned, and the rows of one that is finished can no longer be accepted.
    ///
    /// # Errors
    /// [`ComputeError`] when there is no such sequence, it shares a step under way with others, or the checkpoint doesn't
    /// fit: then nothing has changed; or when `rows` fails or ends too early: then the sequence holds nothing.
    fn load(
        &mut self,
        sequence: SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError>;
}
