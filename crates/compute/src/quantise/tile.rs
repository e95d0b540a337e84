//! Sixteen runs of a row, turned so that the same place of all of them lies together.

use super::lanes::{LANES, Lanes};

/// Weights below this part of a block's largest count as this much: a run without any has even ones then.
const WEIGHT_MIN: f32 = 1.0 / 1_048_576.0;
/// Smaller blocks are all zero to a half float.
const UNIT_MIN: f32 = 1.0 / (1u64 << 60) as f32;

/// Values and weights of sixteen runs of `N`. A block is one or more runs side by side.
pub(super) struct Tile<const N: usize> {
    /// Values in units of `unit`.
    pub(super) x: [Lanes; N],
    /// Weights, the largest of a block 1.
    pub(super) w: [Lanes; N],
    /// A power of two, the same for all runs of a block, that leaves no value at 2 or above.
    pub(super) unit: Lanes,
    /// Runs of a block.
    pub(super) group: usize,
}

impl<const N: usize> Tile<N> {
    /// The runs of `values`, at most sixteen; those that lack are zero.
    #[inline(always)]
    pub(super) fn load(values: &[f32], importance: Option<&[f32]>, group: usize) -> Self {
        let mut tile = Self { x: turned(values), w: [Lanes::ONE; N], unit: Lanes::ONE, group };
        let largest = tile.x.iter().fold(Lanes::ZERO, |max, x| max.max(x.abs())).fold_max(group);
        tile.unit = largest.map(|v| {
            let power = f32::from_bits(v.to_bits() & 0x7F80_0000);
            // An infinity has this pattern too: it becomes the largest power.
            power.clamp(UNIT_MIN, f32::from_bits(0x7F00_0000))
        });
        let inverse = Lanes::ONE / tile.unit;
        for x in &mut tile.x {
            *x = *x * inverse;
        }
        if let Some(importance) = importance {
            tile.weigh(importance);
        }
        tile
    }

    #[inline(always)]
    fn weigh(&mut self, importance: &[f32]) {
        self.w = turned(importance);
        for w in &mut self.w {
            *w = w.map(|w| if w > 0.0 && w < f32::INFINITY { w } else { 0.0 });
        }
        let largest = self.w.iter().fold(Lanes::ZERO, |max, w| max.max(*w)).fold_max(self.group);
        for w in &mut self.w {
            let relative = *w / largest.where_greater(largest, Lanes::ZERO, Lanes::ONE);
            let even = Lanes::splat(WEIGHT_MIN);
            *w = relative.max(even).where_greater(largest, Lanes::ZERO, Lanes::ONE);
        }
    }

    /// The smallest and the largest value of every run.
    #[inline(always)]
    pub(super) fn range(&self) -> (Lanes, Lanes) {
        let first = self.x[0];
        self.x.iter().fold((first, first), |(low, high), x| (low.min(*x), high.max(*x)))
    }
}

#[inline(always)]
fn turned<const N: usize>(values: &[f32]) -> [Lanes; N] {
    let mut out = [Lanes::ZERO; N];
    for (lane, run) in values.as_chunks::<N>().0.iter().enumerate().take(LANES) {
        for j in 0..N {
            out[j].0[lane] = run[j];
        }
    }
    out
}
