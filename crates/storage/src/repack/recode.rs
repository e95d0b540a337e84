//! A copy whose tensors get other types: what the caller says and does, and where rows are cut. Pure.
//!
//! What the types mean, and which are good ones, is the caller's to know: here rows have bytes, and so many of them.

use std::error::Error;

use forerun_model::{ExpertKey, QuantType, names};

use super::plan::{Copy, Plan, Recoded, RowCopy, RowsFrom, Step};
use super::recipe::Form;
use crate::expert_name::PARTS;
use crate::gguf::Value;
use crate::{Gguf, TensorInfo};

/// Why rows could not be turned into others.
pub type RecodeError = Box<dyn Error + Send + Sync>;

/// Says which type each tensor gets, and turns rows of one type into rows of another.
pub trait Recode: Sync {
    /// The type that `tensor` has in the target. Rows must fill whole blocks of it. A tensor that keeps its type is
    /// copied byte for byte.
    fn target(&self, tensor: &TensorInfo) -> QuantType;

    /// Fills `out` of all `rows` with what `bytes` mean. The same rows must give the same bytes, whichever are asked for
    /// together: a later run goes on with what an earlier one wrote.
    ///
    /// # Errors
    /// The reason; the copy ends with it and leaves nothing behind.
    fn recode(&self, rows: Vec<Rows<'_>>) -> Result<(), RecodeError>;
}

/// Some rows of one matrix, in the source and in the target.
#[derive(Debug)]
pub struct Rows<'a> {
    /// The source's tensor.
    pub tensor: &'a TensorInfo,
    /// Which of its matrices: the expert, in a tensor that holds a layer's.
    pub matrix: usize,
    /// First of the rows, in that matrix.
    pub first_row: usize,
    /// What they are to become.
    pub to: QuantType,
    /// The rows as the source has them, of type `tensor.quant`.
    pub bytes: &'a [u8],
    /// The rows as the target will have them, of type `to`: as many.
    pub out: &'a mut [u8],
}

impl Rows<'_> {
    /// Values of each row.
    pub fn n_cols(&self) -> usize {
        usize_of(self.tensor.dims()[0])
    }
}

/// How experts are kept in the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Experts {
    /// In tensors of the source's names.
    #[default]
    AsSource,
    /// In one record each.
    Packed,
}

/// A copy with other types.
pub struct Recoding<'a> {
    /// How experts are kept.
    pub experts: Experts,
    /// Keys that are set, or added behind the source's. What decides the target's bytes must be among them: a later
    /// run goes on with an earlier one's part when all keys and types are alike.
    pub keys: Vec<(String, Value)>,
    /// Beginnings of keys that the source's don't pass under: what they say is true of the source only.
    pub drops: &'a [&'a str],
    /// Says which types, and makes the rows.
    pub recode: &'a dyn Recode,
}

/// Sets the keys of `from` in `entries`, in place where they are there.
pub(super) fn set_keys(entries: &mut Vec<(String, Value)>, from: &[(String, Value)]) {
    for (key, value) in from {
        match entries.iter_mut().find(|entry| entry.0 == *key) {
            Some(entry) => entry.1 = value.clone(),
            None => entries.push((key.clone(), value.clone())),
        }
    }
}

impl Plan {
    /// Adds tensor `idx`, whose rows become rows of `to` from `to_bytes` on, in pieces of whole rows: at most `step_bytes`
    /// of the source and of the target, but at least one row.
    pub(super) fn push_rows(
        &mut self,
        (idx, tensor): (usize, &TensorInfo),
        (to, to_bytes): (QuantType, u64),
        step_bytes: u64,
    ) {
        let n_rows: u64 = tensor.dims()[1..].iter().product();
        let from_row = tensor.len_bytes / n_rows;
        let to_row = row_bytes(to, tensor.dims()[0]);
        let per_step = (step_bytes / from_row.max(to_row)).max(1);
        let mut first_row = 0;
        while first_row < n_rows {
            let n = per_step.min(n_rows - first_row);
            let source = Copy {
                file: tensor.file,
                from_bytes: tensor.offset_bytes + first_row * from_row,
                to_bytes: to_bytes + first_row * to_row,
                len_bytes: n * from_row,
            };
            self.steps.push(Step::Rows(RowCopy { tensor: idx, first_row, to, source, to_len: n * to_row }));
            first_row += n;
        }
    }
}

