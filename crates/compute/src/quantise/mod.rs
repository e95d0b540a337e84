//! From f32 values to blocks: the opposite of [`dequant`](crate::dequant), with care for the columns that matter.
//!
//! What is made small is `sum w (x - y)^2`, over a block's values `x`, what they decode to `y`, and the importance `w`
//! of their columns. A block is one run of values with one scale (and offset), or several runs whose scales (and
//! offsets) are whole numbers under the block's half floats:
//!
//! 1. Each run by itself: a grid of scales (and shifts) gives codes, codes give the scale (and offset) by weighted least
//!    squares, the best pair of both is kept and fitted again (`symmetric`, `affine`).
//! 2. The block: a grid of half floats, the runs' scales rounded to whole numbers under each, codes chosen anew, and
//!    the error that is then left decides.
//! 3. By turns, while the error falls: the half floats by least squares with codes and whole numbers held, then the
//!    neighbours of each run's whole numbers, codes chosen anew under each.
//!
//! Errors are always those under the rounded scales that the block will hold. Sixteen runs are searched side by side,
//! one in each lane (`lanes`, `tile`), so that no sum crosses lanes but a block's fold.
//!
//! Codes are the nearest ones, or, where it is known how columns go together, those that make up for errors of the columns
//! before (`feedback`, `carry`).
//!
//! Weights are the importance alone, not times `sqrt(mean x^2 + x^2)` as llama.cpp has it: with the same search the two
//! can't be told apart by what they lose, so the plainer one stays. Mean divergence from the BF16 model over 24 windows
//! of pico's held-out text, alone and times the root: 0.0537 and 0.0547 +- 0.0015 as Q4_K_M (llama.cpp's file: 0.0608),
//! 0.1289 and 0.1287 +- 0.003 with Q3_K experts (llama.cpp's: 0.1294).

mod affine;
mod carry;
mod feedback;
mod k;
mod lanes;
mod levels;
mod line;
mod small;
mod symmetric;
mod tile;

use std::slice::ChunksExactMut;

use forerun_model::QuantType;
use half::{bf16, f16};

use crate::kernels::Isa;
use carry::Table;
pub use feedback::{Carry, Feedback};
use lanes::{LANES, Lanes};
use levels::Levels;
use line::{Codes, Line};
use tile::Tile;

/// The types that [`quantise`] can write, for an error message.
pub const ENCODABLE: &str =
    "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4";

/// Whether [`quantise`] can write blocks of this type.
pub fn is_encodable(quant: QuantType) -> bool {
    use QuantType as Q;
    matches!(
        quant,
        Q::F32 | Q::F16 | Q::BF16 | Q::Q8_0 | Q::Q4_0 | Q::Q4_1 | Q::Q5_0 | Q::Q5_1 | Q::IQ4_NL | Q::MXFP4
    ) || matches!(quant, Q::Q2_K | Q::Q3_K | Q::Q4_K | Q::Q5_K | Q::Q6_K | Q::IQ4_XS)
}

/// Encodes the values of one row as blocks of `quant` into `out`. `importance`, one weight per value and none negative,
/// says how much the square of each value's error counts; without it all count alike.
///
/// Values that aren't finite give finite blocks that mean nothing: check with [`all_finite`] before. Weights that are
/// negative or not finite count as none, and where a whole block has none its values count alike.
///
/// # Panics
/// When the type isn't [encodable](is_encodable), or lengths don't fit: `values` fill whole blocks, `out` holds just these
/// blocks, `importance` is as long as `values`.
pub fn quantise(quant: QuantType, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    quantise_on(Isa::detect(), quant, values, importance, out);
}

/// [`quantise`] with the instructions of `isa`. All give the same bytes.
///
/// # Panics
/// As [`quantise`] does.
pub fn quantise_on(isa: Isa, quant: QuantType, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    assert_eq!(quant.row_bytes(values.len()), Some(out.len()), "whole blocks, and room for just these");
    assert!(importance.is_none_or(|weights| weights.len() == values.len()), "a weight for every value");
    encode(isa, quant, Work { values, importance, carry: None, out });
}

/// Encodes rows of values, `[n_rows, carry.n_cols()]`, as [`quantise`] does, but carries what one column's rounding adds to the
/// output over to the columns after it; scales and offsets stay the same. Types without scales take no notice.
///
/// # Panics
/// As [`quantise`] does; `values` are whole rows, `importance` is as long as one.
pub fn quantise_rows(
    quant: QuantType,
    values: &[f32],
    importance: &[f32],
    carry: &Carry<'_>,
    out: &mut [u8],
) {
    quantise_rows_on(Isa::detect(), quant, values, importance, carry, out);
}

