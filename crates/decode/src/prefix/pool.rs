//! Memory in equal blocks, allocated once: what is kept comes and goes in all sizes, and never leaves holes.

use std::io::{self, Read, Write};

/// Blocks, some of which hold something.
#[derive(Debug)]
pub(super) struct Pool {
    /// Untouched, and so not resident, until a block is first used.
    memory: Vec<u8>,
    block_bytes: usize,
    free: Vec<u32>,
}

/// Blocks that hold so many bytes together. It isn't copied: it must go back to its pool.
#[derive(Debug, Default)]
pub(super) struct Segment {
    blocks: Vec<u32>,
    len_bytes: usize,
}

impl Pool {
    /// `n` blocks of `block_bytes`.
    pub(super) fn new(n: usize, block_bytes: usize) -> Self {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            memory: vec![0; n as usize * block_bytes],
            block_bytes,
            // Low ones first, so that no more become resident than were used at once.
            free: (0..n).rev().collect(),
        }
    }

    pub(super) fn n_free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn n_blocks(&self) -> usize {
        self.memory.len() / self.block_bytes
    }

    /// Bytes of the blocks that hold something.
    pub(super) fn used_bytes(&self) -> u64 {
        ((self.n_blocks() - self.n_free()) * self.block_bytes) as u64
    }

    /// Blocks that `len_bytes` take.
    pub(super) fn blocks_of(&self, len_bytes: usize) -> usize {
        len_bytes.div_ceil(self.block_bytes)
    }

    /// Room for `len_bytes`, if it is free.
    pub(super) fn take(&mut self, len_bytes: usize) -> Option<Segment> {
        let rest = self.free.len().checked_sub(self.blocks_of(len_bytes))?;
        let mut blocks = self.free.split_off(rest);
        blocks.reverse();
        Some(Segment { blocks, len_bytes })
    }

    /// Takes a segment back.
    pub(super) fn give_back(&mut self, segment: Segment) {
        self.free.extend(segment.blocks);
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Takes what is written to the segment, from its beginning on.
    pub(super) fn writer<'a>(&'a mut self, segment: &'a Segment) -> SegmentWriter<'a> {
        SegmentWriter { pool: self, segment, at: 0 }
    }

    /// What the segment holds.
    pub(super) fn reader<'a>(&'a self, segment: &'a Segment) -> SegmentReader<'a> {
        SegmentReader { pool: self, segment, at: 0 }
    }
}

impl Segment {
    /// The part of the memory that begins with byte `at` and lies in one piece.
    fn piece(&self, at: usize, block_bytes: usize) -> std::ops::Range<usize> {
        let (block, offset) = (at / block_bytes, at % block_bytes);
        let len = (block_bytes - offset).min(self.len_bytes - at);
        let start = self.blocks.get(block).map_or(0, |&block| block as usize * block_bytes) + offset;
        start..start + len
    }
}

/// Writes to a segment; what is more than its length is refused.
pub(super) struct SegmentWriter<'a> {
    pool: &'a mut Pool,
    segment: &'a Segment,
    at: usize,
}

impl Write for SegmentWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = self.segment.piece(self.at, self.pool.block_bytes);
        let len = piece.len().min(bytes.len());
        self.pool.memory[piece][..len].copy_from_slice(&bytes[..len]);
        self.at += len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a segment.
pub(super) struct SegmentReader<'a> {
    pool: &'a Pool,
    segment: &'a Segment,
    at: usize,
}

impl Read for SegmentReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let piece = self.segment.piece(self.at, self.pool.block_bytes);
        let len = piece.len().min(out.len());
        out[..len].copy_from_slice(&self.pool.memory[piece][..len]);
        self.at += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_what_was_written_however_blocks_are_mixed() {
        let mut pool = Pool::new(8, 10);
        let [a, b] = [25, 30].map(|len| pool.take(len).unwrap());
        assert!(pool.take(21).is_none(), "two blocks are free");
        pool.give_back(a);
        let c = pool.take(45).unwrap();
        assert_eq!(pool.n_free(), 0);
        for (segment, seed) in [(&b, 3u8), (&c, 7)] {
            let bytes: Vec<u8> = (0..100u8).map(|i| i.wrapping_mul(seed)).collect();
            let len = segment.len_bytes;
            let mut writer = pool.writer(segment);
            for piece in bytes[..len].chunks(7) {
                writer.write_all(piece).unwrap();
            }
            assert!(writer.write_all(&[1]).is_err(), "no byte more");
        }
        for (segment, seed) in [(&b, 3u8), (&c, 7)] {
            let mut found = Vec::new();
            pool.reader(segment).read_to_end(&mut found).unwrap();
            assert_eq!(
                found,
                (0..100u8).map(|i| i.wrapping_mul(seed)).take(segment.len_bytes).collect::<Vec<u8>>()
            );
        }
    }
}
