//! Many small ranges into few long reads. Pure.
//!
//! Experts that lie side by side in a file, or nearly, cost less as one read into several slots than as one each: until
//! the read is long enough for the disk's full speed. What lies between two of them is read and thrown away.

use std::ops::Range;

use crate::catalog::ByteRange;

/// What may be read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeLimits {
    /// Most unwanted bytes between two ranges of one read.
    pub gap_bytes_max: u32,
    /// Longest read of several ranges.
    pub merged_bytes_max: u32,
}

impl MergeLimits {
    /// Each range is a read of its own.
    pub const NONE: Self = Self { gap_bytes_max: 0, merged_bytes_max: 0 };
}

impl Default for MergeLimits {
    /// Reads reach their full speed far below this on every disk that was measured, and a longer one only makes the
    /// first of its experts wait for the last.
    fn default() -> Self {
        Self { gap_bytes_max: 64 << 10, merged_bytes_max: 4 << 20 }
    }
}

/// Most ranges of one read: systems bound the buffers of a vectored read by 1024, and a range needs up to two, and a gap one.
const RANGES_MAX: usize = 256;

/// Groups `ranges`, which begin and end at multiples of `align_bytes` and are in ascending order, into reads: each
/// item is the indices of one. Within a read a range may begin with the block that the one before it ends with, if it
/// goes on beyond it.
pub fn merge(ranges: &[ByteRange], align_bytes: u32, limits: MergeLimits) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    // Where the last range's own bytes begin: those that it doesn't share with the one before it.
    let mut own_start_bytes = 0;
    for (i, next) in ranges.iter().enumerate() {
        let at = match runs.last_mut() {
            Some(run) if run.len() < RANGES_MAX => {
                let (first, last) = (&ranges[run.start], &ranges[i - 1]);
                let may_share = Share { own_start_bytes, align_bytes };
                joins(first, last, next, may_share, limits).then(|| {
                    run.end = i + 1;
                    next.offset_bytes.max(last.end_bytes())
                })
            }
            _ => None,
        };
        own_start_bytes = at.unwrap_or_else(|| {
            runs.push(i..i + 1);
            next.offset_bytes
        });
    }
    runs
}

/// What the next range may have in common with the last one of a run.
struct Share {
    own_start_bytes: u64,
    align_bytes: u32,
}

fn joins(first: &ByteRange, last: &ByteRange, next: &ByteRange, share: Share, limits: MergeLimits) -> bool {
    let end_bytes = last.end_bytes();
    let shared_bytes = end_bytes.saturating_sub(next.offset_bytes);
    let gap_bytes = next.offset_bytes.saturating_sub(end_bytes);
    let may_share = shared_bytes == 0
        || share.align_bytes > 1
            && shared_bytes == u64::from(share.align_bytes)
            && next.offset_bytes >= share.own_start_bytes;
    next.file == last.file
        && next.end_bytes() > end_bytes
        && may_share
        && gap_bytes <= u64::from(limits.gap_bytes_max)
        && next.end_bytes() - first.offset_bytes <= u64::from(limits.merged_bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges as `start-end` of file 0, or `file:start-end`; reads in brackets.
    #[track_caller]
    fn check(align_bytes: u32, gap_bytes_max: u32, merged_bytes_max: u32, ranges: &str, expect: &str) {
        let words: Vec<&str> = ranges.split_whitespace().collect();
        let parse = |word: &&str| {
            let (file, rest) = word.split_once(':').unwrap_or(("0", word));
            let (start, end) = rest.split_once('-').unwrap();
            let (start, end): (u64, u64) = (start.parse().unwrap(), end.parse().unwrap());
            let len_bytes = u32::try_from(end - start).unwrap();
            ByteRange { file: file.parse().unwrap(), offset_bytes: start, len_bytes }
        };
        let parsed: Vec<ByteRange> = words.iter().map(parse).collect();
        let runs = merge(&parsed, align_bytes, MergeLimits { gap_bytes_max, merged_bytes_max });
        let text: Vec<String> = runs.into_iter().map(|run| format!("[{}]", words[run].join(" "))).collect();
        assert_eq!(text.join(" "), expect);
    }

    #[test]
    fn ranges_that_touch_are_one_read() {
        check(1, 0, 100, "0-10 10-20 20-30 31-40", "[0-10 10-20 20-30] [31-40]");
    }

    #[test]
    fn small_gaps_are_read_along() {
        check(1, 5, 100, "0-10 15-20 26-30", "[0-10 15-20] [26-30]");
    }

    #[test]
    fn no_read_is_longer_than_the_limit_but_for_a_single_range() {
        check(1, 0, 25, "0-10 10-20 20-30 30-90", "[0-10 10-20] [20-30] [30-90]");
        check(1, 0, 0, "0-10 10-20", "[0-10] [10-20]");
    }

    #[test]
    fn files_are_apart() {
        check(1, 50, 100, "0:0-10 1:10-20 1:20-30", "[0:0-10] [1:10-20 1:20-30]");
    }

    #[test]
    fn neighbours_may_share_one_block() {
        check(8, 0, 100, "0-24 16-32 24-48", "[0-24 16-32 24-48]");
        check(8, 0, 100, "0-24 8-32", "[0-24] [8-32]");
    }

    #[test]
    fn a_block_is_shared_by_two_only() {
        check(8, 0, 100, "0-8 0-16 8-24", "[0-8 0-16 8-24]");
        check(8, 0, 100, "0-16 8-24 8-32", "[0-16 8-24] [8-32]");
    }

    #[test]
    fn a_range_without_bytes_of_its_own_is_a_read_of_its_own() {
        check(8, 0, 100, "0-16 8-16", "[0-16] [8-16]");
    }

    #[test]
    fn the_same_bytes_twice_are_two_reads() {
        check(1, 9, 100, "0-10 0-10", "[0-10] [0-10]");
    }
}
