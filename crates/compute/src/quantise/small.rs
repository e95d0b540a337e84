//! Types with 32 values per block: sixteen blocks are searched at once.

use half::f16;

use super::affine::{self, Search};
use super::lanes::{LANES, Lanes};
use super::levels::{E2M1, Iq4, Whole};
use super::line::{Codes, Line};
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

/// Codes that count from -128, as signed bytes.
fn signed(codes: &[u8; N], out: &mut [u8]) {
    for i in 0..N {
        out[i] = codes[i] ^ 0x80;
    }
}

/// The best scales for blocks of values `d * level`.
macro_rules! symmetric {
    ($name:ident, $levels:ty, $grid:expr, $write:expr) => {
        pub(super) struct $name;

        impl Format<N> for $name {
            const GROUP: usize = 1;
            type Levels = $levels;
            type Scales = Lanes;

            fn search(tile: &Tile<N>) -> Lanes {
                symmetric::half_scales::<$levels, N>(tile, $grid)
            }

            fn line(found: &Lanes) -> Line {
                Line::through_zero(*found)
            }

            fn write(found: &Lanes, unit: Lanes, codes: &Codes<N>, blocks: Blocks<'_>) {
                for (lane, block) in blocks.enumerate() {
                    block[..2].copy_from_slice(&half_bytes(*found, unit, lane));
                    $write(&codes[lane], &mut block[2..]);
                }
            }
        }
    };
}
symmetric!(Q8_0, Whole<-128, 127>, Grid { first: 126.5, step: 0.25, n: 8 }, signed);
symmetric!(Q4_0, Whole<-8, 7>, Grid { first: 5.0, step: 0.15, n: 26 }, nibbles);
symmetric!(Q5_0, Whole<-16, 15>, Grid { first: 12.0, step: 0.2, n: 26 }, fifths);
symmetric!(Iq4Nl, Iq4, IQ4_GRID, nibbles);

/// Where in the table of IQ4_NL the largest value of a run may come to lie.
pub(super) const IQ4_GRID: Grid = Grid { first: 86.0, step: 4.0, n: 16 };

/// Blocks of values `d * code + m`, codes up to `$high`.
macro_rules! affine {
    ($name:ident, $high:literal, $spans:expr, $write:expr) => {
        pub(super) struct $name;

        impl Format<N> for $name {
            const GROUP: usize = 1;
            type Levels = Whole<0, $high>;
            type Scales = Line;

            fn search(tile: &Tile<N>) -> Line {
                const HIGH: i16 = $high;
                let shifts = Grid { first: -0.3, step: 0.3, n: 3 };
                let (high, spans) = (f32::from(HIGH), $spans);
                let search = Search { high, spans, shifts, offset_max: f32::INFINITY };
                affine::half_lines(tile, &search)
            }

            fn line(found: &Line) -> Line {
                *found
            }

            fn write(found: &Line, unit: Lanes, codes: &Codes<N>, blocks: Blocks<'_>) {
                for (lane, block) in blocks.enumerate() {
                    block[..2].copy_from_slice(&half_bytes(found.scale, unit, lane));
                    block[2..4].copy_from_slice(&half_bytes(found.offset, unit, lane));
                    $write(&codes[lane], &mut block[4..]);
                }
            }
        }
    };
}
affine!(Q4_1, 15, Grid { first: 13.8, step: 0.2, n: 18 }, nibbles);
affine!(Q5_1, 31, Grid { first: 29.8, step: 0.2, n: 18 }, fifths);

pub(super) struct Mxfp4;

impl Format<N> for Mxfp4 {
    const GROUP: usize = 1;
    type Levels = E2M1;
    type Scales = (Lanes, [u8; LANES]);

    fn search(tile: &Tile<N>) -> Self::Scales {
        symmetric::power_scales::<E2M1, N>(tile)
    }

    fn line((scale, _): &Self::Scales) -> Line {
        Line::through_zero(*scale)
    }

    fn write((_, exponents): &Self::Scales, _: Lanes, codes: &Codes<N>, blocks: Blocks<'_>) {
        for (lane, block) in blocks.enumerate() {
            block[0] = exponents[lane];
            nibbles(&codes[lane], &mut block[1..]);
        }
    }
}
