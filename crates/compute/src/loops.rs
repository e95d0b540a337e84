//! Loops over rows that layers of every kind have in common, compiled for each instruction set.

use crate::kernels::Loop;
use crate::ops::{rms_norm, rms_norm_in_place};
use crate::rope::rotate;

/// [`rms_norm`] of one row.
pub(crate) struct Norm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Loop for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        rms_norm(self.x, self.weight, self.eps, self.out);
    }
}

/// `x += out`.
pub(crate) struct Add<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) out: &'a [f32],
}

impl Loop for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (x, out) in self.x.iter_mut().zip(self.out) {
            *x += out;
        }
    }
}

/// Normalises (where there is a norm) and rotates the heads of one row; `stride` values lie from one to the next.
pub(crate) struct Turn<'a> {
    pub(crate) heads: &'a mut [f32],
    pub(crate) dim: usize,
    pub(crate) stride: usize,
    /// Heads that have none are only rotated.
    pub(crate) norm: Option<&'a [f32]>,
    pub(crate) eps: f32,
    pub(crate) table: &'a [f32],
}

impl Loop for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for head in self.heads.chunks_exact_mut(self.stride) {
            if let Some(norm) = self.norm {
                rms_norm_in_place(&mut head[..self.dim], norm, self.eps);
            }
            rotate(&mut head[..self.dim], self.table);
        }
    }
}
