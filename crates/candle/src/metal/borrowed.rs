//! A matrix times some rows with candle's own kernels, which take any type but, through candle's functions, no matrix that begins in
//! the middle of a buffer. Those named `kernel_mul_mv_id_*` choose among matrices by number: here there is one, number 0.
//!
//! They are for experts of types that have no kernel of ours, or whose gate and up differ in type. candle compiles them with fast
//! mathematics, so their bits are the GPU's affair; a row's are the same whatever other rows there are, since each is a threadgroup of
//! its own.

use forerun_model::{MatrixLayout, QuantType};

use super::launch::{Access, Need};

/// One product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrowed {
    matrix: MatrixLayout,
    n_rows: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    kernel: &'static str,
    /// Threads of a threadgroup.
    threads: [usize; 2],
    /// Matrix rows that it takes; it reads all of them.
    rows: usize,
}

/// Bytes that some types keep a table in.
pub const TABLE_BYTES: usize = 128;

impl Borrowed {
    /// `n_rows` rows times `matrix`. `None` when candle has no kernel for its type, when its rows aren't a multiple of what a
    /// threadgroup takes, or when there is nothing to do.
    pub fn new(matrix: MatrixLayout, n_rows: usize) -> Option<Self> {
        let kind = kind(matrix.quant)?;
        let values = n_rows.checked_mul(matrix.n_rows.max(matrix.n_cols))?;
        let fits = values > 0 && u32::try_from(values).is_ok() && matrix.n_rows.is_multiple_of(kind.rows);
        fits.then_some(Self { matrix, n_rows, kind })
    }

    /// The function's name in candle's file of quantised kernels.
    pub fn kernel(&self) -> &'static str {
        self.kind.kernel
    }

    /// What the call needs: the matrix, rows `[n_rows, n_cols]`, products `[n_rows, matrix rows]`, and one zero of 32 bits.
    pub fn buffers(&self) -> [Need; 4] {
        let Self { matrix, n_rows, .. } = self;
        let need = |access, bytes, align| Need { access, bytes, align };
        [
            need(Access::Read, matrix.bytes(), 2),
            need(Access::Read, 4 * n_rows * matrix.n_cols, 16),
            need(Access::Write, 4 * n_rows * matrix.n_rows, 4),
            need(Access::Read, 4, 4),
        ]
    }

    /// Numbers that follow the buffers, 64 bits each: numbers of matrices a row and of rows, bytes between rows' numbers; the
    /// matrix's sizes and strides; the rows'; the products'.
    pub fn numbers(&self) -> [u64; 19] {
        let Self { matrix, n_rows, .. } = self;
        let [rows, cols, out] = [*n_rows, matrix.n_cols, matrix.n_rows].map(|n| n as u64);
        let row_bytes = (matrix.bytes() / matrix.n_rows) as u64;
        let chosen = [1, rows, 0];
        let weights = [cols, out, 1, 0, row_bytes, 0];
        let x = [cols, 1, rows, 1, 4, 4 * cols, 4 * cols];
        let products = [out, 1, 4 * out];
        let mut numbers = [0; 19];
        let all = chosen.into_iter().chain(weights).chain(x).chain(products);
        numbers.iter_mut().zip(all).for_each(|(number, value)| *number = value);
        numbers
    }

    /// Threadgroups.
    pub fn groups(&self) -> [usize; 3] {
        [self.matrix.n_rows / self.kind.rows, 1, self.n_rows]
    }

    /// Threads of each.
    pub fn threads(&self) -> [usize; 2] {
        self.kind.threads
    }
}

/// Sizes of threadgroups: what the kernels' own arithmetic says.
fn kind(quant: QuantType) -> Option<Kind> {
    let (kernel, threads, rows) = match quant {
        QuantType::Q4_0 => ("kernel_mul_mv_id_q4_0_f32", [8, 8], 8),
        QuantType::Q4_1 => ("kernel_mul_mv_id_q4_1_f32", [8, 8], 8),
        QuantType::Q5_0 => ("kernel_mul_mv_id_q5_0_f32", [8, 8], 8),
        QuantType::Q5_1 => ("kernel_mul_mv_id_q5_1_f32", [8, 8], 8),
        QuantType::Q8_0 => ("kernel_mul_mv_id_q8_0_f32", [8, 8], 8),
        QuantType::Q2_K => ("kernel_mul_mv_id_q2_K_f32", [2, 32], 8),
        QuantType::Q3_K => ("kernel_mul_mv_id_q3_K_f32", [2, 32], 4),
        QuantType::Q4_K => ("kernel_mul_mv_id_q4_K_f32", [4, 8], 4),
        QuantType::Q5_K => ("kernel_mul_mv_id_q5_K_f32", [2, 32], 4),
        QuantType::Q6_K => ("kernel_mul_mv_id_q6_K_f32", [2, 32], 2),
        QuantType::IQ4_NL => ("kernel_mul_mv_id_iq4_nl_f32", [2, 32], 4),
        QuantType::IQ4_XS => ("kernel_mul_mv_id_iq4_xs_f32", [2, 32], 4),
        _ => return None,
    };
    Some(Kind { kernel, threads, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_that_a_threadgroup_would_read_past_is_refused() {
        let layout = |quant, n_rows| MatrixLayout::new(quant, n_rows, 256).unwrap();
        assert!(Borrowed::new(layout(QuantType::Q5_0, 12), 1).is_none());
        assert!(Borrowed::new(layout(QuantType::Q5_0, 16), 0).is_none());
        assert!(Borrowed::new(layout(QuantType::F32, 16), 1).is_none());
        let product = Borrowed::new(layout(QuantType::Q5_0, 16), 3).unwrap();
        assert_eq!((product.groups(), product.threads()), ([2, 1, 3], [8, 8]));
        assert_eq!(product.buffers().map(|need| need.bytes), [16 * 8 * 22, 3 * 1024, 3 * 64, 4]);
        let numbers = [1, 3, 0, 256, 16, 1, 0, 176, 0, 256, 1, 3, 1, 4, 1024, 1024, 16, 1, 64];
        assert_eq!(product.numbers(), numbers);
    }
}
