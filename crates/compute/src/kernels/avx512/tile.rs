//! Sixteen matrix rows at a time against many rows of activations. The rows are unpacked into a tile once, with the lanes
//! of a register as matrix rows, so that sums over columns stay within lanes and nothing is reduced. A tile lives in a
//! first-level cache and is used for all activations before the next is made.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx512`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

use super::blocks::{Block, Offsets, Scaling};
use crate::activation::{Operand, Q8Row};
use crate::kernels::Columns;
use crate::tensor::Matrix;

/// Matrix rows of a tile: the 32-bit lanes of a register.
const ROWS: usize = 16;
/// Blocks of a row that are unpacked together.
const BLOCKS: usize = 4;
/// Rows of activations that are multiplied at once: their sums are in registers.
const X: usize = 8;

/// One block of sixteen rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct TileBlock {
    /// Four codes of each row, for each four columns.
    codes: [[u8; 64]; 64],
    /// Scales of 16 bits of each row, for each two groups of 16 columns.
    scales: [[u8; 64]; 8],
    /// Offsets, like scales.
    offsets: [[u8; 64]; 8],
    d: [f32; ROWS],
    dmin: [f32; ROWS],
}

/// The products of all rows.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL, VNNI and F16C; sizes fit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn multiply<B: Block>(matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    let (n_rows, row_bytes) = (matrix.layout.n_rows, matrix.layout.row_bytes());
    let n_blocks = row_bytes / B::BYTES;
    let mut tile = std::mem::MaybeUninit::<[TileBlock; BLOCKS]>::uninit();
    for first in (0..n_rows).step_by(ROWS) {
        let n = ROWS.min(n_rows - first);
        for block in (0..n_blocks).step_by(BLOCKS) {
            let n_tile = BLOCKS.min(n_blocks - block);
            // The next blocks of these rows, or the first of the next.
            let ahead = if block + BLOCKS < n_blocks {
                BLOCKS * B::BYTES
            } else {
                ROWS * row_bytes - block * B::BYTES
            };
            for i in 0..n_tile {
                // Rows beyond the last repeat it.
                let at = |row: usize| {
                    let row = (first + row).min(n_rows - 1);
                    matrix.bytes[row * row_bytes + (block + i) * B::BYTES..].as_ptr()
                };
                // SAFETY: a block lies behind every pointer; the tile has room for `BLOCKS` of sixteen.
                unsafe { fill::<B>(std::array::from_fn(at), ahead, &raw mut (*tile.as_mut_ptr())[i]) };
            }
            // SAFETY: the first `n_tile` blocks were filled.
            let tile = unsafe { std::slice::from_raw_parts(tile.as_ptr().cast::<TileBlock>(), n_tile) };
            let mut start = 0;
            while start < x.len() {
                // SAFETY: the CPU has what these are compiled for.
                start += unsafe {
                    match x.len() - start {
                        X.. => some_rows::<B, X>(tile, block, x, start, (first, n), out),
                        4.. => some_rows::<B, 4>(tile, block, x, start, (first, n), out),
                        2.. => some_rows::<B, 2>(tile, block, x, start, (first, n), out),
                        _ => some_rows::<B, 1>(tile, block, x, start, (first, n), out),
                    }
                };
            }
        }
    }
}

