//! What goes where, cut into steps that fit a buffer. Pure: the same source and settings give the same steps, which is
//! what lets a later run go on where an earlier one ended.

use std::ops::Range;

use forerun_model::{ExpertKey, ExpertLayout, MatrixLayout, QuantType};

use crate::{ByteRange, Catalog};

/// Bytes of the source that go to one place of the target as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) file: u16,
    pub(super) from_bytes: u64,
    pub(super) to_bytes: u64,
    pub(super) len_bytes: u64,
}

/// Rows of the source that become rows of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowCopy {
    /// Index of the source's tensor.
    pub(super) tensor: usize,
    /// First row, counted over all of its matrices.
    pub(super) first_row: u64,
    pub(super) to: QuantType,
    /// The rows in the source, and where they go.
    pub(super) source: Copy,
    /// Bytes of the rows in the target.
    pub(super) to_len: u64,
}

/// Where a layer's experts go.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) layout: ExpertLayout,
    /// First byte of gate, up and down of each expert.
    pub(super) to_bytes: Vec<[u64; 3]>,
    /// Bytes of zeros behind each part.
    pub(super) pads_bytes: [u64; 3],
    /// The experts in the order in which they are moved.
    pub(super) sequence: Vec<u16>,
}

/// Gate, up and down.
fn parts_of(layout: &ExpertLayout) -> [MatrixLayout; 3] {
    [layout.gate, layout.up, layout.down]
}

impl Destination {
    fn parts(&self) -> [MatrixLayout; 3] {
        parts_of(&self.layout)
    }

    /// Bytes that an expert takes in the target.
    pub(super) fn expert_bytes(&self) -> u64 {
        self.layout.weight_bytes() as u64 + self.pads_bytes.iter().sum::<u64>()
    }
}

/// What is moved at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Copy(Copy),
    Rows(RowCopy),
    /// Some experts of a layer, as positions in its sequence.
    Experts {
        layer: u16,
        range: Range<usize>,
    },
}

/// Everything that goes behind the header.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) layers: Vec<Destination>,
    pub(super) steps: Vec<Step>,
}

impl Plan {
    /// Adds a copy, in pieces of at most `step_bytes`.
    pub(super) fn push_copy(&mut self, copy: Copy, step_bytes: u64) {
        let mut done = 0;
        while done < copy.len_bytes {
            let len_bytes = step_bytes.min(copy.len_bytes - done);
            let (from_bytes, to_bytes) = (copy.from_bytes + done, copy.to_bytes + done);
            self.steps.push(Step::Copy(Copy { file: copy.file, from_bytes, to_bytes, len_bytes }));
            done += len_bytes;
        }
    }

    /// Adds all experts of `layer`, as many at once as `step_bytes` hold, but at least one.
    pub(super) fn push_experts(&mut self, layer: u16, step_bytes: u64) {
        let destination = &self.layers[usize::from(layer)];
        let per_step = (step_bytes / destination.expert_bytes().max(1)).max(1);
        let per_step = usize::try_from(per_step).unwrap_or(usize::MAX);
        let n = destination.sequence.len();
        let starts = (0..n).step_by(per_step);
        let ranges = starts.map(|start| start..n.min(start.saturating_add(per_step)));
        self.steps.extend(ranges.map(|range| Step::Experts { layer, range }));
    }

    /// The bytes of the target that step `idx` writes.
    pub(super) fn step_bytes(&self, idx: usize) -> u64 {
        match &self.steps[idx] {
            Step::Copy(copy) => copy.len_bytes,
            Step::Rows(rows) => rows.to_len,
            Step::Experts { layer, range } => {
                self.layers[usize::from(*layer)].expert_bytes() * range.len() as u64
            }
        }
    }

    /// The experts that step `idx` moves, in order.
    pub(super) fn step_experts(&self, idx: usize) -> impl Iterator<Item = ExpertKey> + '_ {
        let experts = match &self.steps[idx] {
            Step::Copy(_) | Step::Rows(_) => None,
            Step::Experts { layer, range } => {
                let sequence = &self.layers[usize::from(*layer)].sequence[range.clone()];
                Some(sequence.iter().map(|&expert| ExpertKey::new(*layer, expert)))
            }
        };
        experts.into_iter().flatten()
    }

    /// What step `idx` reads, and where that lies in a buffer and in the target.
    pub(super) fn batch(&self, idx: usize, catalog: &Catalog) -> Batch {
        match &self.steps[idx] {
            Step::Copy(copy) => Batch::of_copy(*copy),
            Step::Rows(rows) => Batch::of_rows(*rows),
            Step::Experts { layer, .. } => {
                let destination = &self.layers[usize::from(*layer)];
                Batch::of_experts(self.step_experts(idx), destination, catalog)
            }
        }
    }
}

