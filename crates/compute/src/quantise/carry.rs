//! Encodes sixteen rows side by side, one in each lane, carrying their errors from column to column.

use std::marker::PhantomData;

use super::Format;
use super::feedback::{Block, Carry, STRIP};
use super::lanes::{LANES, Lanes, byte};
use super::levels::Levels;
use super::line::{Codes, Line};
use super::tile::Tile;
use crate::kernels::{Isa, Loop};
use crate::moments::BLOCK_COLS;

/// Rows to encode, their importance, and their blocks.
pub(super) struct Table<'a> {
    pub(super) values: &'a [f32],
    pub(super) importance: &'a [f32],
    pub(super) carry: &'a Carry<'a>,
    pub(super) out: &'a mut [u8],
    pub(super) block_bytes: usize,
    pub(super) row_bytes: usize,
}

impl Table<'_> {
    pub(super) fn encode<F: Format<N>, const N: usize>(self, isa: Isa) {
        let n_cols = self.carry.n_cols();
        let blocks = self.carry.blocks();
        let rows = self.values.chunks(n_cols * LANES).zip(self.out.chunks_mut(self.row_bytes * LANES));
        // A tile is one block of columns, or two.
        let (tile_values, tile_bytes) = (N * LANES, LANES / F::GROUP * self.block_bytes);
        for (values, out) in rows {
            let values: Vec<&[f32]> = values.chunks(n_cols).collect();
            let mut out: Vec<_> = out.chunks_mut(self.row_bytes).collect();
            for (i, blocks) in blocks.chunks(tile_values / BLOCK_COLS).enumerate() {
                let cols = i * tile_values..n_cols.min((i + 1) * tile_values);
                let bytes = i * tile_bytes..self.row_bytes.min((i + 1) * tile_bytes);
                let part: Vec<&[f32]> = values.iter().map(|row| &row[cols.clone()]).collect();
                let found = Found::<F, N>::new(isa, &part, &self.importance[cols]);
                let codes = found.codes(isa, &part, blocks);
                for (i, out) in out.iter_mut().enumerate() {
                    let blocks = out[bytes.clone()].chunks_exact_mut(self.block_bytes);
                    F::write(&found.scales[i], found.units[i], &codes[i], blocks);
                }
            }
        }
    }
}

/// The scales of a tile of each row.
struct Found<F: Format<N>, const N: usize> {
    scales: Vec<F::Scales>,
    units: Vec<Lanes>,
}

impl<F: Format<N>, const N: usize> Found<F, N> {
    fn new(isa: Isa, rows: &[&[f32]], importance: &[f32]) -> Self {
        let mut found = Self { scales: Vec::with_capacity(LANES), units: Vec::with_capacity(LANES) };
        for row in rows {
            let tile = Tile::<N>::new(isa, row, Some(importance), F::GROUP);
            found.scales.push(F::search(&tile));
            found.units.push(tile.unit);
        }
        found
    }

    /// The codes of each row.
    fn codes(&self, isa: Isa, rows: &[&[f32]], blocks: &[(&Block, Vec<[f32; 2]>)]) -> Vec<Codes<N>> {
        let mut all = vec![[[0; N]; LANES]; rows.len()];
        let mut lines = [Line::through_zero(Lanes::ZERO); LANES];
        for (row, (scales, unit)) in self.scales.iter().zip(&self.units).enumerate() {
            let Line { scale, offset } = F::line(scales);
            // Units are powers of two, so these are the same lines.
            let (scale, offset) = (scale * *unit, offset * *unit);
            for (run, line) in lines.iter_mut().enumerate() {
                (line.scale.0[row], line.offset.0[row]) = (scale.0[run], offset.0[run]);
            }
        }
        for (i, (block, gains)) in blocks.iter().enumerate() {
            let first = i * BLOCK_COLS;
            let mut values = [Lanes::ZERO; BLOCK_COLS];
            for (row, of) in rows.iter().enumerate() {
                let of = &of[first..][..gains.len()];
                values.iter_mut().zip(of).for_each(|(values, value)| values.0[row] = *value);
            }
            let (lines, mut codes) = (&lines[first / N..], [[0; LANES]; BLOCK_COLS]);
            let levels = PhantomData::<F::Levels>;
            isa.run(Round::<_, N> { block, gains, values: &values, lines, levels, codes: &mut codes });
            for (row, all) in all.iter_mut().enumerate() {
                let all = &mut all.as_flattened_mut()[first..][..gains.len()];
                all.iter_mut().zip(&codes).for_each(|(code, codes)| *code = codes[row]);
            }
        }
        all
    }
}

/// Rounds a block of sixteen rows. A column's sum takes the columns before it in their order.
struct Round<'a, V, const N: usize> {
    block: &'a Block,
    gains: &'a [[f32; 2]],
    values: &'a [Lanes; BLOCK_COLS],
    /// By run.
    lines: &'a [Line],
    levels: PhantomData<V>,
    codes: &'a mut [[u8; LANES]; BLOCK_COLS],
}

impl<V: Levels, const N: usize> Loop for Round<'_, V, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { block, gains, values, lines, codes, .. } = self;
        let mut errors = [Lanes::ZERO; BLOCK_COLS];
        let mut at = 0;
        for first in (0..gains.len()).step_by(STRIP) {
            let (factors, own) = block.strips[at..][..first + STRIP].split_at(first);
            let mut sums = [Lanes::ZERO; STRIP];
            for (factors, error) in factors.iter().zip(&errors) {
                for j in 0..STRIP {
                    sums[j] = sums[j] + *error * Lanes::splat(factors[j]);
                }
            }
            let line = lines[first / N];
            let (inverse, shift) = line.levels();
            for k in 0..STRIP {
                let [gain, inverse_gain] = gains[first + k].map(Lanes::splat);
                let value = values[first + k];
                let wanted = value + sums[k] * inverse_gain;
                let level = (wanted * inverse + shift).map(V::nearest);
                let error = (value - (line.scale * level + line.offset)) * gain;
                for j in k + 1..STRIP {
                    sums[j] = sums[j] + error * Lanes::splat(own[k][j]);
                }
                errors[first + k] = error;
                codes[first + k] = level.map(V::code).0.map(byte);
            }
            at += first + STRIP;
        }
    }
}
