//! Where a record lands in a slot, and which ranges of the files must be read for it. Pure.
//!
//! A direct read begins and ends at multiples of the disk's block, a record of an ordinary file anywhere. So a range is
//! widened to whole blocks, and its part begins a little after the range does: the gap differs from expert to expert,
//! which is why [`PartOffsets`] travel with the bytes. With a block of 1 nothing is widened.

use forerun_model::{ExpertLayout, PartOffsets};

use crate::catalog::{ByteRange, Record};

/// A range of a file, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What to read: whole blocks.
    pub range: ByteRange,
    /// First byte in the slot, a multiple of the block.
    pub slot_offset_bytes: u32,
    /// Bytes from the range's start to the end of what is wanted; the rest only rounds it up to a block, and the file
    /// may end before it.
    pub need_bytes: u32,
}

/// Where a record lands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// What to read, in the slot's order.
    pub ranges: Vec<Placed>,
    /// Where the matrices begin in the slot.
    pub parts: PartOffsets,
}

impl Placed {
    /// The same range in pieces of about one length, in order: each at most `bite_bytes` long, rounded down to whole
    /// blocks of `align_bytes`, but one block at least.
    pub fn in_bites(self, bite_bytes: u32, align_bytes: u32) -> impl Iterator<Item = Self> {
        let Self { range, slot_offset_bytes, need_bytes } = self;
        let bite_bytes = (bite_bytes / align_bytes * align_bytes).max(align_bytes);
        let n_bites = range.len_bytes.div_ceil(bite_bytes).max(1);
        let step_bytes = range.len_bytes.div_ceil(n_bites).next_multiple_of(align_bytes).max(align_bytes);
        (0..range.len_bytes).step_by(step_bytes as usize).map(move |at| {
            let len_bytes = step_bytes.min(range.len_bytes - at);
            Self {
                range: ByteRange { offset_bytes: range.offset_bytes + u64::from(at), len_bytes, ..range },
                slot_offset_bytes: slot_offset_bytes + at,
                need_bytes: len_bytes.min(need_bytes - at),
            }
        })
    }
}

impl Placement {
    /// Places `record`, in blocks of `align_bytes`. Parts that share a block, or touch, are one range.
    pub fn new(record: &Record, align_bytes: u32) -> Self {
        let mut ranges: Vec<Placed> = Vec::with_capacity(record.parts.len());
        let mut parts = [0; 3];
        if let Some(whole) = record.whole {
            ranges.push(widened(whole, align_bytes, 0));
        }
        for (part, offset) in record.parts.iter().zip(&mut parts) {
            let extended = match ranges.last_mut() {
                Some(last) if extends(last, part) => {
                    stretch(last, part, align_bytes);
                    Some(*last)
                }
                _ => None,
            };
            let placed = extended.unwrap_or_else(|| {
                let end = ranges.last().map_or(0, |last| last.slot_offset_bytes + last.range.len_bytes);
                let placed = widened(*part, align_bytes, end.next_multiple_of(slot_align(align_bytes)));
                ranges.push(placed);
                placed
            });
            let into = distance(placed.range.offset_bytes, part.offset_bytes);
            *offset = (placed.slot_offset_bytes + into) as usize;
        }
        let [gate, up, down] = parts;
        Self { ranges, parts: PartOffsets { gate, up, down } }
    }

    /// The same record, each range in pieces of at most `bite_bytes`: see [`Placed::in_bites`].
    #[must_use]
    pub fn in_bites(self, bite_bytes: u32, align_bytes: u32) -> Self {
        let bites = self.ranges.into_iter().flat_map(|placed| placed.in_bites(bite_bytes, align_bytes));
        Self { ranges: bites.collect(), parts: self.parts }
    }

    /// Where the bytes end, in its file, that the range is for of which `piece` is a part.
    pub(crate) fn end_bytes(&self, piece: &Placed) -> u64 {
        let end = |placed: &Placed| placed.range.offset_bytes + u64::from(placed.need_bytes);
        let mut at = end(piece);
        let after =
            self.ranges.iter().skip_while(|placed| placed.slot_offset_bytes <= piece.slot_offset_bytes);
        for next in after {
            // Ranges that touch are one, so what follows without a gap is of the same.
            if next.range.file != piece.range.file || next.range.offset_bytes != at {
                break;
            }
            at = end(next);
        }
        at
    }

    /// Bytes of the slot that it needs.
    pub fn slot_bytes(&self) -> usize {
        self.ranges.last().map_or(0, |last| last.slot_offset_bytes as usize + last.range.len_bytes as usize)
    }

