//! Keys and values of one attention layer, row by row, in f32 or f16.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// 4 bytes a value: the reference's choice.
    F32,
    /// 2 bytes a value.
    F16,
}

impl KvType {
    /// Bytes of one value.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// Rows of `width` values each, allocated once for a whole context.
#[derive(Debug)]
pub struct KvRows {
    width: usize,
    store: Store,
}

#[derive(Debug)]
enum Store {
    F32(Vec<f32>),
    /// Bits of half floats: a vector of zero integers isn't touched before it is written.
    F16(Vec<u16>),
}

impl KvRows {
    /// Zeroed room for `context` rows of `width` values; its pages become resident as rows are written.
    pub fn new(kv: KvType, context: usize, width: usize) -> Self {
        let store = match kv {
            KvType::F32 => Store::F32(vec![0.0; context * width]),
            KvType::F16 => Store::F16(vec![0; context * width]),
        };
        Self { width, store }
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Stores `values` as row `row`.
    pub fn write(&mut self, row: usize, values: &[f32]) {
        let range = row * self.width..(row + 1) * self.width;
        match &mut self.store {
            Store::F32(rows) => rows[range].copy_from_slice(values),
            Store::F16(rows) => rows[range].reinterpret_cast_mut::<f16>().convert_from_f32_slice(values),
        }
    }

    /// Writes the `len` values from column `column` of row `row` to `out`.
    pub fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        let start = row * self.width + column;
        match &self.store {
            Store::F32(rows) => out.copy_from_slice(&rows[start..start + out.len()]),
            Store::F16(rows) => {
                rows[start..start + out.len()].reinterpret_cast::<f16>().convert_to_f32_slice(out);
            }
        }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.width
            * match self.store {
                Store::F32(_) => KvType::F32.value_bytes(),
                Store::F16(_) => KvType::F16.value_bytes(),
            }
    }

    /// Writes row `row` to `out`, [`Self::row_bytes`] long: its values as they are stored, little-endian.
    pub fn save(&self, row: usize, out: &mut [u8]) {
        let range = row * self.width..(row + 1) * self.width;
        match &self.store {
            Store::F32(rows) => {
                let (out, _) = out.as_chunks_mut();
                out.iter_mut().zip(&rows[range]).for_each(|(out, value)| *out = value.to_le_bytes());
            }
            Store::F16(rows) => {
                let (out, _) = out.as_chunks_mut();
                out.iter_mut().zip(&rows[range]).for_each(|(out, value)| *out = value.to_le_bytes());
            }
        }
    }

    /// Stores `bytes`, which [`Self::save`] wrote, as row `row`.
    pub fn load(&mut self, row: usize, bytes: &[u8]) {
        let range = row * self.width..(row + 1) * self.width;
        match &mut self.store {
            Store::F32(rows) => {
                let (bytes, _) = bytes.as_chunks();
                rows[range]
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
            }
            Store::F16(rows) => {
                let (bytes, _) = bytes.as_chunks();
                rows[range]
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(value, bytes)| *value = u16::from_le_bytes(*bytes));
            }
        }
    }

    /// Moves `n` rows from row `from` on to row `to` on.
    pub fn shift(&mut self, from: usize, to: usize, n: usize) {
        let (range, to) = (from * self.width..(from + n) * self.width, to * self.width);
        match &mut self.store {
            Store::F32(rows) => rows.copy_within(range, to),
            Store::F16(rows) => rows.copy_within(range, to),
        }
    }
}
