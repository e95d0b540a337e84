//! What a sequence holds leaves the engine, and comes back.

use std::io::{self, Read, Write};

use forerun_compute::kernels::best;
use forerun_compute::sequence::Sequence;
use forerun_compute::{Checkpoint, SequenceIdx};
use forerun_model::{ModelShape, TokenId};
use forerun_storage::{Gguf, repack};
use sha2::{Digest, Sha256};

use super::Engine;
use crate::DecodeError;
use crate::config::{BackendChoice, EngineConfig};
use crate::telemetry::Decision;

/// What is saved of a sequence, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedShape {
    /// Bytes of one token's keys and values.
    pub(crate) row_bytes: usize,
    /// Values of the recurrent states. With none, a sequence can be cut back to any of its tokens.
    pub(crate) state_values: usize,
    /// Most tokens.
    pub(crate) context: usize,
    /// Stands for the model, the type of keys and values, and the arithmetic; `None` when nothing is to be saved, or the
    /// model can't be named.
    pub(crate) key: Option<[u8; 32]>,
}

impl SavedShape {
    /// That of a sequence of the model in `gguf`, opened as `config` says.
    pub(super) fn new(
        config: &EngineConfig,
        (shape, context): (&ModelShape, usize),
        gguf: &Gguf,
        decisions: &mut Vec<Decision>,
    ) -> Self {
        let kv = config.backend.kv_type();
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let key = (config.prefix_bytes > 0).then(|| repack::identity(gguf)).and_then(|identity| {
            let unknown = |error| {
                let reason = format!("the model's file can't be read to name it: {error}");
                decisions.push(Decision::new("prefixes on disk", "none", reason));
            };
            let identity = identity.map_err(unknown).ok()?;
            let arithmetic = match config.backend {
                BackendChoice::Cpu => best().name().to_owned(),
                BackendChoice::Reference(rounding) => format!("reference {rounding:?}"),
                BackendChoice::Candle(device) => format!("candle {device} {}", best().name()),
            };
            let arithmetic = format!("{}\0{kv:?}\0{arithmetic}", env!("CARGO_PKG_VERSION"));
            Some(Sha256::new().chain_update(identity).chain_update(arithmetic).finalize().into())
        });
        Self {
            row_bytes: size(Sequence::kv_bytes(shape, kv, 1)),
            state_values: size(Checkpoint::bytes(shape)) / size_of::<f32>(),
            context,
            key,
        }
    }
}

impl Engine {
    /// What is saved of a sequence.
    pub(crate) fn saved_shape(&self) -> SavedShape {
        self.saved
    }

    /// Copies the states of a sequence as they are now into `checkpoint`.
    ///
    /// # Errors
    /// [`DecodeError`] when the device fails.
    pub(crate) fn save_state(
        &self,
        sequence: SequenceIdx,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), DecodeError> {
        Ok(self.backend.save(sequence, checkpoint)?)
    }

    /// Writes keys and values of the first `n` tokens of a sequence to `out`.
    ///
    /// # Errors
    /// What `out` says, or the device.
    pub(crate) fn save_rows(&self, sequence: SequenceIdx, n: usize, out: &mut dyn Write) -> io::Result<()> {
        self.backend.save_rows(sequence, 0..n, out).map_err(io::Error::other)
    }

    /// The checkpoint before `len` tokens at which a conversation most likely goes on otherwise: the end of its last prompt.
    pub(crate) fn turning_point(&self, sequence: SequenceIdx, len: usize) -> Option<&Checkpoint> {
        self.sequences[sequence.0].checkpoints.pinned_before(len)
    }

    /// Makes a sequence hold `tokens`, which `checkpoint` and `rows` are of; whatever it held is forgotten, also when that
    /// fails.
    ///
    /// # Errors
    /// [`DecodeError`] when the two don't fit, or `rows` fails: the sequence is then to be started anew.
    pub(crate) fn load(
        &mut self,
        sequence: SequenceIdx,
        tokens: &[TokenId],
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), DecodeError> {
        let loaded = self.backend.load(sequence, checkpoint, rows);
        let held = self.sequence(sequence);
        held.epoch += 1;
        held.checkpoints.forget_after(0);
        if let Some(drafting) = &mut held.drafting {
            drafting.resume(if loaded.is_ok() { tokens } else { &[] });
        }
        loaded?;
        held.checkpoints.pin(checkpoint.len);
        if let Some(Checkpoint { mut values, .. }) = held.checkpoints.room(checkpoint.len) {
            values.clear();
            values.reserve_exact(checkpoint.values.len());
            values.extend_from_slice(&checkpoint.values);
            held.checkpoints.keep(Checkpoint { len: checkpoint.len, values });
        }
        Ok(())
    }
}
