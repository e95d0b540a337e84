//! Types with 256 values per block, in runs of 16 or 32 that have whole scales of their own.

use super::affine::{self, Paired, Search};
use super::lanes::{LANES, Lanes, byte};
use super::levels::{Iq4, Whole};
use super::line::{Codes, Line};
use super::small::{IQ4_GRID, half_bytes};
use super::symmetric::{self, Grid, Scaled};
use super::tile::Tile;
use super::{Blocks, Format};

/// Values per block.
const BLOCK: usize = 256;

/// The codes of the `b`-th block.
fn block_codes<const N: usize>(codes: &[[u8; N]; LANES], b: usize) -> &[u8; BLOCK] {
    codes.as_flattened()[b * BLOCK..].first_chunk().expect("a tile is whole blocks")
}

/// Whole numbers of the `b`-th block's runs, each plus `bias`.
fn whole<const RUNS: usize>(of: Lanes, b: usize, bias: f32) -> [u8; RUNS] {
    let bytes = (of + Lanes::splat(bias)).0.map(byte);
    let mut out = [0; RUNS];
    out.copy_from_slice(&bytes[b * RUNS..(b + 1) * RUNS]);
    out
}

/// Pairs of bits: 128 codes at a time, 32 bytes hold 32 codes of each quarter, the first lowest.
fn pairs(codes: &[u8; BLOCK], shift: u32, out: &mut [u8]) {
    for half in 0..2 {
        for i in 0..32 {
            let at = |quarter: usize| codes[half * 128 + quarter * 32 + i] >> shift & 3;
            out[half * 32 + i] = at(0) | at(1) << 2 | at(2) << 4 | at(3) << 6;
        }
    }
}

/// Bit `shift` of the codes: bit `j` of byte `i` is of code `32 j + i`.
fn bits(codes: &[u8; BLOCK], shift: u32, out: &mut [u8]) {
    for i in 0..32 {
        let mut byte = 0;
        for j in 0..8 {
            byte |= (codes[32 * j + i] >> shift & 1) << j;
        }
        out[i] = byte;
    }
}

/// Nibbles: 64 codes at a time, 32 below 32 others.
fn nibbles(codes: &[u8; BLOCK], out: &mut [u8]) {
    for quarter in 0..4 {
        for i in 0..32 {
            let at = |half: usize| codes[quarter * 64 + half * 32 + i] & 15;
            out[quarter * 32 + i] = at(0) | at(1) << 4;
        }
    }
}

pub(super) struct Q2K;

impl Format<16> for Q2K {
    const GROUP: usize = 16;
    type Levels = Whole<0, 3>;
    type Scales = Paired;

    fn search(tile: &Tile<16>) -> Paired {
        let spans = Grid { first: 4.05, step: -0.15, n: 16 };
        let shifts = Grid { first: -0.4, step: 0.2, n: 5 };
        let search = Search { high: 3.0, spans, shifts, offset_max: 0.0 };
        let grid = Grid { first: 15.5, step: -0.5, n: 10 };
        affine::block_lines(tile, &search, (grid, grid), 15.0)
    }

    fn line(found: &Paired) -> Line {
        found.line()
    }

    fn write(found: &Paired, unit: Lanes, codes: &Codes<16>, blocks: Blocks<'_>) {
        let codes = block_codes(codes, 0);
        for block in blocks {
            let (scales, mins) = (whole::<16>(found.k, 0, 0.0), whole::<16>(found.m, 0, 0.0));
            for i in 0..16 {
                block[i] = scales[i] | mins[i] << 4;
            }
            pairs(codes, 0, &mut block[16..80]);
            block[80..82].copy_from_slice(&half_bytes(found.d, unit, 0));
            block[82..84].copy_from_slice(&half_bytes(found.e, unit, 0));
        }
    }
}

pub(super) struct Q3K;

impl Format<16> for Q3K {
    const GROUP: usize = 16;
    type Levels = Whole<-4, 3>;
    type Scales = Scaled;

    fn search(tile: &Tile<16>) -> Scaled {
        let runs = Grid { first: 2.0, step: 0.125, n: 22 };
        let grid = Grid { first: -33.0, step: 0.75, n: 16 };
        symmetric::block_scales::<Whole<-4, 3>, 16>(tile, runs, grid, (-32.0, 31.0))
    }

    fn line(found: &Scaled) -> Line {
        found.line()
    }

    fn write(found: &Scaled, unit: Lanes, codes: &Codes<16>, blocks: Blocks<'_>) {
        let codes = block_codes(codes, 0);
        for block in blocks {
            bits(codes, 2, &mut block[..32]);
            pairs(codes, 0, &mut block[32..96]);
            let scales = whole::<16>(found.k, 0, 32.0);
            for i in 0..8 {
                block[96 + i] = (scales[i] & 15) | (scales[i + 8] & 15) << 4;
            }
            for i in 0..4 {
                let at = |quarter: usize| scales[4 * quarter + i] >> 4;
                block[104 + i] = at(0) | at(1) << 2 | at(2) << 4 | at(3) << 6;
            }
            block[108..110].copy_from_slice(&half_bytes(found.d, unit, 0));
        }
    }
}

/// Finds the lines of two blocks of Q4_K or Q5_K.
fn lines_k4(tile: &Tile<32>, search: &Search) -> Paired {
    let grid = Grid { first: 63.0, step: -2.0, n: 4 };
    affine::block_lines(tile, search, (grid, grid), 63.0)
}

