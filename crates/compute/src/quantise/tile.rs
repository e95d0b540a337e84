//! Sixteen runs of a row, turned so that the same place of all of them lies together.

use super::lanes::{LANES, Lanes, clamp};
use crate::kernels::{Isa, Loop};

/// Weights below this part of a block's largest count as this much: a run without any has even ones then.
const WEIGHT_MIN: f32 = 1.0 / (1u64 << 40) as f32;
/// Smaller blocks are all zero to a half float.
const UNIT_MIN: f32 = 1.0 / (1u64 << 60) as f32;

/// The largest power of two.
const UNIT_MAX: f32 = f32::from_bits(0x7F00_0000);

/// Values and weights of sixteen runs of `N`. A block is one or more runs side by side.
pub(super) struct Tile<const N: usize> {
    /// Values in units of `unit`, run by run.
    pub(super) runs: [[f32; N]; LANES],
    /// The same, turned.
    pub(super) x: [Lanes; N],
    /// Weights, the largest of a block 1.
    pub(super) w: [Lanes; N],
    /// A power of two, the same for all runs of a block, that leaves no value at 2 or above.
    pub(super) unit: Lanes,
    /// Runs of a block.
    pub(super) group: usize,
    /// Runs the loops.
    pub(super) isa: Isa,
}

impl<const N: usize> Tile<N> {
    /// The runs of `values`, at most sixteen; those that lack are zero.
    pub(super) fn new(isa: Isa, values: &[f32], importance: Option<&[f32]>, group: usize) -> Self {
        let mut tile = Self {
            runs: [[0.0; N]; LANES],
            x: [Lanes::ZERO; N],
            w: [Lanes::ONE; N],
            unit: Lanes::ONE,
            group,
            isa,
        };
        isa.run(Load { tile: &mut tile, values, importance });
        tile
    }

    /// The smallest and the largest value of every run.
    #[inline(always)]
    pub(super) fn range(&self) -> (Lanes, Lanes) {
        let first = self.x[0];
        self.x.iter().fold((first, first), |(low, high), x| (low.min(*x), high.max(*x)))
    }
}

struct Load<'a, const N: usize> {
    tile: &'a mut Tile<N>,
    values: &'a [f32],
    importance: Option<&'a [f32]>,
}

impl<const N: usize> Loop for Load<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { tile, values, importance } = self;
        let largest = fill(&mut tile.runs, values, f32::abs).fold_max(tile.group);
        tile.unit = largest.map(|v| {
            // An infinity has this pattern too: it becomes the largest power.
            clamp(f32::from_bits(v.to_bits() & 0x7F80_0000), UNIT_MIN, UNIT_MAX)
        });
        scale(&mut tile.runs, Lanes::ONE / tile.unit);
        turn(&tile.runs, &mut tile.x);
        let Some(importance) = importance else { return };
        let mut runs = [[0.0; N]; LANES];
        let largest = fill(&mut runs, importance, |w| w).fold_max(tile.group);
        turn(&runs, &mut tile.w);
        let inverse = largest.min(Lanes::splat(f32::MAX)).inverse();
        for w in &mut tile.w {
            *w = (*w * inverse).clamp(WEIGHT_MIN, 1.0);
        }
    }
}

/// Copies the runs of `values` and gives the largest of each by `size`, at least 0.
#[inline(always)]
fn fill<const N: usize>(runs: &mut [[f32; N]; LANES], values: &[f32], size: impl Fn(f32) -> f32) -> Lanes {
    let mut largest = Lanes::ZERO;
    for (lane, (run, values)) in runs.iter_mut().zip(values.as_chunks::<N>().0).enumerate() {
        *run = *values;
        let mut max = [0.0; 16];
        for part in values.as_chunks::<16>().0 {
            for i in 0..16 {
                let size = size(part[i]);
                max[i] = if size > max[i] { size } else { max[i] };
            }
        }
        largest.0[lane] = Lanes(max).fold_max(16).0[0];
    }
    largest
}

#[inline(always)]
fn scale<const N: usize>(runs: &mut [[f32; N]; LANES], by: Lanes) {
    for (run, by) in runs.iter_mut().zip(by.0) {
        for v in run {
            *v *= by;
        }
    }
}

#[inline(always)]
fn turn<const N: usize>(runs: &[[f32; N]; LANES], out: &mut [Lanes; N]) {
    for (j, out) in out.iter_mut().enumerate() {
        for (value, run) in out.0.iter_mut().zip(runs) {
            *value = run[j];
        }
    }
}
