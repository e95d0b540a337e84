//! Where the three matrices of an expert lie, inside a slot.

use crate::{QuantType, ShapeError};

/// One matrix `W[n_rows, n_cols]`, row-major, each row whole blocks of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Storage type.
    pub quant: QuantType,
    /// Output features.
    pub n_rows: usize,
    /// Input features.
    pub n_cols: usize,
}

impl MatrixLayout {
    /// A matrix whose rows fill whole blocks.
    ///
    /// # Errors
    /// [`ShapeError::RowBlocks`] when they don't.
    pub fn new(quant: QuantType, n_rows: usize, n_cols: usize) -> Result<Self, ShapeError> {
        match quant.row_bytes(n_cols).and_then(|row| row.checked_mul(n_rows)) {
            Some(_) => Ok(Self { quant, n_rows, n_cols }),
            None => Err(ShapeError::RowBlocks { quant: quant.name(), n_cols, block_len: quant.block_len() }),
        }
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.n_cols / self.quant.block_len() * self.quant.block_bytes()
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> usize {
        self.row_bytes() * self.n_rows
    }
}

/// Byte offsets of gate, up and down in the bytes that hold them: a slot, or a mapping of a whole file. They differ from
/// read to read where a direct read lands an aligned superset of the record, so they travel with the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartOffsets {
    /// First byte of the gate matrix.
    pub gate: usize,
    /// First byte of the up matrix.
    pub up: usize,
    /// First byte of the down matrix.
    pub down: usize,
}

/// The three matrices of every expert of one layer: `down(silu(gate x) * (up x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLayout {
    /// `[expert_ff, hidden]`.
    pub gate: MatrixLayout,
    /// `[expert_ff, hidden]`.
    pub up: MatrixLayout,
    /// `[hidden, expert_ff]`.
    pub down: MatrixLayout,
}

impl ExpertLayout {
    /// Parts of a record begin at multiples of this, so that kernels meet cache-line aligned rows.
    pub const PART_ALIGN_BYTES: usize = 64;

    /// Where the parts lie when a record is packed tightly into a slot.
    pub fn offsets(&self) -> PartOffsets {
        let up = self.gate.bytes().next_multiple_of(Self::PART_ALIGN_BYTES);
        let down = (up + self.up.bytes()).next_multiple_of(Self::PART_ALIGN_BYTES);
        PartOffsets { gate: 0, up, down }
    }

    /// Bytes of a record that is packed tightly into a slot.
    pub fn record_bytes(&self) -> usize {
        self.offsets().down + self.down.bytes()
    }

    /// Bytes of weights that a read of this expert needs.
    pub fn weight_bytes(&self) -> usize {
        self.gate.bytes() + self.up.bytes() + self.down.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_do_not_overlap() {
        let gate = MatrixLayout::new(QuantType::Q3_K, 3, 256).unwrap();
        let down = MatrixLayout::new(QuantType::F32, 256, 3).unwrap();
        let layout = ExpertLayout { gate, up: gate, down };
        assert_eq!(layout.offsets(), PartOffsets { gate: 0, up: 384, down: 768 });
        assert_eq!(layout.record_bytes(), 768 + 256 * 3 * 4);
        assert_eq!(layout.weight_bytes(), 330 + 330 + 3072);
    }

    #[test]
    fn a_row_of_broken_blocks_is_refused() {
        assert!(matches!(MatrixLayout::new(QuantType::Q4_K, 1, 96), Err(ShapeError::RowBlocks { .. })));
    }
}
