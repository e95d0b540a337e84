//! Types with 32 values per block: sixteen blocks are searched at once.

use half::f16;

use super::affine::{self, Search};
use super::lanes::Lanes;
use super::levels::{E2M1, Iq4, Levels, Whole};
use super::symmetric::{self, Grid};
use super::tile::Tile;
use super::{Blocks, Format};

const N: usize = 32;

/// The bytes of a half float that a search has found.
pub(super) fn half_bytes(value: Lanes, unit: Lanes, lane: usize) -> [u8; 2] {
    f16::from_f32(value.0[lane] * unit.0[lane]).to_le_bytes()
}

/// Sixteen nibbles below sixteen others.
fn nibbles(codes: &[u8; N], out: &mut [u8]) {
    for i in 0..16 {
        out[i] = (codes[i] & 15) | (codes[i + 16] << 4);
    }
}

/// The fifth bits of the codes, then the nibbles.
fn fifths(codes: &[u8; N], out: &mut [u8]) {
    let mut bits = 0u32;
    for (i, code) in codes.iter().enumerate() {
        bits |= u32::from(code >> 4) << i;
    }
    out[..4].copy_from_slice(&bits.to_le_bytes());
    nibbles(codes, &mut out[4..]);
}

/// Blocks of values `d * level`.
fn symmetric<V: Levels>(tile: &Tile<N>, grid: Grid, blocks: Blocks<'_>, write: impl Fn(&[u8; N], &mut [u8])) {
    let scale = symmetric::half_scales::<V, N>(tile, grid);
    let codes = symmetric::codes::<V, N>(tile, scale);
    for (lane, block) in blocks.enumerate() {
        block[..2].copy_from_slice(&half_bytes(scale, tile.unit, lane));
        write(&codes[lane], &mut block[2..]);
    }
}

/// Blocks of values `d * code + m`, codes up to `high`.
fn affine(tile: &Tile<N>, high: f32, spans: Grid, blocks: Blocks<'_>, write: impl Fn(&[u8; N], &mut [u8])) {
    let shifts = Grid { first: -0.3, step: 0.3, n: 3 };
    let search = Search { high, spans, shifts, offset_max: f32::INFINITY };
    let line = affine::half_lines(tile, &search);
    let codes = affine::codes(tile, &search, line);
    for (lane, block) in blocks.enumerate() {
        block[..2].copy_from_slice(&half_bytes(line.scale, tile.unit, lane));
        block[2..4].copy_from_slice(&half_bytes(line.offset, tile.unit, lane));
        write(&codes[lane], &mut block[4..]);
    }
}

pub(super) struct Q8_0;

impl Format<N> for Q8_0 {
    const GROUP: usize = 1;

    fn encode(tile: &Tile<N>, blocks: Blocks<'_>) {
        let grid = Grid { first: 126.5, step: 0.25, n: 8 };
        symmetric::<Whole<-128, 127>>(tile, grid, blocks, |codes, out| {
            for i in 0..N {
                // The codes count from -128.
                out[i] = codes[i] ^ 0x80;
            }
        });
    }
}

pub(super) struct Q4_0;

impl Format<N> for Q4_0 {
    const GROUP: usize = 1;

    fn encode(tile: &Tile<N>, blocks: Blocks<'_>) {
        symmetric::<Whole<-8, 7>>(tile, Grid { first: 5.0, step: 0.15, n: 26 }, blocks, nibbles);
    }
}

pub(super) struct Q5_0;

impl Format<N> for Q5_0 {
    const GROUP: usize = 1;

    fn encode(tile: &Tile<N>, blocks: Blocks<'_>) {
        symmetric::<Whole<-16, 15>>(tile, Grid { first: 12.0, step: 0.2, n: 26 }, blocks, fifths);
    }
}

pub(super) struct Iq4Nl;

impl Format<N> for Iq4Nl {
    const GROUP: usize = 1;

    fn encode(tile: &Tile<N>, blocks: Blocks<'_>) {
        symmetric::<Iq4>(tile, IQ4_GRID, blocks, nibbles);
    }
}

/// Where in the table of IQ4_NL the largest value of a run may come to lie.
pub(super) const IQ4_GRID: Grid = Grid { first: 86.0, step: 4.0, n: 16 };

pub(super) struct Q4_1;

impl Format<N> for Q4_1 {
    const GROUP: usize = 1;

    fn encode(tile: &Tile<N>, blocks: Blocks<'_>) {
        affine(tile, 15.0, Grid { first: 13.8, step: 0.2, n: 18 }, blocks, nibbles);
    }
}

pub(super) struct Q5_1;

impl Format<N> for Q5_1 {
    const GROUP: usize = 1;

    fn encode(tile: &Tile<N>, blocks: Blocks<'_>) {
        affine(tile, 31.0, Grid { first: 29.8, step: 0.2, n: 18 }, blocks, fifths);
    }
}

pub(super) struct Mxfp4;

impl Format<N> for Mxfp4 {
    const GROUP: usize = 1;

    fn encode(tile: &Tile<N>, blocks: Blocks<'_>) {
        let (scale, exponents) = symmetric::power_scales::<E2M1, N>(tile);
        let codes = symmetric::codes::<E2M1, N>(tile, scale);
        for (lane, block) in blocks.enumerate() {
            block[0] = exponents[lane];
            nibbles(&codes[lane], &mut block[1..]);
        }
    }
}
