//! A resident tensor: borrowed bytes and what they mean.

use bytes::Bytes;
use forerun_model::{MatrixLayout, QuantType};

use crate::dequant::{SUPPORTED, dequantise, is_supported};
use crate::{ComputeError, activation::Form};

/// A matrix `[n_rows, n_cols]` (a vector has one row) over bytes that somebody else keeps: a mapped file, a
/// binary's own data, or a buffer.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: String,
    layout: MatrixLayout,
    bytes: Bytes,
}

impl Tensor {
    /// A tensor named `name` over `bytes`.
    ///
    /// # Errors
    /// [`ComputeError`] when the type can't be computed with, rows aren't whole blocks, or bytes are missing.
    pub fn new(
        name: &str,
        quant: QuantType,
        n_rows: usize,
        n_cols: usize,
        bytes: Bytes,
    ) -> Result<Self, ComputeError> {
        check_type(name, quant)?;
        let layout = MatrixLayout::new(quant, n_rows, n_cols)?;
        if bytes.len() < layout.bytes() {
            let (found_bytes, need_bytes) = (bytes.len(), layout.bytes());
            return Err(ComputeError::TensorBytes { name: name.to_owned(), found_bytes, need_bytes });
        }
        Ok(Self { name: name.to_owned(), layout, bytes })
    }

    /// The file's name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The matrix, ready to multiply.
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix { layout: self.layout, bytes: &self.bytes[..self.layout.bytes()] }
    }

    /// A copy of these rows, in this order.
    ///
    /// # Panics
    /// When a row isn't there.
    pub fn select_rows(&self, rows: &[usize]) -> Self {
        let matrix = self.matrix();
        let layout = MatrixLayout { n_rows: rows.len(), ..self.layout };
        let mut bytes = Vec::with_capacity(layout.bytes());
        rows.iter().for_each(|&row| bytes.extend_from_slice(matrix.row(row)));
        Self { name: self.name.clone(), layout, bytes: bytes.into() }
    }

    /// All values, decoded.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.layout.n_rows * self.layout.n_cols];
        dequantise(self.layout.quant, self.matrix().bytes, &mut values);
        values
    }
}

/// Refuses a type that has no decoder.
///
/// # Errors
/// [`ComputeError::UnsupportedType`], naming `name`.
pub fn check_type(name: &str, quant: QuantType) -> Result<(), ComputeError> {
    if is_supported(quant) {
        return Ok(());
    }
    let (name, quant) = (name.to_owned(), quant.name());
    Err(ComputeError::UnsupportedType { name, quant, supported: SUPPORTED })
}

/// A matrix over borrowed bytes: a resident tensor, or a part of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Type and size.
    pub layout: MatrixLayout,
    /// Exactly the bytes of the rows.
    pub bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Bytes of row `row`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let len = self.layout.row_bytes();
        &self.bytes[row * len..(row + 1) * len]
    }

    /// Rows `start..end` of the matrix, as a matrix.
    pub fn rows(&self, start: usize, end: usize) -> Self {
        let len = self.layout.row_bytes();
        let layout = MatrixLayout { n_rows: end - start, ..self.layout };
        Self { layout, bytes: &self.bytes[start * len..end * len] }
    }

    /// The form that activations take for this matrix.
    pub fn form(&self) -> Form {
        Form::of(self.layout.quant)
    }
}