/// One range of the source, and its place in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: u16,
    pub(super) from_bytes: u64,
    pub(super) len: usize,
    pub(super) at: usize,
}

/// One range of the buffer, and its place in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) to_bytes: u64,
    pub(super) at: usize,
    pub(super) len: usize,
}

/// An expert of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) key: ExpertKey,
    /// Where its parts lie in the buffer.
    pub(super) parts_at: [usize; 3],
}

/// Which rows of the source a batch recodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsFrom {
    /// Some of a tensor, counted over all of its matrices.
    Tensor { idx: usize, first_row: u64 },
    /// All of a part of an expert.
    Part { key: ExpertKey, part: usize },
}

/// Rows that are read into the buffer's second part, and made into others in its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recoded {
    pub(super) rows: RowsFrom,
    pub(super) to: QuantType,
    /// Counted from the second part's start.
    pub(super) from_at: usize,
    pub(super) from_len: usize,
    pub(super) to_at: usize,
    pub(super) to_len: usize,
}

/// One step's reads and writes. The buffer has two parts: what the target gets, and rows of the source from which some of
/// that is made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    /// In the order of the source.
    pub(super) pieces: Vec<Piece>,
    /// In the order of the target.
    pub(super) spans: Vec<Span>,
    pub(super) experts: Vec<Moved>,
    pub(super) recoded: Vec<Recoded>,
    /// Bytes of the buffer's first part.
    pub(super) buffer_bytes: usize,
    /// Bytes of its second part.
    pub(super) rows_bytes: usize,
}

impl Batch {
    pub(super) fn of_copy(copy: Copy) -> Self {
        let len = usize_of(copy.len_bytes);
        let pieces = vec![Piece { file: copy.file, from_bytes: copy.from_bytes, len, at: 0 }];
        let spans = vec![Span { to_bytes: copy.to_bytes, at: 0, len }];
        Self { pieces, spans, buffer_bytes: len, ..Self::default() }
    }

    fn of_rows(rows: RowCopy) -> Self {
        let (from_len, to_len) = (usize_of(rows.source.len_bytes), usize_of(rows.to_len));
        let (file, from_bytes) = (rows.source.file, rows.source.from_bytes);
        let from = RowsFrom::Tensor { idx: rows.tensor, first_row: rows.first_row };
        Self {
            pieces: vec![Piece { file, from_bytes, len: from_len, at: to_len }],
            spans: vec![Span { to_bytes: rows.source.to_bytes, at: 0, len: to_len }],
            recoded: vec![Recoded { rows: from, to: rows.to, from_at: 0, from_len, to_at: 0, to_len }],
            buffer_bytes: to_len,
            rows_bytes: from_len,
            ..Self::default()
        }
    }