    /// Bytes that must be read.
    pub fn read_bytes(&self) -> u64 {
        self.ranges.iter().map(|placed| u64::from(placed.range.len_bytes)).sum()
    }
}

/// Most bytes of a slot that three parts of `lens_bytes` need, wherever in their files they begin.
pub(crate) fn slot_bytes_max(lens_bytes: [u32; 3], align_bytes: u32) -> usize {
    let align = slot_align(align_bytes) as usize;
    let widened = |len: u32| {
        let len = len as usize;
        if align_bytes == 1 {
            len
        } else {
            (len + align_bytes as usize - 1).next_multiple_of(align_bytes as usize)
        }
    };
    lens_bytes.into_iter().fold(0, |end: usize, len| end.next_multiple_of(align) + widened(len))
}

/// Ranges begin at multiples of this in a slot, so that rows are aligned to cache lines where the file allows it.
fn slot_align(align_bytes: u32) -> u32 {
    align_bytes.max(u32::try_from(ExpertLayout::PART_ALIGN_BYTES).expect("a cache line"))
}

fn widened(range: ByteRange, align_bytes: u32, slot_offset_bytes: u32) -> Placed {
    let offset_bytes = range.offset_bytes / u64::from(align_bytes) * u64::from(align_bytes);
    let need_bytes = distance(offset_bytes, range.end_bytes());
    let len_bytes = need_bytes.next_multiple_of(align_bytes);
    Placed { range: ByteRange { offset_bytes, len_bytes, ..range }, slot_offset_bytes, need_bytes }
}

/// Whether `part` begins inside what is read already, or right after it.
fn extends(last: &Placed, part: &ByteRange) -> bool {
    let last = &last.range;
    last.file == part.file && (last.offset_bytes..=last.end_bytes()).contains(&part.offset_bytes)
}

/// Makes `last` reach to the end of `part`.
fn stretch(last: &mut Placed, part: &ByteRange, align_bytes: u32) {
    let need_bytes = distance(last.range.offset_bytes, part.end_bytes());
    last.need_bytes = last.need_bytes.max(need_bytes);
    last.range.len_bytes = last.range.len_bytes.max(need_bytes.next_multiple_of(align_bytes));
}

