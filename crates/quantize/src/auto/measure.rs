//! What a type costs a tensor: rows of it encoded, decoded, and compared, weighted by what they are multiplied with.

use std::ptr;
use std::thread;

use forerun_compute::quantise::{Carry, Feedback};
use forerun_compute::{dequant, quantise};
use forerun_model::QuantType;
use forerun_storage::{Gguf, TensorInfo};

use crate::error::AutoError;
use crate::lookup::{Known, Lookup, n_matrices};

/// Most matrices of a tensor that rows are taken of.
const MATRICES_MAX: usize = 32;
/// Most rows of a tensor that are encoded. The error of a type hardly differs from row to row.
const ROWS_MAX: usize = 256;

/// What was found of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loss {
    /// Expected square of the output's length, for one token that reaches the tensor (an expert: one of its tokens), with
    /// columns taken as uncorrelated: `sum of E[x_c^2] w_rc^2`.
    pub(super) energy: f64,
    /// For each type, the share of that energy that its rounding adds as noise.
    pub(super) noise: Vec<f64>,
}

/// A row that is looked at.
struct Sample<'m> {
    matrix: &'m Matrix<'m>,
    row: usize,
    /// How many rows it stands for, times the share of tokens that reach its matrix.
    share: f64,
}

/// Measures tensors of one form together, with each of `types`, whose blocks must divide their rows.
///
/// # Errors
/// [`AutoError`] for an importance matrix of another model, a tensor that can't be read, or values that are no numbers.
pub(super) fn measure(
    gguf: &Gguf,
    tensors: &[&TensorInfo],
    types: &[QuantType],
    lookup: Lookup<'_>,
    n_threads: usize,
) -> Result<Loss, AutoError> {
    let first = tensors[0];
    let size = |axis: usize| first.dims().get(axis).map_or(1, |n| usize::try_from(*n).unwrap_or(usize::MAX));
    let (n_cols, n_rows) = (size(0), size(1));
    let moments = lookup.moments(first);
    let feedback = moments.and_then(|(_, moments)| Feedback::new(n_cols, moments));
    let matrices = matrices(tensors, lookup, n_cols, feedback.as_ref())?;
    let samples = samples(&matrices, n_rows);
    let row_bytes = first.quant.row_bytes(n_cols).expect("a file's rows are whole blocks");
    let mut bytes = vec![0; row_bytes * samples.len()];
    for (sample, bytes) in samples.iter().zip(bytes.chunks_exact_mut(row_bytes)) {
        let row = (sample.matrix.idx * n_rows + sample.row) as u64;
        gguf.read_tensor(sample.matrix.tensor, row * row_bytes as u64, bytes)?;
    }
    let work: Vec<_> = samples.iter().zip(bytes.chunks_exact(row_bytes)).collect();
    let of_rows = |rows: &[(&Sample<'_>, &[u8])]| -> Vec<Vec<f64>> {
        let of_one = rows.chunk_by(|a, b| ptr::eq(a.0.matrix, b.0.matrix));
        let of_one = of_one.map(|rows| (rows[0].0.matrix, rows.iter().map(|row| row.1)));
        of_one.flat_map(|(matrix, rows)| losses(matrix, first.quant, rows.collect(), types)).collect()
    };
    // In the order of the samples, so that threads change no sum.
    let found: Vec<Vec<f64>> = thread::scope(|scope| {
        let per_thread = work.len().div_ceil(n_threads.max(1)).max(1);
        let of_rows = &of_rows;
        let parts: Vec<_> = work.chunks(per_thread).map(|rows| scope.spawn(move || of_rows(rows))).collect();
        parts.into_iter().flat_map(|part| part.join().expect("measuring doesn't panic")).collect()
    });
    let mut sums = vec![0.0; types.len() + 1];
    for (sample, row) in samples.iter().zip(&found) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += sample.share * value);
    }
    if sums.iter().any(|sum| !sum.is_finite()) {
        return Err(AutoError::Values { tensor: first.name.clone() });
    }
    let energy = sums[0];
    let share = |noise: &f64| if energy > 0.0 { noise / energy } else { 0.0 };
    Ok(Loss { energy, noise: sums[1..].iter().map(share).collect() })
}

/// One of the matrices that rows are taken of.
struct Matrix<'a> {
    tensor: &'a TensorInfo,
    idx: usize,
    /// Tokens that reached it.
    count: f64,
    /// Mean squares of its inputs.
    means: Vec<f32>,
    /// What the encoder will know besides.
    carry: Option<Carry<'a>>,
}