/// Adds the tile's products with `M` rows of activations from `start` on to their results, and returns `M`.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn some_rows<B: Block, const M: usize>(
    tile: &[TileBlock],
    first_block: usize,
    x: Operand<'_>,
    start: usize,
    (column, n): (usize, usize),
    out: &mut Columns<'_>,
) -> usize {
    let mut rows = [Row::NONE; M];
    let mut acc = [_mm512_setzero_ps(); M];
    let lanes = u16::MAX >> (ROWS - n);
    for i in 0..M {
        rows[i] = Row::new(x.codes(start + i), first_block, tile.len());
        if first_block > 0 {
            // SAFETY: `n` results lie there, and no other lane is read.
            acc[i] = unsafe { _mm512_maskz_loadu_ps(lanes, out.row(start + i)[column..column + n].as_ptr()) };
        }
    }
    for (b, tile) in tile.iter().enumerate() {
        // SAFETY: the rows of activations have a block for each of the tile's.
        let (totals, minima) = unsafe { block_sums::<B, M>(tile, &rows, b) };
        // SAFETY: sixteen aligned values lie there.
        let (d, dmin) = unsafe { (_mm512_load_ps(tile.d.as_ptr()), _mm512_load_ps(tile.dmin.as_ptr())) };
        for i in 0..M {
            // SAFETY: a scale for each block lies there.
            let scale = _mm512_set1_ps(unsafe { *rows[i].scales.add(b) });
            let mut product = _mm512_mul_ps(_mm512_mul_ps(d, scale), _mm512_cvtepi32_ps(totals[i]));
            if B::OFFSETS == Offsets::Minima {
                let minima = _mm512_mul_ps(_mm512_mul_ps(dmin, scale), _mm512_cvtepi32_ps(minima[i]));
                product = _mm512_sub_ps(product, minima);
            }
            acc[i] = _mm512_add_ps(acc[i], product);
        }
    }
    for (i, acc) in acc.into_iter().enumerate() {
        // SAFETY: `n` results lie there, and no other lane is written.
        unsafe { _mm512_mask_storeu_ps(out.row(start + i)[column..column + n].as_mut_ptr(), lanes, acc) };
    }
    M
}

/// Where some blocks of a row of activations begin.
#[derive(Clone, Copy)]
struct Row {
    /// Four codes each, 64 per block.
    codes: *const i32,
    /// Two sums each, eight per block.
    sums: *const i32,
    /// One per block.
    scales: *const f32,
}

impl Row {
    const NONE: Self = Self { codes: std::ptr::null(), sums: std::ptr::null(), scales: std::ptr::null() };

    /// `n` blocks from `first` on.
    ///
    /// # Panics
    /// When there are fewer.
    fn new(x: Q8Row<'_>, first: usize, n: usize) -> Self {
        let end = first + n;
        Self {
            codes: x.codes[256 * first..256 * end].as_ptr().cast(),
            sums: x.sums[16 * first..16 * end].as_ptr().cast(),
            scales: x.scales[first..end].as_ptr(),
        }
    }
}