/// The half floats, then the 8 scales and the 8 minima in 12 bytes.
fn write_scales_k4(found: &Paired, unit: Lanes, b: usize, block: &mut [u8]) {
    block[..2].copy_from_slice(&half_bytes(found.d, unit, b * 8));
    block[2..4].copy_from_slice(&half_bytes(found.e, unit, b * 8));
    let (scales, mins) = (whole::<8>(found.k, b, 0.0), whole::<8>(found.m, b, 0.0));
    for i in 0..4 {
        block[4 + i] = scales[i] | scales[i + 4] >> 4 << 6;
        block[8 + i] = mins[i] | mins[i + 4] >> 4 << 6;
        block[12 + i] = (scales[i + 4] & 15) | (mins[i + 4] & 15) << 4;
    }
}

pub(super) struct Q4K;

impl Format<32> for Q4K {
    const GROUP: usize = 8;
    type Levels = Whole<0, 15>;
    type Scales = Paired;

    fn search(tile: &Tile<32>) -> Paired {
        let spans = Grid { first: 16.4, step: -0.2, n: 16 };
        let shifts = Grid { first: -0.3, step: 0.3, n: 3 };
        let search = Search { high: 15.0, spans, shifts, offset_max: 0.0 };
        lines_k4(tile, &search)
    }

    fn line(found: &Paired) -> Line {
        found.line()
    }

    fn write(found: &Paired, unit: Lanes, codes: &Codes<32>, blocks: Blocks<'_>) {
        for (b, block) in blocks.enumerate() {
            write_scales_k4(found, unit, b, block);
            nibbles(block_codes(codes, b), &mut block[16..144]);
        }
    }
}

pub(super) struct Q5K;

impl Format<32> for Q5K {
    const GROUP: usize = 8;
    type Levels = Whole<0, 31>;
    type Scales = Paired;

    fn search(tile: &Tile<32>) -> Paired {
        let spans = Grid { first: 32.6, step: -0.2, n: 16 };
        let shifts = Grid { first: -0.3, step: 0.3, n: 3 };
        let search = Search { high: 31.0, spans, shifts, offset_max: 0.0 };
        lines_k4(tile, &search)
    }

    fn line(found: &Paired) -> Line {
        found.line()
    }

    fn write(found: &Paired, unit: Lanes, codes: &Codes<32>, blocks: Blocks<'_>) {
        for (b, block) in blocks.enumerate() {
            write_scales_k4(found, unit, b, block);
            let codes = block_codes(codes, b);
            bits(codes, 4, &mut block[16..48]);
            nibbles(codes, &mut block[48..176]);
        }
    }
}

pub(super) struct Q6K;

impl Format<16> for Q6K {
    const GROUP: usize = 16;
    type Levels = Whole<-32, 31>;
    type Scales = Scaled;

    fn search(tile: &Tile<16>) -> Scaled {
        let runs = Grid { first: 29.0, step: 0.2, n: 20 };
        let grid = Grid { first: -128.0, step: 2.0, n: 6 };
        symmetric::block_scales::<Whole<-32, 31>, 16>(tile, runs, grid, (-128.0, 127.0))
    }

    fn line(found: &Scaled) -> Line {
        found.line()
    }

    fn write(found: &Scaled, unit: Lanes, codes: &Codes<16>, blocks: Blocks<'_>) {
        let codes = block_codes(codes, 0);
        for block in blocks {
            // Unlike the nibbles of Q4_K: 128 codes at a time, 64 below 64 others.
            for half in 0..2 {
                for i in 0..64 {
                    let at = |odd: usize| codes[half * 128 + odd * 64 + i] & 15;
                    block[half * 64 + i] = at(0) | at(1) << 4;
                }
            }
            pairs(codes, 4, &mut block[128..192]);
            // Two's complement: 128 more, and then the upper bit the other way.
            let scales = whole::<16>(found.k, 0, 128.0);
            for i in 0..16 {
                block[192 + i] = scales[i] ^ 0x80;
            }
            block[208..210].copy_from_slice(&half_bytes(found.d, unit, 0));
        }
    }
}

pub(super) struct Iq4Xs;

impl Format<32> for Iq4Xs {
    const GROUP: usize = 8;
    type Levels = Iq4;
    type Scales = Scaled;

    fn search(tile: &Tile<32>) -> Scaled {
        let grid = Grid { first: -33.0, step: 1.0, n: 6 };
        symmetric::block_scales::<Iq4, 32>(tile, IQ4_GRID, grid, (-32.0, 31.0))
    }

    fn line(found: &Scaled) -> Line {
        found.line()
    }

    fn write(found: &Scaled, unit: Lanes, codes: &Codes<32>, blocks: Blocks<'_>) {
        for (b, block) in blocks.enumerate() {
            block[..2].copy_from_slice(&half_bytes(found.d, unit, b * 8));
            let scales = whole::<8>(found.k, b, 32.0);
            let mut upper = 0u16;
            for (i, scale) in scales.iter().enumerate() {
                upper |= u16::from(scale >> 4) << (2 * i);
            }
            block[2..4].copy_from_slice(&upper.to_le_bytes());
            for i in 0..4 {
                block[4 + i] = (scales[2 * i] & 15) | scales[2 * i + 1] << 4;
            }
            let codes = block_codes(codes, b);
            for run in 0..8 {
                for i in 0..16 {
                    block[8 + run * 16 + i] = codes[run * 32 + i] | codes[run * 32 + 16 + i] << 4;
                }
            }
        }
    }
}
