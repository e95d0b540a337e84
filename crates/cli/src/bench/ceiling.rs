//! How fast this machine's memory gives the resident weights to as many threads as compute: what no decode step over
//! the same bytes can beat.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use forerun_decode::Engine;

/// Bytes that one try reads at least, so that starting threads costs nothing that shows.
const TRY_BYTES: u64 = 256 << 20;
/// The best of so many counts.
const TRIES: usize = 3;
/// Threads share the tensors in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;
/// Words that are added side by side.
const LANES: usize = 8;

/// Bytes a second, and what was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling {
    pub(super) bytes_per_second: f64,
    pub(super) resident_bytes: u64,
    pub(super) n_threads: usize,
}

/// Reads the resident tensors of `engine`, which are in memory already, with a plain loop of sums.
pub(super) fn measure(engine: &Engine) -> Ceiling {
    let pieces: Vec<&[u8]> =
        engine.resident_tensors().flat_map(|tensor| tensor.chunks(PIECE_BYTES)).collect();
    let (resident_bytes, n_threads) = (engine.resident_bytes(), engine.n_threads());
    let n_rounds = TRY_BYTES.div_ceil(resident_bytes.max(1));
    let tries = (0..TRIES).map(|_| {
        let begin = Instant::now();
        read(&pieces, n_threads, n_rounds);
        begin.elapsed().as_secs_f64()
    });
    let best = tries.fold(f64::INFINITY, f64::min);
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
    let bytes_per_second = (resident_bytes * n_rounds) as f64 / best;
    Ceiling { bytes_per_second, resident_bytes, n_threads }
}

/// The pieces in at most `n` shares of about as many bytes: no share has more than a piece beyond an equal one.
fn shares<'a, 'b>(pieces: &'a [&'b [u8]], n: usize) -> impl Iterator<Item = &'a [&'b [u8]]> {
    let (n, total) = (n.max(1) as u64, pieces.iter().map(|piece| piece.len() as u64).sum::<u64>().max(1));
    let share_at = move |offset: u64| (offset * n / total).min(n - 1);
    let mut before = 0;
    pieces.chunk_by(move |piece, _| {
        let share = share_at(before);
        before += piece.len() as u64;
        share_at(before) == share
    })
}

/// Every piece, `n_rounds` times, each thread its own share.
fn read(pieces: &[&[u8]], n_threads: usize, n_rounds: u64) {
    thread::scope(|scope| {
        for pieces in shares(pieces, n_threads) {
            scope.spawn(move || {
                for _ in 0..n_rounds {
                    black_box(black_box(pieces).iter().map(|piece| sum(piece)).fold(0, u64::wrapping_add));
                }
            });
        }
    });
}

/// The sum of the words of `bytes`, but for a last part of one block.
fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0_u64; LANES];
    let (blocks, _) = bytes.as_chunks::<{ 8 * LANES }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_bytes_and_leave_nothing_out() {
        let bytes = [0; 1000];
        // Many small pieces before a few large ones, as norms lie before matrices.
        let lens = [[1; 40].as_slice(), &[1000; 12], &[0, 3, 0]].concat();
        let pieces: Vec<&[u8]> = lens.iter().map(|&len| &bytes[..len]).collect();
        let total: usize = lens.iter().sum();
        for n in [1, 2, 3, 8, 100] {
            let shares: Vec<_> = shares(&pieces, n).collect();
            assert!(shares.len() <= n && shares.concat() == pieces, "{n}");
            for share in shares {
                let bytes: usize = share.iter().map(|piece| piece.len()).sum();
                assert!(bytes <= total / n + 1000, "{n}: {bytes}");
            }
        }
        assert_eq!(shares(&[], 4).count(), 0);
    }

    #[test]
    fn every_word_of_whole_blocks_is_read() {
        let bytes: Vec<u8> = (0..16_u64).chain([9]).flat_map(u64::to_le_bytes).collect();
        assert_eq!(sum(&bytes), 120);
        assert_eq!(sum(&bytes[..63]), 0);
    }
}
