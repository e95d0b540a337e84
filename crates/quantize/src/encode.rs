//! Rows of one type, made into rows of another, with care for what matters, on several threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use forerun_compute::quantise::{Carry, Feedback};
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
/// Rows that a thread takes are a multiple of these, as many as are encoded side by side.
const TAKE_ROWS: usize = 16;
/// The largest number of a half float, as which most types keep their scales.
const HALF_MAX: f32 = 65504.0;
/// The largest number of BF16; larger ones round to infinity.
const BF16_MAX: f32 = f32::from_bits(0x7F7F_0000);

/// Encodes what a plan chose. Each row is encoded by itself, so threads change no byte.
pub struct Encoder<'a> {
    types: HashMap<&'a str, QuantType>,
    lookup: Option<Lookup<'a>>,
    n_threads: usize,
    /// What was factored last, by the entry that it is of: a layer's experts come one after the other.
    last: Mutex<Option<(&'a str, Shared)>>,
}

/// `None` where moments can't be factored.
type Shared = Option<Arc<Feedback>>;

/// What is known of the inputs of some rows.
#[derive(Default)]
struct Inputs {
    /// How much each column counts.
    importance: Option<Vec<f32>>,
    feedback: Shared,
}

impl Inputs {
    fn carry(&self) -> Option<Carry<'_>> {
        Some(self.feedback.as_ref()?.of(self.importance.as_ref()?))
    }
}

impl<'a> Encoder<'a> {
    /// An encoder of `plan`, which was made with the same importance matrix.
    pub fn new(plan: &'a Plan, facts: Facts, imatrix: Option<&'a Imatrix>, n_threads: usize) -> Self {
        let lookup = imatrix.map(|imatrix| Lookup { imatrix, n_experts: facts.n_experts as usize });
        Self { types: plan.types(), lookup, n_threads: n_threads.max(1), last: Mutex::new(None) }
    }

    /// Nothing where nothing is known of the tensor. A matrix that no token reached is encoded as if all of its columns
    /// mattered alike.
    fn inputs(&self, rows: &Rows<'_>) -> Inputs {
        let Some(lookup) = self.lookup else { return Inputs::default() };
        match lookup.know(rows.tensor, rows.matrix) {
            Ok(Known::Seen(means)) => {
                Inputs { importance: Some(means), feedback: self.feedback(lookup, rows.tensor) }
            }
            Ok(Known::Unseen) => Inputs { importance: Some(vec![1.0; rows.n_cols()]), feedback: None },
            Ok(Known::Absent) | Err(_) => Inputs::default(),
        }
    }

    fn feedback(&self, lookup: Lookup<'a>, tensor: &TensorInfo) -> Shared {
        let (name, moments) = lookup.moments(tensor)?;
        let mut last = self.last.lock().expect("nobody panics with it");
        if let Some((_, known)) = last.as_ref().filter(|known| known.0 == name) {
            return known.clone();
        }
        let n_cols = usize::try_from(tensor.dims()[0]).ok()?;
        let new = Feedback::new(n_cols, moments).map(Arc::new);
        *last = Some((name, new.clone()));
        new
    }
}

impl Recode for Encoder<'_> {
    fn target(&self, tensor: &TensorInfo) -> QuantType {
        self.types.get(tensor.name.as_str()).copied().unwrap_or(tensor.quant)
    }

    fn recode(&self, rows: Vec<Rows<'_>>) -> Result<(), RecodeError> {
        let inputs: Vec<_> = rows.iter().map(|rows| self.inputs(rows)).collect();
        let carries: Vec<_> = inputs.iter().map(Inputs::carry).collect();
        let mut takes = Vec::new();
        for ((rows, inputs), carry) in rows.into_iter().zip(&inputs).zip(&carries) {
            cut(rows, (inputs.importance.as_deref(), carry.as_ref()), &mut takes);
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
    carry: Option<&'r Carry<'r>>,
}

/// Parts `rows` into such as one thread takes.
fn cut<'r>(
    rows: Rows<'r>,
    (importance, carry): (Option<&'r [f32]>, Option<&'r Carry<'r>>),
    takes: &mut Vec<Take<'r>>,
) {
    let Rows { tensor, matrix, mut first_row, to, mut bytes, mut out } = rows;
    let n_cols = usize::try_from(tensor.dims()[0]).expect("a row that was read fits memory");
    let (from_row, to_row) = (row_bytes(tensor.quant, n_cols), row_bytes(to, n_cols));
    let per_take = (TAKE_VALUES / n_cols).max(1).next_multiple_of(TAKE_ROWS);
    while !bytes.is_empty() {
        let n = per_take.min(bytes.len() / from_row);
        let (piece, next_bytes) = bytes.split_at(n * from_row);
        let (piece_out, next_out) = out.split_at_mut(n * to_row);
        let rows = Rows { tensor, matrix, first_row, to, bytes: piece, out: piece_out };
        takes.push(Take { rows, importance, carry });
        (bytes, out, first_row) = (next_bytes, next_out, first_row + n);
    }
}

fn row_bytes(quant: QuantType, n_cols: usize) -> usize {
    quant.row_bytes(n_cols).expect("rows are whole blocks, in the source and by the plan")
}

impl Take<'_> {
    /// Encodes row by row, or several side by side; `values` is scratch.
    fn encode(self, values: &mut Vec<f32>) -> Result<(), EncodeError> {
        let n_cols = self.rows.n_cols();
        let Rows { tensor, matrix, first_row, to, bytes, out } = self.rows;
        let at_once = if self.carry.is_some() { TAKE_ROWS } else { 1 };
        values.resize(n_cols * at_once, 0.0);
        let max = match to {
            QuantType::F32 => f32::MAX,
            QuantType::BF16 => BF16_MAX,
            _ => HALF_MAX,
        };
        let (from_row, to_row) = (row_bytes(tensor.quant, n_cols), row_bytes(to, n_cols));
        let sources = bytes.chunks(at_once * from_row);
        for (i, (rows, out)) in sources.zip(out.chunks_mut(at_once * to_row)).enumerate() {
            let values = &mut values[..rows.len() / from_row * n_cols];
            for (j, (row, values)) in
                rows.chunks_exact(from_row).zip(values.chunks_exact_mut(n_cols)).enumerate()
            {
                dequant::dequantise(tensor.quant, row, values);
                // Not a number compares as false. Without an early exit, so that many are looked at together.
                let is_good = |value: &f32| value.abs() <= max;
                if !values.iter().fold(true, |all, value| all & is_good(value)) {
                    let value = values.iter().copied().find(|value| !is_good(value)).unwrap_or(f32::NAN);
                    let (tensor, row) = (tensor.name.clone(), first_row + i * at_once + j);
                    return Err(EncodeError::Value { tensor, matrix, row, value, quant: to, max });
                }
            }
            match (self.importance, self.carry) {
                (Some(importance), Some(carry)) => {
                    quantise::quantise_rows(to, values, importance, carry, out);
                }
                (importance, _) => quantise::quantise(to, values, importance, out),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
