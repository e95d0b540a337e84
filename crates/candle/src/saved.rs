//! What a sequence holds leaves the device, and comes back.

use std::io::{self, Read, Write};
use std::ops::Range;

use candle_core::{DType, Tensor};
use forerun_compute::{Checkpoint, ComputeError};
use half::f16;

use crate::device::{Machine, read};
use crate::error::Failure;
use crate::state::{Memory, Recurrent, Sequence};

/// Tokens whose keys and values are moved at once.
const TOKENS: usize = 64;

impl Sequence {
    /// Copies the recurrent states into `checkpoint`: layer by layer, the state, then the convolution's history.
    pub(crate) fn save(&self, checkpoint: &mut Checkpoint) -> Result<(), Failure> {
        checkpoint.len = self.len;
        checkpoint.values.clear();
        checkpoint.values.reserve_exact(self.n_state_values());
        for kept in self.recurrent() {
            checkpoint.values.extend(read(&kept.state)?);
            checkpoint.values.extend(read(&kept.conv)?);
        }
        Ok(())
    }

    /// The states that `checkpoint` holds, one per layer; it has as many values as they need.
    fn states(&self, checkpoint: &Checkpoint, machine: &Machine) -> Result<Vec<Option<Recurrent>>, Failure> {
        let mut rest = &checkpoint.values[..];
        let mut next = |like: &Tensor| -> Result<Tensor, Failure> {
            let (values, others) = rest.split_at(like.elem_count());
            rest = others;
            Ok(Tensor::from_slice(values, like.shape(), &machine.device)?)
        };
        let of = |layer: &Memory| match layer {
            Memory::Attention(_) => Ok(None),
            Memory::DeltaNet(kept) => {
                Ok(Some(Recurrent { state: next(&kept.state)?, conv: next(&kept.conv)? }))
            }
        };
        self.layers.iter().map(of).collect()
    }

    /// Goes back to where `checkpoint` was saved.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint, machine: &Machine) -> Result<(), Failure> {
        if checkpoint.len > self.len || checkpoint.values.len() != self.n_state_values() {
            let (checkpoint, held) = (checkpoint.len, self.len);
            return Err(ComputeError::Checkpoint { checkpoint, held }.into());
        }
        let states = self.states(checkpoint, machine)?;
        self.len = checkpoint.len;
        self.commit(0, states);
        Ok(())
    }

    /// Bytes of one token's keys and values in all layers.
    fn row_bytes(&self) -> usize {
        self.attention().map(|kept| row_bytes(&kept.keys) + row_bytes(&kept.values)).sum()
    }

    /// Writes the keys and values of `rows` to `out`: token by token, of each token layer by layer in ascending order, of each
    /// layer the keys, then the values, little-endian in the cache's own type.
    pub(crate) fn save_rows(&self, rows: Range<usize>, out: &mut dyn Write) -> Result<(), Failure> {
        let row_bytes = self.row_bytes();
        for first in rows.clone().step_by(TOKENS) {
            let some = first..rows.end.min(first + TOKENS);
            let mut bytes = vec![0; some.len() * row_bytes];
            let mut at = 0;
            for kept in self.attention() {
                for tensor in [&kept.keys, &kept.values] {
                    let part = taken(tensor, some.clone())?;
                    let len = part.len() / some.len();
                    for (row, part) in bytes.chunks_exact_mut(row_bytes).zip(part.chunks_exact(len)) {
                        row[at..at + len].copy_from_slice(part);
                    }
                    at += len;
                }
            }
            out.write_all(&bytes).map_err(moved)?;
        }
        Ok(())
    }

    /// Holds what another sequence held when `checkpoint` was saved; its keys and values come from `rows`. Holds nothing when this
    /// fails.
    pub(crate) fn load(
        &mut self,
        checkpoint: &Checkpoint,
        zero: Option<&Recurrent>,
        rows: &mut dyn Read,
        machine: &Machine,
    ) -> Result<(), Failure> {
        self.clear(zero);
        let row_bytes = self.row_bytes();
        let mut bytes = vec![0; TOKENS.min(checkpoint.len) * row_bytes];
        for first in (0..checkpoint.len).step_by(TOKENS) {
            let n = TOKENS.min(checkpoint.len - first);
            let bytes = &mut bytes[..n * row_bytes];
            rows.read_exact(bytes).map_err(moved)?;
            let mut at = 0;
            for kept in self.attention() {
                let mut next = |tensor: &Tensor| {
                    let columns = at..at + self::row_bytes(tensor);
                    at = columns.end;
                    let rows = bytes.chunks_exact(row_bytes).flat_map(|row| &row[columns.clone()]);
                    given(tensor, n, &rows.copied().collect::<Vec<_>>(), machine)
                };
                let (keys, values) = (next(&kept.keys)?, next(&kept.values)?);
                kept.write(first, &keys, &values)?;
            }
        }
        let states = self.states(checkpoint, machine)?;
        self.commit(checkpoint.len, states);
        Ok(())
    }
}

fn moved(source: io::Error) -> ComputeError {
    ComputeError::SavedBytes { source }
}

/// Bytes of one token in `[heads, context, dim]`.
fn row_bytes(kept: &Tensor) -> usize {
    kept.dims()[0] * kept.dims()[2] * kept.dtype().size_in_bytes()
}

/// The bytes of some tokens, token by token.
fn taken(kept: &Tensor, rows: Range<usize>) -> Result<Vec<u8>, Failure> {
    let rows = kept.narrow(1, rows.start, rows.len())?.transpose(0, 1)?.contiguous()?.flatten_all()?;
    Ok(match kept.dtype() {
        DType::F16 => rows.to_vec1::<f16>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => rows.to_vec1::<f32>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
    })
}

/// What [`taken`] gave of `n` tokens, on the device: `[rows, heads, dim]`.
fn given(kept: &Tensor, n: usize, bytes: &[u8], machine: &Machine) -> Result<Tensor, Failure> {
    let dims = (n, kept.dim(0)?, kept.dim(2)?);
    Ok(match kept.dtype() {
        DType::F16 => {
            let values: Vec<_> = bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect();
            Tensor::from_vec(values, dims, &machine.device)?
        }
        _ => {
            let values: Vec<_> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            Tensor::from_vec(values, dims, &machine.device)?
        }
    })
}
