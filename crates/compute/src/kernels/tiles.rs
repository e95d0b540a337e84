//! Products in tiles: a block of weights is unpacked once for several rows of activations.
//!
//! A tile is [`TILE`] results, of 8 matrix rows and one row of activations up to one matrix row and 8 rows of
//! activations. Each result is one lane of the f32 sums, so a lane's order of sums is the row's own, whatever the tile.

use std::ops::Range;

use super::Columns;
use super::isa::Loop;
use crate::activation::{Operand, Q8Row};
use crate::tensor::Matrix;

/// Results of a tile.
pub(super) const TILE: usize = 8;
/// Matrix rows that stay in a cache near the core while all rows of activations pass.
const CACHED_ROWS: usize = 64;
/// For types whose products need no sums of codes.
const NO_SUMS: [i16; 16] = [0; 16];

/// A type's blocks of `LEN` weights in `BYTES` bytes on one instruction set. Every method must be `#[inline(always)]`.
pub(super) trait Block<const BYTES: usize, const LEN: usize>: Copy {
    /// The integer sums of a tile.
    type Sums;
    /// A tile's results.
    type Lanes: Copy;

    /// Where a block has its scale, a half float.
    const SCALE_AT: usize;
    /// Where it has the scale of its minima, if it has them.
    const MIN_SCALE_AT: Option<usize> = None;
    /// Whether tiles have at least two matrix rows.
    const PAIRS: bool = false;

    /// All results zero.
    fn zero(self) -> Self::Lanes;

    /// The products of a block of each of `R` rows with the same columns of the first `n` of `N` rows of activations;
    /// result `r * N + i` is that of row `r` and activations `i`.
    fn sums<const R: usize, const N: usize>(
        self,
        rows: &[&[u8; BYTES]; R],
        x: Activations<'_, LEN, N>,
        n: usize,
    ) -> Self::Sums;

    /// Adds a block to every result, in the order of `BlockSum::add_to`.
    fn add(self, lanes: Self::Lanes, sums: Self::Sums, scales: &Scales) -> Self::Lanes;

    /// The results.
    fn results(self, lanes: Self::Lanes) -> [f32; TILE];

    /// Asks for the line of memory at `address`, which need not be valid, ahead of use.
    fn prefetch(self, address: *const u8);
}

/// How a block is multiplied with one row of activations after the other. Every method must be `#[inline(always)]`.
pub(super) trait Dot<const BYTES: usize, const LEN: usize>: Copy {
    /// An unpacked block.
    type Weights;
    /// The integer sums of one block and one row of activations, not yet added up to one number each.
    type Sum: Copy;

    /// Zero.
    fn no_sum(self) -> Self::Sum;

    /// Unpacks a block.
    fn unpack(self, block: &[u8; BYTES]) -> Self::Weights;

