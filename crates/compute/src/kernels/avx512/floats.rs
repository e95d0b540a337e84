//! Types that multiply f32 activations: F32, F16 and BF16 as they lie, all others decoded piece by piece.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx512`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

use crate::activation::Operand;
use crate::kernels::{Columns, LANES, decoded, fold};
use crate::tensor::Matrix;

/// Rows of activations that are multiplied with a row of weights at once.
const X_MAX: usize = 4;

/// The products of all rows.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ and VL; sizes fit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) unsafe fn multiply(matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    let (quant, n_cols) = (matrix.layout.quant, matrix.layout.n_cols);
    for r in 0..matrix.layout.n_rows {
        let weights = matrix.row(r);
        let mut start = 0;
        while start < x.len() {
            let m = if x.len() - start >= X_MAX { X_MAX } else { 1 };
            let mut lanes = [[0.0; LANES]; X_MAX];
            let rows: [&[f32]; X_MAX] = std::array::from_fn(|i| x.values(start + i.min(m - 1)));
            decoded(quant, weights, n_cols, |w, at| {
                // SAFETY: as many activations lie there as weights.
                unsafe {
                    if m == 1 {
                        add::<1>(&mut lanes, w, [&rows[0][at..at + w.len()]]);
                    } else {
                        add::<X_MAX>(&mut lanes, w, rows.map(|row| &row[at..at + w.len()]));
                    }
                }
            });
            for (i, lanes) in lanes[..m].iter().enumerate() {
                out.row(start + i)[r] = fold(*lanes);
            }
            start += m;
        }
    }
}

/// Adds products to the lanes of `M` rows.
///
/// # Safety
/// The CPU has AVX-512; each of `x` is as long as `w`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn add<const M: usize>(lanes: &mut [[f32; LANES]; X_MAX], w: &[f32], x: [&[f32]; M]) {
    let mut acc = [[_mm512_setzero_ps(); 2]; M];
    // SAFETY: two registers of sixteen lanes each.
    let load = |values: *const f32| unsafe { [_mm512_loadu_ps(values), _mm512_loadu_ps(values.add(16))] };
    for (acc, lanes) in acc.iter_mut().zip(&*lanes) {
        *acc = load(lanes.as_ptr());
    }
    let whole = w.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let [low, high] = load(w[at..].as_ptr());
        for (acc, x) in acc.iter_mut().zip(x) {
            let [x_low, x_high] = load(x[at..].as_ptr());
            *acc = [
                _mm512_add_ps(acc[0], _mm512_mul_ps(low, x_low)),
                _mm512_add_ps(acc[1], _mm512_mul_ps(high, x_high)),
            ];
        }
    }
    for ((acc, lanes), x) in acc.iter().zip(lanes).zip(x) {
        // SAFETY: as for the loads.
        unsafe {
            _mm512_storeu_ps(lanes.as_mut_ptr(), acc[0]);
            _mm512_storeu_ps(lanes[16..].as_mut_ptr(), acc[1]);
        }
        for ((lane, w), x) in lanes.iter_mut().zip(&w[whole..]).zip(&x[whole..]) {
            *lane += w * x;
        }
    }
}
