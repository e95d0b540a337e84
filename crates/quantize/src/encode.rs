//! Rows of one type, made into rows of another, with care for what matters, on several threads.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;

use forerun_compute::{dequant, quantise};
use forerun_model::QuantType;
use forerun_storage::TensorInfo;
use forerun_storage::repack::{Recode, RecodeError, Rows};

use crate::Imatrix;
use crate::error::EncodeError;
use crate::lookup::{Known, Lookup};
use crate::plan::{Facts, Plan};

/// Values that a thread takes at once: enough that taking them costs nothing.
const TAKE_VALUES: usize = 1 << 16;
/// The largest number of a half float, as which most types keep their scales.
const HALF_MAX: f32 = 65504.0;
/// The largest number of BF16; larger ones round to infinity.
const BF16_MAX: f32 = f32::from_bits(0x7F7F_0000);

/// Encodes what a plan chose. Each row is encoded by itself, so threads change no byte.
pub struct Encoder<'a> {
    types: HashMap<&'a str, QuantType>,
    lookup: Option<Lookup<'a>>,
    n_threads: usize,
}

impl<'a> Encoder<'a> {
    /// An encoder of `plan`, which was made with the same importance matrix.
    pub fn new(plan: &'a Plan, facts: Facts, imatrix: Option<&'a Imatrix>, n_threads: usize) -> Self {
        let lookup = imatrix.map(|imatrix| Lookup { imatrix, n_experts: facts.n_experts as usize });
        Self { types: plan.types(), lookup, n_threads: n_threads.max(1) }
    }

    /// How much each column counts; `None` when nothing is known of the tensor. A matrix that no token reached is
    /// encoded as if all of its columns mattered alike.
    fn importance(&self, rows: &Rows<'_>) -> Option<Vec<f32>> {
        match self.lookup?.know(rows.tensor, rows.matrix) {
            Ok(Known::Seen(means)) => Some(means),
            Ok(Known::Unseen) => Some(vec![1.0; rows.n_cols()]),
            Ok(Known::Absent) | Err(_) => None,
        }
    }
}

impl Recode for Encoder<'_> {
    fn target(&self, tensor: &TensorInfo) -> QuantType {
        self.types.get(tensor.name.as_str()).copied().unwrap_or(tensor.quant)
    }

    fn recode(&self, rows: Vec<Rows<'_>>) -> Result<(), RecodeError> {
        let importance: Vec<_> = rows.iter().map(|rows| self.importance(rows)).collect();
        let mut takes = Vec::new();
        for (rows, importance) in rows.into_iter().zip(&importance) {
            cut(rows, importance.as_deref(), &mut takes);
        }
        let n_threads = self.n_threads.min(takes.len());
        let queue = Mutex::new(takes.into_iter().enumerate());
        let first_error: Mutex<Option<(usize, EncodeError)>> = Mutex::new(None);
        let work = || {
            let mut values = Vec::new();
            loop {
                let next = queue.lock().expect("nobody panics with the queue").next();
                let Some((place, take)) = next else { break };
                if let Err(error) = take.encode(&mut values) {
                    let mut first = first_error.lock().expect("nobody panics with the error");
                    if first.as_ref().is_none_or(|first| place < first.0) {
                        *first = Some((place, error));
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..n_threads {
                scope.spawn(work);
            }
            work();
        });
        match first_error.into_inner().expect("nobody panics with the error") {
            Some((_, error)) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// Rows that one thread encodes.
struct Take<'r> {
    rows: Rows<'r>,
    importance: Option<&'r [f32]>,
}

/// Parts `rows` into such as one thread takes.
fn cut<'r>(rows: Rows<'r>, importance: Option<&'r [f32]>, takes: &mut Vec<Take<'r>>) {
    let Rows { tensor, matrix, mut first_row, to, mut bytes, mut out } = rows;
    let n_cols = usize::try_from(tensor.dims()[0]).expect("a row that was read fits memory");
    let (from_row, to_row) = (row_bytes(tensor.quant, n_cols), row_bytes(to, n_cols));
    let per_take = (TAKE_VALUES / n_cols).max(1);
    while !bytes.is_empty() {
        let n = per_take.min(bytes.len() / from_row);
        let (piece, next_bytes) = bytes.split_at(n * from_row);
        let (piece_out, next_out) = out.split_at_mut(n * to_row);
        let rows = Rows { tensor, matrix, first_row, to, bytes: piece, out: piece_out };
        takes.push(Take { rows, importance });
        (bytes, out, first_row) = (next_bytes, next_out, first_row + n);
    }
}

fn row_bytes(quant: QuantType, n_cols: usize) -> usize {
    quant.row_bytes(n_cols).expect("rows are whole blocks, in the source and by the plan")
}

impl Take<'_> {
    /// Encodes row by row; `values` is scratch.
    fn encode(self, values: &mut Vec<f32>) -> Result<(), EncodeError> {
        let n_cols = self.rows.n_cols();
        let Rows { tensor, matrix, first_row, to, bytes, out } = self.rows;
        values.resize(n_cols, 0.0);
        let max = match to {
            QuantType::F32 => f32::MAX,
            QuantType::BF16 => BF16_MAX,
            _ => HALF_MAX,
        };
        let sources = bytes.chunks_exact(row_bytes(tensor.quant, n_cols));
        for (i, (row, out)) in sources.zip(out.chunks_exact_mut(row_bytes(to, n_cols))).enumerate() {
            dequant::dequantise(tensor.quant, row, values);
            // Not a number compares as false. Without an early exit, so that many are looked at together.
            let is_good = |value: &f32| value.abs() <= max;
            if !values.iter().fold(true, |all, value| all & is_good(value)) {
                let value = values.iter().copied().find(|value| !is_good(value)).unwrap_or(f32::NAN);
                let (tensor, row) = (tensor.name.clone(), first_row + i);
                return Err(EncodeError::Value { tensor, matrix, row, value, quant: to, max });
            }
            quantise::quantise(to, values, self.importance, out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