    /// Multiplies a block with a group of codes.
    fn dot(self, weights: &Self::Weights, x: Group<'_, LEN>) -> Self::Sum;

    /// The sums of a tile, as [`Block::sums`] has them.
    #[inline(always)]
    fn dots<const R: usize, const N: usize>(
        self,
        rows: &[&[u8; BYTES]; R],
        x: Activations<'_, LEN, N>,
        n: usize,
    ) -> [Self::Sum; TILE] {
        let mut sums = [self.no_sum(); TILE];
        for r in 0..R {
            let weights = self.unpack(rows[r]);
            for i in 0..n {
                sums[r * N + i] = self.dot(&weights, x.get(i));
            }
        }
        sums
    }
}

/// What the integer sums of a tile are multiplied with.
pub(super) struct Scales {
    /// The blocks' scales, as half floats.
    pub(super) d: [u16; TILE],
    /// The scales of their minima.
    pub(super) dmin: [u16; TILE],
    /// The activations' scales.
    pub(super) x: [f32; TILE],
}

/// A whole product of quantised weights, which [`check_sizes`](super::check_sizes) has passed.
pub(super) struct Tiles<'a, 'b, B, const BYTES: usize, const LEN: usize> {
    pub(super) block: B,
    pub(super) matrix: Matrix<'a>,
    pub(super) x: Operand<'a>,
    pub(super) out: &'a mut Columns<'b>,
}

impl<B: Block<BYTES, LEN>, const BYTES: usize, const LEN: usize> Loop for Tiles<'_, '_, B, BYTES, LEN> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { block, matrix, x, out } = self;
        let layout = matrix.layout;
        let (blocks, rest) = matrix.bytes.as_chunks::<BYTES>();
        assert!(rest.is_empty() && blocks.len() * LEN == layout.n_rows * layout.n_cols, "whole blocks");
        let weights = Blocks { blocks, per_row: layout.n_cols / LEN, n_rows: layout.n_rows };
        for start in (0..layout.n_rows).step_by(CACHED_ROWS) {
            let rows = start..layout.n_rows.min(start + CACHED_ROWS);
            let n_max = if B::PAIRS { TILE / 2 } else { TILE };
            for first in (0..x.len()).step_by(n_max) {
                match n_max.min(x.len() - first) {
                    1 => tiles::<B, BYTES, LEN, 8, 1>(block, weights, rows.clone(), x, first, out),
                    2 => tiles::<B, BYTES, LEN, 4, 2>(block, weights, rows.clone(), x, first, out),
                    3 | 4 => tiles::<B, BYTES, LEN, 2, 4>(block, weights, rows.clone(), x, first, out),
                    _ => tiles::<B, BYTES, LEN, 1, 8>(block, weights, rows.clone(), x, first, out),
                }
            }
        }
    }
}

/// A matrix as blocks.
#[derive(Clone, Copy)]
struct Blocks<'a, const BYTES: usize> {
    blocks: &'a [[u8; BYTES]],
    per_row: usize,
    n_rows: usize,
}

/// The codes of one row of activations that one block is multiplied with.
#[derive(Clone, Copy)]
pub(super) struct Group<'a, const LEN: usize> {
    pub(super) codes: &'a [i8; LEN],
    /// The sums of 16 codes each; zeros for types that need none.
    pub(super) sums: &'a [i16; 16],
}

/// The same columns of `N` rows of activations.
#[derive(Clone, Copy)]
pub(super) struct Activations<'a, const LEN: usize, const N: usize> {
    rows: &'a [Groups<'a, LEN>; N],
    b: usize,
    /// The first and the last row's, looked up already: of one or two rows these are all.
    ends: [Group<'a, LEN>; 2],
}

impl<'a, const LEN: usize, const N: usize> Activations<'a, LEN, N> {
    #[inline(always)]
    fn new(rows: &'a [Groups<'a, LEN>; N], b: usize) -> Self {
        Self { rows, b, ends: [rows[0].get(b), rows[N - 1].get(b)] }
    }

    /// Row `i`'s.
    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> Group<'a, LEN> {
        if N <= 2 { self.ends[i] } else { self.rows[i].get(self.b) }
    }
}

/// One row of activations as groups.
#[derive(Clone, Copy)]
struct Groups<'a, const LEN: usize> {
    codes: &'a [[i8; LEN]],
    sums: &'a [[i16; 16]],
    scales: &'a [f32],
}

impl<'a, const LEN: usize> Groups<'a, LEN> {
    #[inline(always)]
    fn new(row: Q8Row<'a>, n: usize) -> Self {
        let (codes, sums) = (row.codes.as_chunks().0, row.sums.as_chunks().0);
        assert!(codes.len() == n && row.scales.len() == n, "activations of the weights' length");
        assert!(sums.len() == if LEN == 256 { n } else { 0 }, "sums of every group");
        Self { codes, sums, scales: row.scales }
    }

    #[inline(always)]
    fn get(&self, b: usize) -> Group<'a, LEN> {
        Group { codes: &self.codes[b], sums: if LEN == 256 { &self.sums[b] } else { &NO_SUMS } }
    }
}