/// The matrices that rows are taken of: some of those that tokens reached. What no token reached counts nothing, unless
/// nothing is known at all.
fn matrices<'a>(
    tensors: &[&'a TensorInfo],
    lookup: Lookup<'_>,
    n_cols: usize,
    feedback: Option<&'a Feedback>,
) -> Result<Vec<Matrix<'a>>, AutoError> {
    let all = || tensors.iter().flat_map(|&tensor| (0..n_matrices(tensor)).map(move |idx| (tensor, idx)));
    let mut found = Vec::new();
    for (tensor, idx) in all() {
        if let (Known::Seen(means), count) = lookup.know_counted(tensor, idx)? {
            let carry = feedback.map(|feedback| feedback.of(&means));
            found.push(Matrix { tensor, idx, count: f64::from(count), means, carry });
        }
    }
    if found.is_empty() {
        let even = |(tensor, idx)| Matrix { tensor, idx, count: 1.0, means: vec![1.0; n_cols], carry: None };
        found = all().map(even).collect();
    }
    let (of, take) = (found.len(), found.len().min(MATRICES_MAX));
    let mut place = 0;
    found.retain(|_| {
        place += 1;
        place * take / of > (place - 1) * take / of
    });
    Ok(found)
}

/// Rows at even distances.
#[expect(clippy::cast_precision_loss, reason = "numbers of rows")]
fn samples<'m>(matrices: &'m [Matrix<'m>], n_rows: usize) -> Vec<Sample<'m>> {
    let per_matrix = ROWS_MAX.div_ceil(matrices.len().max(1)).min(n_rows);
    let tokens: f64 = matrices.iter().map(|matrix| matrix.count).sum();
    let stands_for = n_rows as f64 / per_matrix as f64;
    let mut samples = Vec::with_capacity(per_matrix * matrices.len());
    for (i, matrix) in matrices.iter().enumerate() {
        let share = matrix.count / tokens * stands_for;
        // Other rows of each matrix, as their places may mean something.
        let shift = i * n_rows / (per_matrix * matrices.len());
        samples.extend((0..per_matrix).map(|j| {
            let row = (j * n_rows / per_matrix + shift) % n_rows;
            Sample { matrix, row, share }
        }));
    }
    samples
}

/// For each of some rows of a matrix, its energy, then the noise of each type.
fn losses(matrix: &Matrix<'_>, from: QuantType, rows: Vec<&[u8]>, types: &[QuantType]) -> Vec<Vec<f64>> {
    let (means, n_cols) = (&matrix.means, matrix.means.len());
    let mut values = vec![0.0; n_cols * rows.len()];
    for (row, values) in rows.iter().zip(values.chunks_exact_mut(n_cols)) {
        dequant::dequantise(from, row, values);
    }
    let energy = |row: &[f32]| row.iter().zip(means).map(|(w, x2)| square(*w, *x2)).sum::<f64>();
    let mut found: Vec<Vec<f64>> = values.chunks_exact(n_cols).map(|row| vec![energy(row)]).collect();
    let mut errors = vec![0.0; values.len()];
    for &quant in types {
        if quant == from {
            // Copied, byte for byte.
            found.iter_mut().for_each(|row| row.push(0.0));
            continue;
        }
        matrix.round(quant, &values, &mut errors);
        errors.iter_mut().zip(&values).for_each(|(error, value)| *error -= value);
        for (row, errors) in found.iter_mut().zip(errors.chunks_exact(n_cols)) {
            row.push(matrix.noise(errors));
        }
    }
    found
}

impl Matrix<'_> {
    /// What `values`, whole rows, become as blocks of `quant`.
    fn round(&self, quant: QuantType, values: &[f32], out: &mut [f32]) {
        let n_cols = self.means.len();
        let row_bytes = quant.row_bytes(n_cols).expect("the caller chose types that divide the row");
        let mut blocks = vec![0; values.len() / n_cols * row_bytes];
        if let Some(carry) = &self.carry {
            quantise::quantise_rows(quant, values, &self.means, carry, &mut blocks);
        } else {
            for (row, out) in values.chunks_exact(n_cols).zip(blocks.chunks_exact_mut(row_bytes)) {
                quantise::quantise(quant, row, Some(&self.means), out);
            }
        }
        dequant::dequantise(quant, &blocks, out);
    }

    /// What the errors of a row add to the output.
    fn noise(&self, errors: &[f32]) -> f64 {
        match &self.carry {
            Some(carry) => carry.cost(errors),
            None => errors.iter().zip(&self.means).map(|(e, x2)| square(*e, *x2)).sum(),
        }
    }
}

fn square(value: f32, weight: f32) -> f64 {
    f64::from(value) * f64::from(value) * f64::from(weight)
}
