//! What a sequence remembers: keys and values, recurrent states, convolution histories.
//!
//! Every recurrent state exists twice. A step reads the committed copy and writes the other; accepting all rows
//! swaps the two, so a step that fails or is abandoned has changed nothing. Accepting fewer rows replays their logged
//! inputs from the committed copy, with the same code and so with the same bits.

use std::io::{self, Read, Write};
use std::ops::Range;

use forerun_model::{LayerKind, ModelShape};

use crate::kv_cache::{KvRows, KvType};

/// A sequence's memory, allocated once.
#[derive(Debug)]
pub struct Sequence {
    /// Tokens accepted.
    pub len: usize,
    /// Which copy of the recurrent states is committed: 0 or 1.
    committed: usize,
    /// One entry per layer.
    layers: Vec<LayerMemory>,
}

/// What one layer remembers.
#[derive(Debug)]
pub enum LayerMemory {
    /// Keys and values, row by row.
    Attention {
        /// Keys after rotation.
        keys: KvRows,
        /// Values.
        values: KvRows,
    },
    /// A recurrent state in two copies.
    DeltaNet(Box<[Recurrent; 2]>, Log),
}

/// State and convolution history of one delta-net layer.
#[derive(Debug)]
pub struct Recurrent {
    /// `[value heads, key_dim, value_dim]`.
    pub state: Vec<f32>,
    /// The last raw projections, `[conv_kernel - 1, channels]`, oldest first.
    pub conv: Vec<f32>,
}

/// Inputs of a step's recurrence, kept when fewer than all rows may be accepted.
#[derive(Debug, Default)]
pub struct Log {
    /// Raw projections, `[rows, channels]`.
    pub projections: Vec<f32>,
    /// Logarithms of the decay, `[rows, value heads]`.
    pub log_decays: Vec<f32>,
    /// Strengths of the correction, `[rows, value heads]`.
    pub betas: Vec<f32>,
}

/// What is kept of a sequence so that it can be cut back to where it was: the states that only go forward. Keys and
/// values aren't part of it, since theirs are rows that can be forgotten.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// Tokens that were held.
    pub len: usize,
    /// The backend's states then, in an order of its own.
    pub values: Vec<f32>,
}

impl Checkpoint {
    /// Bytes that a checkpoint of a model of `shape` takes.
    pub fn bytes(shape: &ModelShape) -> u64 {
        Sequence::state_bytes(shape) / 2
    }
}

impl Log {
    fn new(shape: &ModelShape, rows: usize) -> Self {
        let (channels, heads) =
            shape.delta_net.map_or((0, 0), |net| (net.conv_channels(), net.n_value_heads));
        let room = |width: usize| Vec::with_capacity(rows * width);
        Self { projections: room(channels), log_decays: room(heads), betas: room(heads) }
    }
}

impl Sequence {
    /// An empty sequence with room for `context` tokens, and for the log of steps of up to `log_rows` rows of which fewer
    /// may be accepted.
    pub fn new(shape: &ModelShape, kv: KvType, context: usize, log_rows: usize) -> Self {
        let width = shape.attention.kv_width();
        let layer = |kind: &LayerKind| match kind {
            LayerKind::Attention => LayerMemory::Attention {
                keys: KvRows::new(kv, context, width),
                values: KvRows::new(kv, context, width),
            },
            LayerKind::DeltaNet => {
                let (state_len, conv_len) = Self::state_lens(shape);
                let copy = || Recurrent { state: vec![0.0; state_len], conv: vec![0.0; conv_len] };
                LayerMemory::DeltaNet(Box::new([copy(), copy()]), Log::new(shape, log_rows))
            }
        };
        Self { len: 0, committed: 0, layers: shape.layers.iter().map(layer).collect() }
    }

    /// Bytes of keys and values that [`Self::new`] allocates.
    pub fn kv_bytes(shape: &ModelShape, kv: KvType, context: usize) -> u64 {
        let per_token = 2 * shape.attention.kv_width() * kv.value_bytes();
        ((shape.n_layers_of(LayerKind::Attention) * per_token) as u64).saturating_mul(context as u64)
    }

    /// Bytes of recurrent states that [`Self::new`] allocates.
    pub fn state_bytes(shape: &ModelShape) -> u64 {
        let (state_len, conv_len) = Self::state_lens(shape);
        (shape.n_layers_of(LayerKind::DeltaNet) * 2 * 4 * (state_len + conv_len)) as u64
    }

    /// Bytes of the logs that [`Self::new`] allocates for steps of up to `log_rows` rows.
    pub fn log_bytes(shape: &ModelShape, log_rows: usize) -> u64 {
        let row = shape.delta_net.map_or(0, |net| net.conv_channels() + 2 * net.n_value_heads);
        (shape.n_layers_of(LayerKind::DeltaNet) * log_rows * 4 * row) as u64
    }

    /// Values of a delta-net layer's state and history.
    fn state_lens(shape: &ModelShape) -> (usize, usize) {
        shape.delta_net.map_or((0, 0), |net| (net.state_len(), net.conv_len()))
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.len = 0;
        for layer in &mut self.layers {
            if let LayerMemory::DeltaNet(copies, _) = layer {
                copies[self.committed].state.fill(0.0);
                copies[self.committed].conv.fill(0.0);
            }
        }
    }