/// Products of some matrix rows, `R` at a time, with `N` rows of activations or what is left of them from `first` on.
#[inline(always)]
fn tiles<B: Block<BYTES, LEN>, const BYTES: usize, const LEN: usize, const R: usize, const N: usize>(
    block: B,
    weights: Blocks<'_, BYTES>,
    rows: Range<usize>,
    x: Operand<'_>,
    first: usize,
    out: &mut Columns<'_>,
) {
    const { assert!(R * N == TILE) };
    // 1 and 2 are never a rest of more, and a constant lets their loops be unrolled.
    let n = if N <= 2 { N } else { N.min(x.len() - first) };
    let mut groups = [Groups { codes: &[], sums: &[], scales: &[] }; N];
    for (i, groups) in groups.iter_mut().enumerate() {
        *groups = Groups::new(x.codes(first + i.min(n - 1)), weights.per_row);
    }
    for row in rows.clone().step_by(R) {
        let results = tile::<B, BYTES, LEN, R, N>(block, weights, row, &groups, n);
        for r in 0..R.min(rows.end - row) {
            for i in 0..n {
                out.row(first + i)[row + r] = results[r * N + i];
            }
        }
    }
}

/// Products of `R` matrix rows, from `row` on, with the first `n` of `N` rows of activations.
#[inline(always)]
fn tile<B: Block<BYTES, LEN>, const BYTES: usize, const LEN: usize, const R: usize, const N: usize>(
    block: B,
    weights: Blocks<'_, BYTES>,
    row: usize,
    groups: &[Groups<'_, LEN>; N],
    n: usize,
) -> [f32; TILE] {
    let Blocks { blocks, per_row, n_rows } = weights;
    // Rows beyond the last are the last again, and dropped.
    let mut rows: [&[[u8; BYTES]]; R] = [&[]; R];
    for (r, blocks_of_row) in rows.iter_mut().enumerate() {
        let start = (row + r).min(n_rows - 1) * per_row;
        *blocks_of_row = &blocks[start..start + per_row];
    }
    let mut lanes = block.zero();
    for b in 0..per_row {
        let (of_rows, x) = (blocks_at(&rows, b), Activations::new(groups, b));
        for of_row in of_rows {
            for line in (0..BYTES).step_by(64) {
                block.prefetch(of_row.as_ptr().wrapping_add(R * per_row * BYTES + line));
            }
        }
        let sums = block.sums(&of_rows, x, n);
        let scales = scales_at::<B, BYTES, LEN, R, N>(&of_rows, groups, b);
        lanes = block.add(lanes, sums, &scales);
    }
    block.results(lanes)
}

/// Block `b` of every row.
#[inline(always)]
fn blocks_at<'a, const BYTES: usize, const R: usize>(
    rows: &[&'a [[u8; BYTES]]; R],
    b: usize,
) -> [&'a [u8; BYTES]; R] {
    let mut at = [&rows[0][b]; R];
    for (r, at) in at.iter_mut().enumerate() {
        *at = &rows[r][b];
    }
    at
}

/// The scales of block `b` of every row and group `b` of every row of activations.
#[inline(always)]
fn scales_at<B: Block<BYTES, LEN>, const BYTES: usize, const LEN: usize, const R: usize, const N: usize>(
    blocks: &[&[u8; BYTES]; R],
    groups: &[Groups<'_, LEN>; N],
    b: usize,
) -> Scales {
    let mut scales = Scales { d: [0; TILE], dmin: [0; TILE], x: [0.0; TILE] };
    for lane in 0..TILE {
        scales.d[lane] = half_bits(blocks[lane / N], B::SCALE_AT);
        if let Some(at) = B::MIN_SCALE_AT {
            scales.dmin[lane] = half_bits(blocks[lane / N], at);
        }
        scales.x[lane] = groups[lane % N].scales[b];
    }
    scales
}

#[inline(always)]
fn half_bits<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The `N` bytes of a block from `at` on.
#[inline(always)]
pub(super) fn bytes_at<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("inside the block")
}