/// Bytes of a row of `n` values.
fn row_bytes(quant: QuantType, n: u64) -> u64 {
    let bytes = quant.row_bytes(usize_of(n)).expect("the header was laid out with this type");
    bytes as u64
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("a row fits the memory of this machine")
}

/// The rows of `batch` that are to be made: read from `source`, behind the buffer's target part, and written to `target`.
pub(super) fn rows<'b>(
    gguf: &'b Gguf,
    recoded: &[Recoded],
    source: &'b [u8],
    target: &'b mut [u8],
) -> Vec<Rows<'b>> {
    let mut by_place: Vec<&Recoded> = recoded.iter().collect();
    by_place.sort_unstable_by_key(|recoded| recoded.to_at);
    let (mut rest, mut rest_at, mut all) = (target, 0, Vec::with_capacity(recoded.len()));
    for recoded in by_place {
        let (_, behind) = rest.split_at_mut(recoded.to_at - rest_at);
        let (mut out, behind) = behind.split_at_mut(recoded.to_len);
        (rest, rest_at) = (behind, recoded.to_at + recoded.to_len);
        let mut bytes = &source[recoded.from_at..recoded.from_at + recoded.from_len];
        let (tensor, mut matrix, mut first_row) = origin(gguf, recoded.rows);
        let dims = tensor.dims();
        let (from_row, to_row) =
            (usize_of(row_bytes(tensor.quant, dims[0])), usize_of(row_bytes(recoded.to, dims[0])));
        let matrix_rows = usize_of(dims.get(1).copied().unwrap_or(1));
        while !bytes.is_empty() {
            let n = (bytes.len() / from_row).min(matrix_rows - first_row);
            let (piece, next_bytes) = bytes.split_at(n * from_row);
            let (piece_out, next_out) = out.split_at_mut(n * to_row);
            all.push(Rows { tensor, matrix, first_row, to: recoded.to, bytes: piece, out: piece_out });
            (bytes, out, matrix, first_row) = (next_bytes, next_out, matrix + 1, 0);
        }
    }
    all
}

/// The tensor that rows are of, the matrix of it, and the first row in that.
fn origin(gguf: &Gguf, rows: RowsFrom) -> (&TensorInfo, usize, usize) {
    match rows {
        RowsFrom::Tensor { idx, first_row } => {
            let tensor = &gguf.tensors()[idx];
            let per_matrix = tensor.dims().get(1).copied().unwrap_or(1);
            (tensor, usize_of(first_row / per_matrix), usize_of(first_row % per_matrix))
        }
        RowsFrom::Part { key, part } => part_origin(gguf, key, part),
    }
}

/// Where a part of an expert lies.
fn part_origin(gguf: &Gguf, key: ExpertKey, part: usize) -> (&TensorInfo, usize, usize) {
    let ExpertKey { layer, expert } = key;
    let find = |name: String| gguf.tensor(&name).expect("the catalog found its experts");
    match Form::of(gguf, layer) {
        Form::Fused if part < 2 => {
            let tensor = find(names::block(layer, "ffn_gate_up_exps"));
            let half = usize_of(tensor.dims()[1] / 2);
            (tensor, expert.idx(), part * half)
        }
        Form::Apart => (find(names::block_expert(layer, PARTS[part], expert.idx())), 0, 0),
        _ => (find(names::block(layer, &format!("{}_exps", PARTS[part]))), expert.idx(), 0),
    }
}
