//! Sixteen matrix rows at a time against many rows of activations. The rows are unpacked into a tile once, with the lanes
//! of a register as matrix rows, so that sums over columns stay within lanes and nothing is reduced. A tile lives in a
//! first-level cache and is used for all activations before the next is made.

#![expect(
    unsafe_code,
    reason = "CPU intrinsics; only reached through `Avx512`, which proves that the CPU has them"
)]

use std::arch::x86_64::*;

use super::blocks::{Block, Offsets, Scaling, Unpacked};
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
            for i in 0..n_tile {
                // Rows beyond the last repeat it.
                let at = |row: usize| {
                    let row = (first + row).min(n_rows - 1);
                    matrix.bytes[row * row_bytes + (block + i) * B::BYTES..].as_ptr()
                };
                // SAFETY: a block lies behind every pointer; the tile has room for `BLOCKS` of sixteen.
                unsafe { fill::<B>(std::array::from_fn(at), &raw mut (*tile.as_mut_ptr())[i]) };
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
    let mut rows = [Q8Row::default(); M];
    let mut acc = [_mm512_setzero_ps(); M];
    let lanes = u16::MAX >> (ROWS - n);
    for i in 0..M {
        rows[i] = x.codes(start + i);
        if first_block > 0 {
            // SAFETY: `n` results lie there, and no other lane is read.
            acc[i] = unsafe { _mm512_maskz_loadu_ps(lanes, out.row(start + i)[column..column + n].as_ptr()) };
        }
    }
    for (i, tile) in tile.iter().enumerate() {
        let b = first_block + i;
        let mut codes = [std::ptr::null(); M];
        let mut sums = [std::ptr::null(); M];
        for i in 0..M {
            let row: &[i8; 256] = rows[i].codes[256 * b..].first_chunk().expect("256 codes a block");
            codes[i] = row.as_ptr().cast::<i32>();
            let row: &[i16; 16] = rows[i].sums[16 * b..].first_chunk().expect("16 sums a block");
            sums[i] = row.as_ptr().cast::<i32>();
        }
        // SAFETY: 64 groups of four codes, and eight pairs of sums, lie behind the pointers.
        let (totals, minima) = unsafe { block_sums::<B, M>(tile, codes, sums) };
        // SAFETY: sixteen aligned values lie there.
        let (d, dmin) = unsafe { (_mm512_load_ps(tile.d.as_ptr()), _mm512_load_ps(tile.dmin.as_ptr())) };
        for i in 0..M {
            let scale = _mm512_set1_ps(rows[i].scales[b]);
            let mut product = _mm512_mul_ps(_mm512_mul_ps(d, scale), _mm512_cvtepi32_ps(totals[i]));
            if B::OFFSETS == Offsets::Minima {
                let minima = _mm512_mul_ps(_mm512_mul_ps(dmin, scale), _mm512_cvtepi32_ps(minima[i]));
                product = _mm512_sub_ps(product, minima);
            }
            acc[i] = _mm512_add_ps(acc[i], product);
        }
    }
    for i in 0..M {
        // SAFETY: `n` results lie there, and no other lane is written.
        unsafe { _mm512_mask_storeu_ps(out.row(start + i)[column..column + n].as_mut_ptr(), lanes, acc[i]) };
    }
    M
}

/// The exact sums of one block of sixteen rows with `M` rows of activations: products, and minima where there are any.
///
/// # Safety
/// As [`multiply`]; 64 integers lie behind each of `codes`, eight behind each of `sums`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn block_sums<B: Block, const M: usize>(
    tile: &TileBlock,
    codes: [*const i32; M],
    sums: [*const i32; M],
) -> ([__m512i; M], [__m512i; M]) {
    let zero = _mm512_setzero_si512();
    let load = |bytes: &[u8; 64]| {
        // SAFETY: 64 aligned bytes.
        unsafe { _mm512_load_si512(bytes.as_ptr().cast()) }
    };
    // SAFETY: `i` is below what the caller promises.
    let four = |all: *const i32, i: usize| unsafe { _mm512_set1_epi32(all.add(i).read_unaligned()) };
    let mut offsets = [zero; M];
    for pair in 0..8 {
        let weights = load(&tile.offsets[pair]);
        for i in 0..M {
            offsets[i] = _mm512_dpwssd_epi32(offsets[i], weights, four(sums[i], pair));
        }
    }
    let mut totals = if B::OFFSETS == Offsets::OfSum { offsets } else { [zero; M] };
    for pair in 0..8 {
        let scales = load(&tile.scales[pair]);
        let (mut first, mut second) = ([zero; M], [zero; M]);
        for quad in 8 * pair..8 * pair + 8 {
            let weights = load(&tile.codes[quad]);
            let sums = if quad % 8 < 4 || B::SCALING == Scaling::EachTwo { &mut first } else { &mut second };
            for i in 0..M {
                sums[i] = _mm512_dpbusd_epi32(sums[i], weights, four(codes[i], quad));
            }
        }
        let (low, high) =
            (_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(scales)), _mm512_srai_epi32::<16>(scales));
        for i in 0..M {
            totals[i] = match B::SCALING {
                Scaling::Pairs => {
                    // Sums of 16 products fit 16 bits.
                    let both =
                        _mm512_mask_blend_epi16(0xAAAA_AAAA, first[i], _mm512_slli_epi32::<16>(second[i]));
                    _mm512_dpwssd_epi32(totals[i], both, scales)
                }
                Scaling::Each => {
                    let both = _mm512_add_epi32(
                        _mm512_mullo_epi32(first[i], low),
                        _mm512_mullo_epi32(second[i], high),
                    );
                    _mm512_add_epi32(totals[i], both)
                }
                Scaling::EachTwo => _mm512_add_epi32(totals[i], _mm512_mullo_epi32(first[i], low)),
            };
        }
    }
    (totals, offsets)
}