    pub(super) fn of_experts(
        keys: impl Iterator<Item = ExpertKey>,
        destination: &Destination,
        catalog: &Catalog,
    ) -> Self {
        let mut batch = Self::default();
        // Target, expert of the batch, part, source.
        let mut parts: Vec<(u64, usize, usize, ByteRange)> = Vec::new();
        for key in keys {
            let record = catalog.record(key).expect("the plan was made for this catalog");
            let to_bytes = destination.to_bytes[key.expert.idx()];
            let idx = batch.experts.len();
            parts.extend((0..3).map(|part| (to_bytes[part], idx, part, record.parts[part])));
            batch.experts.push(Moved { key, parts_at: [0; 3] });
        }
        parts.sort_unstable_by_key(|part| part.0);
        let mut made: Vec<Piece> = Vec::new();
        for (to_bytes, idx, part, range) in parts {
            let at = batch.buffer_bytes;
            let target = destination.parts()[part];
            let (len, pad) = (target.bytes(), usize_of(destination.pads_bytes[part]));
            batch.experts[idx].parts_at[part] = at;
            let key = batch.experts[idx].key;
            let from_len = range.len_bytes as usize;
            let mut piece = Piece { file: range.file, from_bytes: range.offset_bytes, len: from_len, at };
            if catalog.layout(key.layer).is_some_and(|from| parts_of(from)[part].quant == target.quant) {
                batch.pieces.push(piece);
            } else {
                let (rows, from_at) = (RowsFrom::Part { key, part }, batch.rows_bytes);
                let to = target.quant;
                batch.recoded.push(Recoded { rows, to, from_at, from_len, to_at: at, to_len: len });
                piece.at = from_at;
                made.push(piece);
                batch.rows_bytes += from_len;
            }
            match batch.spans.last_mut() {
                Some(span) if span.to_bytes + span.len as u64 == to_bytes => span.len += len + pad,
                _ => batch.spans.push(Span { to_bytes, at, len: len + pad }),
            }
            batch.buffer_bytes += len + pad;
        }
        let second = batch.buffer_bytes;
        batch.pieces.extend(made.into_iter().map(|piece| Piece { at: second + piece.at, ..piece }));
        batch.pieces.sort_unstable_by_key(|piece| (piece.file, piece.from_bytes));
        batch.pieces.dedup_by(|next, piece| {
            let touches = piece.file == next.file
                && piece.from_bytes + piece.len as u64 == next.from_bytes
                && piece.at + piece.len == next.at;
            piece.len += if touches { next.len } else { 0 };
            touches
        });
        batch
    }

    /// The ranges of the source that are read, those that touch as one: file, first byte, bytes.
    pub(super) fn ranges(&self) -> Vec<(u16, u64, u64)> {
        let mut ranges: Vec<(u16, u64, u64)> = Vec::new();
        for piece in &self.pieces {
            let len = piece.len as u64;
            match ranges.last_mut() {
                Some((file, from, n)) if *file == piece.file && *from + *n == piece.from_bytes => *n += len,
                _ => ranges.push((piece.file, piece.from_bytes, len)),
            }
        }
        ranges
    }
}

fn usize_of(len_bytes: u64) -> usize {
    usize::try_from(len_bytes).expect("a step fits the memory of this machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_cut_into_steps() {
        let mut plan = Plan::default();
        plan.push_copy(Copy { file: 1, from_bytes: 100, to_bytes: 4096, len_bytes: 25 }, 10);
        let steps: Vec<_> = (0..plan.steps.len()).map(|idx| plan.step_bytes(idx)).collect();
        assert_eq!(steps, [10, 10, 5]);
        let last = Copy { file: 1, from_bytes: 120, to_bytes: 4116, len_bytes: 5 };
        assert_eq!(plan.steps[2], Step::Copy(last));
    }

    #[test]
    fn a_layer_of_experts_becomes_steps_of_whole_experts() {
        let catalog = crate::catalog::tests::catalog_of();
        let layout = *catalog.layout(forerun_model::LayerId(0)).unwrap();
        // Gate, up and down of 2560 bytes each, in records of 8192: 512 bytes of padding behind the last.
        let to_bytes = [1, 0].map(|p| [0, 2560, 5120].map(|part| 4096 + p * 8192 + part)).to_vec();
        let destination = Destination { layout, to_bytes, pads_bytes: [0, 0, 512], sequence: vec![1, 0] };
        let mut plan = Plan { layers: vec![destination], steps: Vec::new() };
        plan.push_experts(0, 1 << 20);
        assert_eq!(plan.steps, [Step::Experts { layer: 0, range: 0..2 }]);
        let batch = plan.batch(0, &catalog);
        assert_eq!(batch.spans, [Span { to_bytes: 4096, at: 0, len: 16_384 }]);
        // Read in the source's order: gate of both, up of both, down of both.
        let places: Vec<_> = batch.pieces.iter().map(|piece| piece.at).collect();
        assert_eq!(places, [8192, 0, 10_752, 2560, 13_312, 5120]);
        assert_eq!(batch.ranges().len(), 3);
        plan.steps.clear();
        plan.push_experts(0, 1);
        assert_eq!(plan.steps.len(), 2, "a step moves at least one expert");
    }
}