    /// Copies the committed states into `checkpoint`.
    pub fn save(&self, checkpoint: &mut Checkpoint) {
        checkpoint.len = self.len;
        checkpoint.values.clear();
        // At once, so that it takes no more than it holds.
        checkpoint.values.reserve_exact(self.n_state_values());
        for layer in &self.layers {
            if let LayerMemory::DeltaNet(copies, _) = layer {
                checkpoint.values.extend_from_slice(&copies[self.committed].state);
                checkpoint.values.extend_from_slice(&copies[self.committed].conv);
            }
        }
    }

    /// Writes the keys and values of `rows` to `out`: token by token, of each token layer by layer in ascending order, of
    /// each layer the keys, then the values, little-endian in the cache's own type. So the bytes of the first tokens are the
    /// first bytes; a token takes [`Self::kv_bytes`] of a context of one.
    ///
    /// # Errors
    /// What `out` says.
    pub fn save_rows(&self, rows: Range<usize>, out: &mut dyn Write) -> io::Result<()> {
        let mut buffer = vec![0; self.row_bytes()];
        for row in rows {
            let mut at = 0;
            for layer in &self.layers {
                if let LayerMemory::Attention { keys, values } = layer {
                    for kept in [keys, values] {
                        kept.save(row, &mut buffer[at..at + kept.row_bytes()]);
                        at += kept.row_bytes();
                    }
                }
            }
            out.write_all(&buffer)?;
        }
        Ok(())
    }

    /// Holds what another sequence of this shape held when `checkpoint` was saved; its keys and values come from `rows`, in
    /// the order of [`Self::save_rows`]. The checkpoint must have as many values as this shape has, and no more tokens than
    /// there is room for.
    ///
    /// # Errors
    /// What `rows` says, also when it ends too early; then nothing is held.
    pub fn load(&mut self, checkpoint: &Checkpoint, rows: &mut dyn Read) -> io::Result<()> {
        self.clear();
        let mut buffer = vec![0; self.row_bytes()];
        for row in 0..checkpoint.len {
            // Nothing is held before the last row is there.
            rows.read_exact(&mut buffer)?;
            let mut at = 0;
            for layer in &mut self.layers {
                if let LayerMemory::Attention { keys, values } = layer {
                    for kept in [keys, values] {
                        let len = kept.row_bytes();
                        kept.load(row, &buffer[at..at + len]);
                        at += len;
                    }
                }
            }
        }
        self.len = checkpoint.len;
        let restored = self.restore(checkpoint);
        debug_assert!(restored, "the caller compared the number of values");
        Ok(())
    }

    /// Bytes of one token's keys and values in all layers.
    fn row_bytes(&self) -> usize {
        let of = |layer: &LayerMemory| match layer {
            LayerMemory::Attention { keys, values } => keys.row_bytes() + values.row_bytes(),
            LayerMemory::DeltaNet(..) => 0,
        };
        self.layers.iter().map(of).sum()
    }

    /// Values of all recurrent states.
    pub(crate) fn n_state_values(&self) -> usize {
        let of = |layer: &LayerMemory| match layer {
            LayerMemory::Attention { .. } => 0,
            LayerMemory::DeltaNet(copies, _) => copies[0].state.len() + copies[0].conv.len(),
        };
        self.layers.iter().map(of).sum()
    }

    /// Goes back to where `checkpoint` was saved; `false`, and nothing has changed, when it isn't one of this sequence's.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> bool {
        if checkpoint.len > self.len || checkpoint.values.len() != self.n_state_values() {
            return false;
        }
        self.len = checkpoint.len;
        let mut rest = &checkpoint.values[..];
        for layer in &mut self.layers {
            if let LayerMemory::DeltaNet(copies, _) = layer {
                let Recurrent { state, conv } = &mut copies[self.committed];
                for values in [state, conv] {
                    let (saved, others) = rest.split_at(values.len());
                    values.copy_from_slice(saved);
                    rest = others;
                }
            }
        }
        true
    }

    /// The memory of layer `layer` and which copy of its state is committed.
    pub fn layer(&mut self, layer: usize) -> (&mut LayerMemory, usize) {
        (&mut self.layers[layer], self.committed)
    }

    /// The committed memory of layer `layer`.
    pub fn committed(&self, layer: usize) -> Committed<'_> {
        match &self.layers[layer] {
            LayerMemory::Attention { keys, values } => Committed::Attention { keys, values },
            LayerMemory::DeltaNet(copies, _) => Committed::DeltaNet(&copies[self.committed]),
        }
    }

    /// Adds `n_rows` tokens whose states the step left in the other copies.
    pub fn commit(&mut self, n_rows: usize) {
        self.len += n_rows;
        self.committed = 1 - self.committed;
    }
}

/// What [`Sequence::committed`] shows.
#[derive(Debug)]
pub enum Committed<'a> {
    /// Keys and values.
    Attention {
        /// Keys after rotation.
        keys: &'a KvRows,
        /// Values.
        values: &'a KvRows,
    },
    /// State and convolution history.
    DeltaNet(&'a Recurrent),
}
