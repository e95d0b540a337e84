//! How a run's values follow from its codes, and the nearest codes.

use std::marker::PhantomData;

use super::lanes::{LANES, Lanes, byte};
use super::levels::Levels;
use super::tile::Tile;
use crate::kernels::Loop;

/// Values are `scale * level + offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) scale: Lanes,
    pub(super) offset: Lanes,
}

impl Line {
    /// Without an offset.
    #[inline(always)]
    pub(super) fn through_zero(scale: Lanes) -> Self {
        Self { scale, offset: Lanes::ZERO }
    }

    /// `self` where `a > b`, else `other`.
    #[inline(always)]
    pub(super) fn where_greater(self, a: Lanes, b: Lanes, other: Self) -> Self {
        Self {
            scale: self.scale.where_greater(a, b, other.scale),
            offset: self.offset.where_greater(a, b, other.offset),
        }
    }

    #[inline(always)]
    pub(super) fn to_halves(self, unit: Lanes) -> Self {
        Self { scale: self.scale.to_half(unit), offset: self.offset.to_half(unit) }
    }

    /// What values are to be multiplied with, and what is to be added then, for levels that are not yet rounded.
    #[inline(always)]
    pub(super) fn levels(self) -> (Lanes, Lanes) {
        let inverse = self.scale.inverse();
        (inverse, -self.offset * inverse)
    }
}

/// The codes of every run of a tile.
pub(super) type Codes<const N: usize> = [[u8; N]; LANES];

/// The nearest codes of every run under its line.
pub(super) fn codes<V: Levels, const N: usize>(tile: &Tile<N>, line: Line) -> Codes<N> {
    tile.isa.run(Nearest::<V, N> { tile, line, levels: PhantomData })
}

struct Nearest<'a, V, const N: usize> {
    tile: &'a Tile<N>,
    line: Line,
    levels: PhantomData<V>,
}

impl<V: Levels, const N: usize> Loop for Nearest<'_, V, N> {
    type Output = Codes<N>;

    #[inline(always)]
    fn run(self) -> Codes<N> {
        let (inverse, shift) = self.line.levels();
        let mut codes = [[0; N]; LANES];
        let lines = inverse.0.into_iter().zip(shift.0);
        for ((codes, run), (inverse, shift)) in codes.iter_mut().zip(&self.tile.runs).zip(lines) {
            for (code, x) in codes.iter_mut().zip(run) {
                *code = byte(V::code(V::nearest(x * inverse + shift)));
            }
        }
        codes
    }
}
