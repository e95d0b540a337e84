//! A packed file's own keys: their names, and what they say once every number of them has been checked.
//!
//! `docs/packed-format.md` is the format.

use forerun_model::{ExpertLayout, LayerId, QuantType, names};

use crate::gguf::{Array, Value};
use crate::{Metadata, OpenError};

/// What packed tensors, and with them every record, are aligned to in the file.
pub const RECORD_ALIGN_BYTES: u64 = 4096;
/// The only version there is.
pub(crate) const VERSION: u32 = 1;
/// The only layout of version 1: each matrix as the source has it.
pub(crate) const LAYOUT: &str = "plain";

/// All keys of ours begin so.
pub(crate) const PREFIX: &str = "forerun.pack.";
pub(crate) const KEY_VERSION: &str = "forerun.pack.version";
pub(crate) const KEY_LAYOUT: &str = "forerun.pack.layout";
pub(crate) const KEY_SOURCE_NAMES: &str = "forerun.pack.source_names";
pub(crate) const KEY_TYPES: &str = "forerun.pack.types";
pub(crate) const KEY_OFFSETS: &str = "forerun.pack.offsets";
pub(crate) const KEY_ORDER: &str = "forerun.pack.order";
pub(crate) const KEY_CRC32C: &str = "forerun.pack.crc32c";
pub(crate) const KEY_SOURCE: &str = "forerun.pack.source";
pub(crate) const KEY_SOURCE_TENSORS: &str = "forerun.pack.source_tensors";
pub(crate) const KEY_SOURCE_ALIGNMENT: &str = "forerun.pack.source_alignment";

/// The tensor that holds all experts of `layer`.
pub(crate) fn tensor_name(layer: LayerId) -> String {
    names::block_bare(layer, "ffn_experts.packed")
}

/// Where gate, up and down begin in a record.
#[expect(clippy::cast_possible_truncation, reason = "a record is at most 2 GiB long, or it is refused")]
pub(crate) fn part_offsets(layout: &ExpertLayout) -> [u32; 3] {
    let offsets = layout.offsets();
    [offsets.gate, offsets.up, offsets.down].map(|offset| offset as u32)
}

/// Bytes of a record with what pads it.
pub(crate) fn record_bytes(layout: &ExpertLayout) -> u64 {
    (layout.record_bytes() as u64).next_multiple_of(RECORD_ALIGN_BYTES)
}

/// The checksum of the padded record of `parts`: what its bytes in the file must have.
pub(crate) fn record_crc32c(layout: &ExpertLayout, parts: [&[u8]; 3]) -> u32 {
    const ZEROS: [u8; 4096] = [0; 4096];
    let [_, up, down] = part_offsets(layout).map(u64::from);
    let ends = [up, down, record_bytes(layout)];
    let (mut crc, mut at) = (0, 0);
    for (part, end) in parts.into_iter().zip(ends) {
        crc = crc32c::crc32c_append(crc, part);
        at += part.len() as u64;
        // Less than one alignment, since the parts have their layout's lengths.
        crc = crc32c::crc32c_append(crc, &ZEROS[..usize::try_from(end - at).unwrap_or(0)]);
        at = end;
    }
    crc
}

/// Whether the keys say that this is a packed file.
pub fn is_packed(metadata: &Metadata) -> bool {
    metadata.value(KEY_VERSION).is_some()
}

/// What the keys say of the experts.
#[derive(Clone, Debug)]
pub(crate) struct PackKeys {
    n_experts: usize,
    types: Vec<u32>,
    offsets: Vec<u32>,
    order: Vec<u32>,
    crc32c: Vec<u32>,
}

/// What the keys say of one layer's experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerKeys<'a> {
    pub(crate) types: [QuantType; 3],
    pub(crate) offsets: [u32; 3],
    /// Position on disk of each expert: a permutation.
    pub(crate) order: &'a [u32],
    /// Of the padded record of each expert.
    pub(crate) crc32c: &'a [u32],
}

impl PackKeys {
    /// Reads the keys of a model of `n_layers` layers of `n_experts` experts; `None` when the file isn't packed.
    ///
    /// # Errors
    /// [`OpenError::PackKey`] names a key that is missing, of another type or length, or of a version that is
    /// unknown here.
    pub(crate) fn read(
        metadata: &Metadata,
        n_layers: usize,
        n_experts: usize,
    ) -> Result<Option<Self>, OpenError> {
        let Some(version) = metadata.value(KEY_VERSION) else { return Ok(None) };
        if *version != Value::U32(VERSION) {
            return Err(wrong(metadata, KEY_VERSION, format!("{VERSION}, as a u32")));
        }
        if text(metadata, KEY_LAYOUT)? != LAYOUT {
            return Err(wrong(metadata, KEY_LAYOUT, format!("{LAYOUT:?}")));
        }
        let per_expert = n_layers.saturating_mul(n_experts);
        Ok(Some(Self {
            n_experts,
            types: numbers(metadata, KEY_TYPES, 3 * n_layers)?,
            offsets: numbers(metadata, KEY_OFFSETS, 3 * n_layers)?,
            order: numbers(metadata, KEY_ORDER, per_expert)?,
            crc32c: numbers(metadata, KEY_CRC32C, per_expert)?,
        }))
    }