/// [`quantise_rows`] with the instructions of `isa`. All give the same bytes.
///
/// # Panics
/// As [`quantise_rows`] does.
pub fn quantise_rows_on(
    isa: Isa,
    quant: QuantType,
    values: &[f32],
    importance: &[f32],
    carry: &Carry<'_>,
    out: &mut [u8],
) {
    let n_cols = carry.n_cols();
    assert!(values.len().is_multiple_of(n_cols), "whole rows");
    let row_bytes = quant.row_bytes(n_cols).expect("rows of whole blocks");
    assert_eq!(values.len() / n_cols * row_bytes, out.len(), "room for just these blocks");
    assert_eq!(importance.len(), n_cols, "a weight for every column");
    encode(isa, quant, Work { values, importance: Some(importance), carry: Some(carry), out });
}

fn encode(isa: Isa, quant: QuantType, work: Work<'_>) {
    use QuantType as Q;
    let Work { values, ref out, .. } = work;
    debug_assert_eq!(quant.row_bytes(values.len()), Some(out.len()));
    match quant {
        Q::F32 => words(values, work.out, f32::to_le_bytes),
        Q::F16 => words(values, work.out, |v| f16::from_f32(v).to_le_bytes()),
        Q::BF16 => words(values, work.out, |v| bf16::from_f32(v).to_le_bytes()),
        Q::Q8_0 => work.encode::<small::Q8_0, 32>(isa, quant),
        Q::Q4_0 => work.encode::<small::Q4_0, 32>(isa, quant),
        Q::Q4_1 => work.encode::<small::Q4_1, 32>(isa, quant),
        Q::Q5_0 => work.encode::<small::Q5_0, 32>(isa, quant),
        Q::Q5_1 => work.encode::<small::Q5_1, 32>(isa, quant),
        Q::IQ4_NL => work.encode::<small::Iq4Nl, 32>(isa, quant),
        Q::MXFP4 => work.encode::<small::Mxfp4, 32>(isa, quant),
        Q::Q2_K => work.encode::<k::Q2K, 16>(isa, quant),
        Q::Q3_K => work.encode::<k::Q3K, 16>(isa, quant),
        Q::Q4_K => work.encode::<k::Q4K, 32>(isa, quant),
        Q::Q5_K => work.encode::<k::Q5K, 32>(isa, quant),
        Q::Q6_K => work.encode::<k::Q6K, 16>(isa, quant),
        Q::IQ4_XS => work.encode::<k::Iq4Xs, 32>(isa, quant),
        _ => panic!("{quant} can't be encoded: ask is_encodable first"),
    }
}

/// Whether every value is a finite number, so that blocks can stand for them.
pub fn all_finite(values: &[f32]) -> bool {
    // Without an early exit, so that many are looked at together.
    values.chunks(1024).all(|part| part.iter().fold(true, |all, v| all & v.is_finite()))
}

fn words<const N: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        *bytes = encode(*value);
    }
}

/// The bytes of the blocks of a tile.
type Blocks<'a> = ChunksExactMut<'a, u8>;

/// A type whose blocks are made of runs of `N` values.
trait Format<const N: usize> {
    /// Runs per block, a power of two.
    const GROUP: usize;

    /// The values that codes stand for, before any scale.
    type Levels: Levels;
    /// Scales and offsets of all runs of a tile, in units of the tile.
    type Scales;

    /// Finds the best.
    fn search(tile: &Tile<N>) -> Self::Scales;

    /// What they are to each run.
    fn line(scales: &Self::Scales) -> Line;

    /// Writes at most as many blocks as a tile holds, from scales in units of `unit`.
    fn write(scales: &Self::Scales, unit: Lanes, codes: &Codes<N>, blocks: Blocks<'_>);
}

/// A row to encode, or rows whose errors are carried.
struct Work<'a> {
    values: &'a [f32],
    /// Of a row.
    importance: Option<&'a [f32]>,
    carry: Option<&'a Carry<'a>>,
    out: &'a mut [u8],
}

impl Work<'_> {
    fn encode<F: Format<N>, const N: usize>(self, isa: Isa, quant: QuantType) {
        let Self { values, importance, carry, out } = self;
        let block_bytes = quant.block_bytes();
        if let (Some(carry), Some(importance)) = (carry, importance) {
            let row_bytes = carry.n_cols() / quant.block_len() * block_bytes;
            return Table { values, importance, carry, out, block_bytes, row_bytes }.encode::<F, N>(isa);
        }
        let tile_values = N * LANES;
        let tile_bytes = LANES / F::GROUP * block_bytes;
        for (i, (values, out)) in values.chunks(tile_values).zip(out.chunks_mut(tile_bytes)).enumerate() {
            let weights = importance.map(|all| &all[i * tile_values..][..values.len()]);
            let tile = Tile::<N>::new(isa, values, weights, F::GROUP);
            let scales = F::search(&tile);
            let codes = line::codes::<F::Levels, N>(&tile, F::line(&scales));
            F::write(&scales, tile.unit, &codes, out.chunks_exact_mut(block_bytes));
        }
    }
}
