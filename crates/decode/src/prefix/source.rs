//! What is kept of a conversation, wherever it is, as it is written elsewhere.

use std::io::{self, Read, Write};

use forerun_compute::{Checkpoint, SequenceIdx};
use forerun_model::TokenId;

use crate::engine::Engine;

/// Values that are converted at once.
const PIECE_VALUES: usize = 4096;

/// A conversation whose states can be written out.
pub(super) trait Source {
    /// Its tokens.
    fn tokens(&self) -> &[TokenId];

    /// After how many tokens there is a state, ascending; the last is all of them. None where a model has no recurrent
    /// states.
    fn lens(&self) -> Vec<usize>;

    /// Writes the values of the `i`-th state, little-endian.
    ///
    /// # Errors
    /// What `out` says.
    fn write_state(&self, i: usize, out: &mut dyn Write) -> io::Result<()>;

    /// Writes the rows of all tokens.
    ///
    /// # Errors
    /// What `out` says.
    fn write_rows(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// A conversation in a sequence of an engine.
pub(super) struct InSequence<'a> {
    engine: &'a Engine,
    sequence: SequenceIdx,
    tokens: &'a [TokenId],
    states: Vec<&'a Checkpoint>,
}

impl<'a> InSequence<'a> {
    /// The conversation of `tokens` that a sequence holds, whose states at its end are `end`.
    pub(super) fn new(
        engine: &'a Engine,
        sequence: SequenceIdx,
        tokens: &'a [TokenId],
        end: &'a Checkpoint,
    ) -> Self {
        let turning_point = engine.turning_point(sequence, tokens.len());
        let states = turning_point.into_iter().chain([end]);
        // Without recurrent states there is nothing to go back to, and no need.
        let states = states.filter(|state| !state.values.is_empty()).collect();
        Self { engine, sequence, tokens, states }
    }
}

impl Source for InSequence<'_> {
    fn tokens(&self) -> &[TokenId] {
        self.tokens
    }

    fn lens(&self) -> Vec<usize> {
        self.states.iter().map(|state| state.len).collect()
    }

    fn write_state(&self, i: usize, out: &mut dyn Write) -> io::Result<()> {
        write_values(&self.states[i].values, out)
    }

    fn write_rows(&self, out: &mut dyn Write) -> io::Result<()> {
        self.engine.save_rows(self.sequence, self.tokens.len(), out)
    }
}

/// Writes `values`, little-endian.
fn write_values(values: &[f32], out: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_VALUES * size_of::<f32>()];
    for values in values.chunks(PIECE_VALUES) {
        let bytes = &mut buffer[..size_of_val(values)];
        let (pieces, _) = bytes.as_chunks_mut();
        pieces.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
        out.write_all(bytes)?;
    }
    Ok(())
}

/// Reads `n` values in place of those that `values` holds.
///
/// # Errors
/// What `bytes` says, also when it ends too early.
pub(super) fn read_values(bytes: &mut dyn Read, n: usize, values: &mut Vec<f32>) -> io::Result<()> {
    values.clear();
    // At once, so that it takes no more than it holds.
    values.reserve_exact(n);
    let mut buffer = vec![0; PIECE_VALUES * size_of::<f32>()];
    while values.len() < n {
        let piece = &mut buffer[..PIECE_VALUES.min(n - values.len()) * size_of::<f32>()];
        bytes.read_exact(piece)?;
        let (pieces, _) = piece.as_chunks();
        values.extend(pieces.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    Ok(())
}

/// How many tokens the two begin with alike.
pub(super) fn alike(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// How many of `common` tokens can be gone on from, with states after `lens` tokens; a model that `is_recurrent` needs one.
pub(super) fn usable(common: usize, lens: impl Iterator<Item = usize>, is_recurrent: bool) -> usize {
    if is_recurrent { lens.filter(|len| *len <= common).max().unwrap_or(0) } else { common }
}