    /// What they say of `layer`, which must be one of the model's.
    ///
    /// # Errors
    /// [`OpenError::PackValue`] names an unknown type, or an order that isn't a permutation.
    pub(crate) fn layer(&self, layer: LayerId) -> Result<LayerKeys<'_>, OpenError> {
        let (three, all) = (3 * layer.idx(), layer.idx() * self.n_experts);
        let per_expert = all..all + self.n_experts;
        let mut types = [QuantType::F32; 3];
        for (quant, &id) in types.iter_mut().zip(&self.types[three..]) {
            let problem = || value(KEY_TYPES, layer, id, "the id of a tensor type".into());
            *quant = QuantType::from_id(id).ok_or_else(problem)?;
        }
        let order = &self.order[per_expert.clone()];
        check_order(order).map_err(|position| {
            let expected = format!("one of 0..{}, each once", self.n_experts);
            value(KEY_ORDER, layer, position, expected)
        })?;
        let offsets = [0, 1, 2].map(|i| self.offsets[three + i]);
        Ok(LayerKeys { types, offsets, order, crc32c: &self.crc32c[per_expert] })
    }
}

impl LayerKeys<'_> {
    /// Checks the offsets against those that `layout` needs.
    ///
    /// # Errors
    /// [`OpenError::PackValue`] names the one that differs.
    pub(crate) fn check_offsets(&self, layer: LayerId, layout: &ExpertLayout) -> Result<(), OpenError> {
        for (found, expected) in self.offsets.into_iter().zip(part_offsets(layout)) {
            if found != expected {
                return Err(value(KEY_OFFSETS, layer, found, expected.to_string()));
            }
        }
        Ok(())
    }
}

/// Checks that every position occurs once; the error is one that is too large or occurs twice.
pub(crate) fn check_order(order: &[u32]) -> Result<(), u32> {
    let mut seen = vec![false; order.len()];
    for &position in order {
        match usize::try_from(position).ok().and_then(|position| seen.get_mut(position)) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(position),
        }
    }
    Ok(())
}

/// The text of `key`.
pub(crate) fn text<'a>(metadata: &'a Metadata, key: &'static str) -> Result<&'a str, OpenError> {
    match metadata.value(key) {
        Some(Value::Text(text)) => Ok(text),
        _ => Err(wrong(metadata, key, "a string".into())),
    }
}

/// The texts of `key`.
pub(crate) fn texts<'a>(metadata: &'a Metadata, key: &'static str) -> Result<&'a [String], OpenError> {
    match metadata.value(key) {
        Some(Value::Array(Array::Text(texts))) => Ok(texts),
        _ => Err(wrong(metadata, key, "an array of strings".into())),
    }
}

fn numbers(metadata: &Metadata, key: &'static str, n: usize) -> Result<Vec<u32>, OpenError> {
    match metadata.value(key) {
        Some(Value::Array(Array::U32(list))) if list.len() == n => Ok(list.clone()),
        _ => Err(wrong(metadata, key, format!("an array of {n} u32"))),
    }
}

fn wrong(metadata: &Metadata, key: &'static str, expected: String) -> OpenError {
    let found = metadata.value(key).map_or_else(|| "absent".to_owned(), ToString::to_string);
    OpenError::PackKey { key, found, expected }
}

fn value(key: &'static str, layer: LayerId, found: u32, expected: String) -> OpenError {
    OpenError::PackValue { key, layer: layer.idx(), found, expected }
}

#[cfg(test)]
mod tests {
    use forerun_model::MatrixLayout;

    use super::*;

    #[test]
    fn a_checksum_is_over_the_padded_record() {
        let gate = MatrixLayout::new(QuantType::Q8_0, 3, 32).unwrap();
        let layout = ExpertLayout { gate, up: gate, down: MatrixLayout::new(QuantType::F16, 5, 7).unwrap() };
        let parts = [gate, gate, layout.down].map(|part| vec![0xA5; part.bytes()]);
        let mut record = vec![0; usize::try_from(record_bytes(&layout)).unwrap()];
        for (part, offset) in parts.iter().zip(part_offsets(&layout)) {
            record[offset as usize..][..part.len()].copy_from_slice(part);
        }
        let [gate, up, down] = &parts;
        assert_eq!(record_crc32c(&layout, [gate, up, down]), crc32c::crc32c(&record));
    }

    #[test]
    fn an_order_is_a_permutation() {
        assert_eq!(check_order(&[2, 0, 1]), Ok(()));
        assert_eq!(check_order(&[2, 0, 3]), Err(3));
        assert_eq!(check_order(&[1, 0, 1]), Err(1));
        assert_eq!(check_order(&[]), Ok(()));
    }
}