/// The exact sums of one block of sixteen rows with block `b` of `M` rows of activations: products, and minima where
/// there are any.
///
/// # Safety
/// As [`multiply`]; there is a block `b` behind each of `rows`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn block_sums<B: Block, const M: usize>(
    tile: &TileBlock,
    rows: &[Row; M],
    b: usize,
) -> ([__m512i; M], [__m512i; M]) {
    let zero = _mm512_setzero_si512();
    let mut totals = [zero; M];
    for pair in 0..8 {
        let dots = |mut sums: [__m512i; M], quads: usize| {
            for quad in quads..quads + 4 {
                let weights = load(&tile.codes[quad]);
                for i in 0..M {
                    // SAFETY: 64 groups of four codes lie there for each block.
                    let x = unsafe { rows[i].codes.add(64 * b + quad).read_unaligned() };
                    sums[i] = _mm512_dpbusd_epi32(sums[i], weights, _mm512_set1_epi32(x));
                }
            }
            sums
        };
        let first = dots([zero; M], 8 * pair);
        let scales = load(&tile.scales[pair]);
        let low = || _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(scales));
        match B::SCALING {
            Scaling::Pairs => {
                let second = dots([zero; M], 8 * pair + 4);
                for i in 0..M {
                    // Sums of 16 products fit 16 bits.
                    let both =
                        _mm512_mask_blend_epi16(0xAAAA_AAAA, first[i], _mm512_slli_epi32::<16>(second[i]));
                    totals[i] = _mm512_dpwssd_epi32(totals[i], both, scales);
                }
            }
            Scaling::Each => {
                add_scaled(&mut totals, &first, low());
                add_scaled(&mut totals, &dots([zero; M], 8 * pair + 4), _mm512_srai_epi32::<16>(scales));
            }
            Scaling::EachTwo => add_scaled(&mut totals, &dots(first, 8 * pair + 4), low()),
        }
    }
    let mut offsets = if B::OFFSETS == Offsets::OfSum { totals } else { [zero; M] };
    for pair in 0..8 {
        let weights = load(&tile.offsets[pair]);
        for i in 0..M {
            // SAFETY: eight pairs of sums lie there for each block.
            let sums = unsafe { rows[i].sums.add(8 * b + pair).read_unaligned() };
            offsets[i] = _mm512_dpwssd_epi32(offsets[i], weights, _mm512_set1_epi32(sums));
        }
    }
    if B::OFFSETS == Offsets::OfSum { (offsets, [zero; M]) } else { (totals, offsets) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_scaled<const M: usize>(totals: &mut [__m512i; M], sums: &[__m512i; M], scales: __m512i) {
    for i in 0..M {
        totals[i] = _mm512_add_epi32(totals[i], _mm512_mullo_epi32(sums[i], scales));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes lie there; unaligned load.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Unpacks one block of sixteen rows into a tile, and fetches what lies `ahead` bytes further on.
///
/// # Safety
/// As [`multiply`]; a block lies behind each pointer, and room for sixteen behind `tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn fill<B: Block>(blocks: [*const u8; ROWS], ahead: usize, tile: *mut TileBlock) {
    let mut codes = [[_mm512_setzero_si512(); ROWS]; 4];
    let mut scales = [_mm512_setzero_si512(); ROWS];
    let mut factors = [[0_u16; ROWS]; 2];
    for row in 0..ROWS {
        let block = blocks[row];
        for line in 0..B::BYTES.div_ceil(64) {
            // A hint: what lies there doesn't matter.
            _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(ahead + 64 * line).cast());
        }
        // SAFETY: a block lies there, with its factors.
        unsafe {
            let unpacked = B::unpack(block);
            for (codes, unpacked) in codes.iter_mut().zip(unpacked.codes) {
                codes[row] = unpacked;
            }
            scales[row] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(unpacked.scales), unpacked.offsets);
            factors[0][row] = block.add(B::FACTOR_AT).cast::<u16>().read_unaligned();
            if B::OFFSETS == Offsets::Minima {
                factors[1][row] = block.add(B::FACTOR_AT + 2).cast::<u16>().read_unaligned();
            }
        }
    }
    // SAFETY: all stores go to fields of the tile, which are aligned; loads read the arrays above.
    unsafe {
        for (i, codes) in codes.iter().enumerate() {
            transpose(codes, (&raw mut (*tile).codes[16 * i]).cast());
        }
        transpose(&scales, (&raw mut (*tile).scales).cast());
        let f32s = |halves: &[u16; ROWS]| _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()));
        _mm512_store_ps((&raw mut (*tile).d).cast(), f32s(&factors[0]));
        _mm512_store_ps((&raw mut (*tile).dmin).cast(), f32s(&factors[1]));
    }
}

/// Writes lane `i` of register `j` to lane `j` of register `i`.
///
/// # Safety
/// The CPU has AVX-512; sixteen registers of aligned room lie behind `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn transpose(rows: &[__m512i; ROWS], to: *mut __m512i) {
    // Four lanes of each 128 bits come to belong to one column of four rows.
    let mut fours = [_mm512_setzero_si512(); ROWS];
    for i in [0, 4, 8, 12] {
        let (a, b, c, d) = (rows[i], rows[i + 1], rows[i + 2], rows[i + 3]);
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        fours[i] = _mm512_unpacklo_epi64(ab_low, cd_low);
        fours[i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        fours[i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        fours[i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    for i in 0..4 {
        let (a, b, c, d) = (fours[i], fours[4 + i], fours[8 + i], fours[12 + i]);
        let (low, high) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        let (odd_low, odd_high) = (_mm512_shuffle_i32x4::<0xDD>(a, b), _mm512_shuffle_i32x4::<0xDD>(c, d));
        // SAFETY: the caller's promise.
        unsafe {
            _mm512_store_si512(to.add(i), _mm512_shuffle_i32x4::<0x88>(low, high));
            _mm512_store_si512(to.add(4 + i), _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high));
            _mm512_store_si512(to.add(8 + i), _mm512_shuffle_i32x4::<0xDD>(low, high));
            _mm512_store_si512(to.add(12 + i), _mm512_shuffle_i32x4::<0xDD>(odd_low, odd_high));
        }
    }
}