#[expect(clippy::cast_possible_truncation, reason = "a record is at most 2 GiB long, and this is inside one")]
fn distance(from: u64, to: u64) -> u32 {
    (to - from) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(offset_bytes: u64, len_bytes: u32) -> ByteRange {
        ByteRange { file: 0, offset_bytes, len_bytes }
    }

    fn record(parts: [(u64, u32); 3]) -> Record {
        Record { parts: parts.map(|(at, len)| range(at, len)), whole: None, crc32c: None }
    }

    /// Ranges as `offset+len>slot`, then the parts' offsets.
    #[track_caller]
    fn check(record: &Record, align_bytes: u32, expect: &str) {
        let Placement { ranges, parts } = Placement::new(record, align_bytes);
        let ranges = ranges.iter().map(|placed| {
            format!("{}+{}>{}", placed.range.offset_bytes, placed.range.len_bytes, placed.slot_offset_bytes)
        });
        let text =
            format!("{} | {} {} {}", ranges.collect::<Vec<_>>().join(" "), parts.gate, parts.up, parts.down);
        assert_eq!(text, expect);
    }

    #[test]
    fn buffered_reads_take_what_is_wanted_and_no_more() {
        let record = record([(1001, 100), (5001, 100), (9001, 30)]);
        check(&record, 1, "1001+100>0 5001+100>128 9001+30>256 | 0 128 256");
    }

    #[test]
    fn direct_reads_take_whole_blocks() {
        let record = record([(1001, 100), (5001, 600), (9001, 30)]);
        check(&record, 512, "512+1024>0 4608+1024>1024 8704+512>2048 | 489 1417 2345");
    }

    #[test]
    fn parts_that_touch_or_share_a_block_are_one_range() {
        check(&record([(1000, 100), (1100, 100), (9001, 30)]), 1, "1000+200>0 9001+30>256 | 0 100 256");
        check(&record([(1000, 100), (1300, 300), (1600, 30)]), 512, "512+1536>0 | 488 788 1088");
    }

    #[test]
    fn a_packed_record_is_one_range() {
        let whole = Some(range(8192, 4096));
        let record = Record { whole, ..record([(8192, 100), (8320, 100), (8448, 100)]) };
        for align_bytes in [1, 512, 4096] {
            check(&record, align_bytes, "8192+4096>0 | 0 128 256");
        }
    }

    #[test]
    fn bites_are_of_about_one_length_and_of_whole_blocks() {
        let lens = |len: u32, bite_bytes, align_bytes| {
            let placed = widened(range(0, len), align_bytes, 0);
            let bites: Vec<_> = placed.in_bites(bite_bytes, align_bytes).collect();
            bites.iter().map(|bite| (bite.range.len_bytes, bite.need_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(lens(100, 100, 1), [(100, 100)]);
        assert_eq!(lens(100, 60, 1), [(50, 50), (50, 50)]);
        assert_eq!(lens(100, 33, 1), [(25, 25); 4]);
        assert_eq!(lens(3000, 1100, 512), [(1024, 1024), (1024, 1024), (1024, 952)]);
        assert_eq!(lens(2000, 3, 1024), [(1024, 1024), (1024, 976)]);
    }

    /// The bites cover the ranges exactly, in order, each in whole blocks and at most `bite_bytes` long.
    fn check_bites(whole: &Placement, bitten: &Placement, bite_bytes: u32) {
        assert_eq!(whole.parts, bitten.parts);
        assert_eq!((whole.read_bytes(), whole.slot_bytes()), (bitten.read_bytes(), bitten.slot_bytes()));
        let mut bites = bitten.ranges.iter();
        for placed in &whole.ranges {
            let (mut at, mut need_bytes) = (0, 0);
            while at < placed.range.len_bytes {
                let bite = bites.next().unwrap();
                assert_eq!(bite.range.file, placed.range.file);
                assert_eq!(bite.range.offset_bytes, placed.range.offset_bytes + u64::from(at));
                assert_eq!(bite.slot_offset_bytes, placed.slot_offset_bytes + at);
                assert!((1..=bite_bytes).contains(&bite.range.len_bytes), "{bite:?}");
                assert!((1..=bite.range.len_bytes).contains(&bite.need_bytes), "{bite:?}");
                assert_eq!(bitten.end_bytes(bite), whole.end_bytes(placed), "{bite:?} of {placed:?}");
                at += bite.range.len_bytes;
                need_bytes += bite.need_bytes;
            }
            assert_eq!((at, need_bytes), (placed.range.len_bytes, placed.need_bytes));
        }
        assert!(bites.next().is_none());
    }

    proptest! {
        #[test]
        fn every_wanted_byte_lands_where_the_parts_say(
            starts in prop::array::uniform3(0u64..20_000),
            lens in prop::array::uniform3(1u32..3_000),
            align_bytes in prop::sample::select(vec![1u32, 512, 4096]),
            bite_bytes in 0u32..9_000,
        ) {
            let parts = [0, 1, 2].map(|i| (starts[i], lens[i]));
            let placement = Placement::new(&record(parts), align_bytes);
            let PartOffsets { gate, up, down } = placement.parts;
            for ((at, len), offset) in parts.into_iter().zip([gate, up, down]) {
                let covers = |placed: &Placed| {
                    let Placed { range, slot_offset_bytes, need_bytes } = *placed;
                    let offset = u32::try_from(offset).unwrap();
                    offset >= slot_offset_bytes
                        && range.offset_bytes + u64::from(offset - slot_offset_bytes) == at
                        && offset - slot_offset_bytes + len <= need_bytes
                        && need_bytes <= range.len_bytes
                };
                prop_assert!(placement.ranges.iter().any(covers), "{parts:?} in {placement:?}");
            }
            for pair in placement.ranges.windows(2) {
                prop_assert!(pair[0].slot_offset_bytes + pair[0].range.len_bytes <= pair[1].slot_offset_bytes);
            }
            for Placed { range, slot_offset_bytes, .. } in &placement.ranges {
                prop_assert_eq!(range.offset_bytes % u64::from(align_bytes), 0);
                prop_assert_eq!(range.len_bytes % align_bytes, 0);
                prop_assert_eq!(slot_offset_bytes % align_bytes, 0);
            }
            let whole = placement.clone();
            let bitten = placement.in_bites(bite_bytes, align_bytes);
            check_bites(&whole, &bitten, (bite_bytes / align_bytes * align_bytes).max(align_bytes));
            let placement = whole;
            let apart = starts[0] + 3_000 <= starts[1] && starts[1] + 3_000 <= starts[2];
            prop_assert!(!apart || placement.slot_bytes() <= slot_bytes_max(lens, align_bytes));
        }
    }
}