/// Unpacks one block of sixteen rows into a tile.
///
/// # Safety
/// As [`multiply`]; a block lies behind each pointer, and room for sixteen behind `tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn fill<B: Block>(blocks: [*const u8; ROWS], tile: *mut TileBlock) {
    let mut codes = [[_mm512_setzero_si512(); ROWS]; 4];
    let mut scales = [_mm512_setzero_si512(); ROWS];
    let mut factors = [[0_u16; ROWS]; 2];
    for (row, &block) in blocks.iter().enumerate() {
        // SAFETY: a block lies there, with its factors.
        unsafe {
            let Unpacked { codes: [a, b, c, d], scales: low, offsets: high } = B::unpack(block);
            (codes[0][row], codes[1][row], codes[2][row], codes[3][row]) = (a, b, c, d);
            scales[row] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            factors[0][row] = block.add(B::FACTOR_AT).cast::<u16>().read_unaligned();
            if B::OFFSETS == Offsets::Minima {
                factors[1][row] = block.add(B::FACTOR_AT + 2).cast::<u16>().read_unaligned();
            }
        }
    }
    // SAFETY: all stores go to fields of the tile, which are aligned; loads read the arrays above.
    unsafe {
        for (i, codes) in codes.into_iter().enumerate() {
            for (j, four) in transposed(codes).into_iter().enumerate() {
                _mm512_store_si512((&raw mut (*tile).codes[16 * i + j]).cast(), four);
            }
        }
        for (j, pair) in transposed(scales).into_iter().enumerate() {
            let to = if j < 8 { &raw mut (*tile).scales[j] } else { &raw mut (*tile).offsets[j - 8] };
            _mm512_store_si512(to.cast(), pair);
        }
        let f32s = |halves: &[u16; ROWS]| _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()));
        _mm512_store_ps((&raw mut (*tile).d).cast(), f32s(&factors[0]));
        _mm512_store_ps((&raw mut (*tile).dmin).cast(), f32s(&factors[1]));
    }
}

/// Lane `i` of register `j` becomes lane `j` of register `i`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn transposed(rows: [__m512i; ROWS]) -> [__m512i; ROWS] {
    let mut pairs = rows;
    for i in (0..ROWS).step_by(2) {
        (pairs[i], pairs[i + 1]) =
            (_mm512_unpacklo_epi32(rows[i], rows[i + 1]), _mm512_unpackhi_epi32(rows[i], rows[i + 1]));
    }
    // Four lanes of each 128 bits now belong to one column of four rows.
    let mut fours = pairs;
    for i in (0..ROWS).step_by(4) {
        for j in 0..2 {
            let (a, b) = (pairs[i + j], pairs[i + 2 + j]);
            (fours[i + 2 * j], fours[i + 2 * j + 1]) =
                (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        }
    }
    let mut out = rows;
    for i in 0..4 {
        let (a, b, c, d) = (fours[i], fours[4 + i], fours[8 + i], fours[12 + i]);
        let (low, high) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        let (odd_low, odd_high) = (_mm512_shuffle_i32x4::<0xDD>(a, b), _mm512_shuffle_i32x4::<0xDD>(c, d));
        out[i] = _mm512_shuffle_i32x4::<0x88>(low, high);
        out[4 + i] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
        out[8 + i] = _mm512_shuffle_i32x4::<0xDD>(low, high);
        out[12 + i] = _mm512_shuffle_i32x4::<0xDD>(odd_low, odd_high);
    }
    out
}
