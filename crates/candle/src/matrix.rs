//! A matrix on a device, and its products with rows of activations.
//!
//! On the processor blocks are multiplied by candle's plain product over stored blocks, whose sums don't depend on how many rows
//! there are, and which keeps no second, repacked copy. Other devices have kernels that choose by the number of
//! rows. Types that candle doesn't know, and half floats (its product would round activations to their type), are decoded to f32.

use std::borrow::Cow;

use candle_core::quantized::{GgmlDType, QStorage, QTensor, QuantizedType};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use forerun_compute::DeviceName;
use forerun_compute::dequant::dequantise;
use forerun_model::{MatrixLayout, QuantType};

use crate::device::Machine;
use crate::error::Failure;

/// A matrix `[n_rows, n_cols]` on a device.
pub(crate) struct Matrix {
    held: Held,
}

enum Held {
    /// On the processor: blocks, or floats.
    Host(HostMatrix),
    /// Blocks on another device.
    Blocks(Box<QTensor>),
    /// f32 on another device, `[n_rows, n_cols]`.
    Floats(Tensor),
}

/// candle's type for `quant` where products with its blocks are wanted.
fn block_type(quant: QuantType) -> Option<GgmlDType> {
    Some(match quant {
        QuantType::Q4_0 => GgmlDType::Q4_0,
        QuantType::Q4_1 => GgmlDType::Q4_1,
        QuantType::Q5_0 => GgmlDType::Q5_0,
        QuantType::Q5_1 => GgmlDType::Q5_1,
        QuantType::Q8_0 => GgmlDType::Q8_0,
        QuantType::Q2_K => GgmlDType::Q2K,
        QuantType::Q3_K => GgmlDType::Q3K,
        QuantType::Q4_K => GgmlDType::Q4K,
        QuantType::Q5_K => GgmlDType::Q5K,
        QuantType::Q6_K => GgmlDType::Q6K,
        _ => return None,
    })
}

/// Bytes that a matrix of `layout` takes on any device.
pub(crate) fn matrix_bytes(layout: MatrixLayout) -> u64 {
    let bytes = match block_type(layout.quant) {
        Some(_) => layout.bytes(),
        None => 4 * layout.n_rows * layout.n_cols,
    };
    bytes as u64
}

impl Matrix {
    /// Copies a matrix to the device.
    pub(crate) fn new(
        matrix: forerun_compute::tensor::Matrix<'_>,
        machine: &Machine,
    ) -> Result<Self, Failure> {
        let MatrixLayout { quant, n_rows, n_cols } = matrix.layout;
        let is_host = machine.name == DeviceName::Cpu;
        let held = match block_type(quant) {
            Some(dtype) => {
                let buffer = Aligned::new(matrix.bytes);
                let bytes = Cow::Borrowed(buffer.bytes());
                if is_host {
                    Held::Host(HostMatrix { blocks: dtype.from_data(bytes), n_rows, n_cols })
                } else {
                    let storage = QStorage::from_data(bytes, &machine.device, dtype)?;
                    Held::Blocks(Box::new(QTensor::new(storage, (n_rows, n_cols))?))
                }
            }
            None => {
                let mut values = vec![0.0; n_rows * n_cols];
                dequantise(quant, matrix.bytes, &mut values);
                if is_host {
                    Held::Host(HostMatrix { blocks: Box::new(values), n_rows, n_cols })
                } else {
                    Held::Floats(Tensor::from_vec(values, (n_rows, n_cols), &machine.device)?)
                }
            }
        };
        Ok(Self { held })
    }

    /// Whether products round what they multiply to 8 bits.
    pub(crate) fn rounds(&self) -> bool {
        match &self.held {
            Held::Host(matrix) => matrix.blocks.dtype() != GgmlDType::F32,
            Held::Blocks(_) => true,
            Held::Floats(_) => false,
        }
    }

    /// `x [n, n_cols]` times the matrix: `[n, n_rows]`.
    pub(crate) fn times(&self, x: &Tensor) -> Result<Tensor, Failure> {
        let x = x.contiguous()?;
        Ok(match &self.held {
            Held::Host(matrix) => x.apply_op1_no_bwd(matrix)?,
            Held::Blocks(blocks) => x.apply_op1_no_bwd(&**blocks)?,
            Held::Floats(values) => x.matmul(&values.t()?)?,
        })
    }
}

/// A matrix in the processor's memory.
struct HostMatrix {
    blocks: Box<dyn QuantizedType>,
    n_rows: usize,
    n_cols: usize,
}

impl CustomOp1 for HostMatrix {
    fn name(&self) -> &'static str {
        "product with stored blocks"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (n, n_cols) = layout.shape().dims2()?;
        if n_cols != self.n_cols {
            candle_core::bail!("rows of {n_cols} values for a matrix of {} columns", self.n_cols);
        }
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("rows must lie one after the other")
        };
        let mut out = vec![0.0; n * self.n_rows];
        let x = &storage.as_slice::<f32>()?[start..end];
        self.blocks.matmul_t((n, n_cols, self.n_rows), x, &mut out)?;
        Ok((CpuStorage::F32(out), Shape::from((n, self.n_rows))))
    }
}

/// Bytes at an address that is a multiple of two, as candle's blocks want it: where they lie, or a copy.
struct Aligned<'a> {
    bytes: Cow<'a, [u8]>,
    start: usize,
    len: usize,
}

/// What blocks begin with are half floats.
const BLOCK_ALIGN: usize = 2;

impl<'a> Aligned<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let len = bytes.len();
        if bytes.as_ptr().addr().is_multiple_of(BLOCK_ALIGN) {
            return Self { bytes: Cow::Borrowed(bytes), start: 0, len };
        }
        let mut copy = vec![0; len + 1];
        let start = copy.as_ptr().addr() % BLOCK_ALIGN;
        copy[start..start + len].copy_from_slice(bytes);
        Self { bytes: Cow::Owned(copy), start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests;
