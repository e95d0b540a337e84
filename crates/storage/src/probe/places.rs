//! Where to read: places all over the files in random order, none twice, since the disk may remember what it read.

use crate::FileSet;

/// A place to read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) file: u16,
    pub(super) offset_bytes: u64,
}

/// Hands out places of one size. Takes no memory for them: it walks through a permutation of their numbers.
#[derive(Debug)]
pub(super) struct Places {
    /// Of each file, the number of its first place.
    firsts: Vec<u64>,
    place_bytes: u64,
    n_left: u64,
    n_places: u64,
    walk: Walk,
}

impl Places {
    /// Places of `place_bytes` in all files, in an order that `seed` decides.
    pub(super) fn new(files: &FileSet, place_bytes: u64, seed: u64) -> Self {
        let lens_bytes = files.files().iter().map(|file| file.len_bytes);
        Self::of_lens(lens_bytes, place_bytes, seed)
    }

    /// As [`Self::new`], of files that have these lengths.
    pub(super) fn of_lens(lens_bytes: impl Iterator<Item = u64>, place_bytes: u64, seed: u64) -> Self {
        let mut n_places = 0;
        let first = |len_bytes| {
            let first = n_places;
            n_places += len_bytes / place_bytes;
            first
        };
        let firsts = lens_bytes.map(first).collect();
        Self { firsts, place_bytes, n_left: n_places, n_places, walk: Walk::new(n_places, seed) }
    }

    /// Places that weren't handed out.
    pub(super) fn n_left(&self) -> u64 {
        self.n_left
    }
}

impl Iterator for Places {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        self.n_left = self.n_left.checked_sub(1)?;
        let number = std::iter::repeat_with(|| self.walk.next()).find(|&number| number < self.n_places)?;
        let file = self.firsts.partition_point(|&first| first <= number) - 1;
        let offset_bytes = (number - self.firsts[file]) * self.place_bytes;
        Some(Place { file: u16::try_from(file).ok()?, offset_bytes })
    }
}

/// Every number below a power of two once, in an order that looks random.
#[derive(Debug)]
struct Walk {
    state: u64,
    mask: u64,
    shift: u32,
}

impl Walk {
    /// Over at least `n` numbers.
    fn new(n: u64, seed: u64) -> Self {
        let mask = n.max(2).next_power_of_two() - 1;
        Self { state: seed & mask, mask, shift: mask.count_ones().div_ceil(2) }
    }

    fn next(&mut self) -> u64 {
        // A multiplier of 1 modulo 4 and an odd increment visit all residues of a power of two. The low digits of such
        // a walk repeat early, so that each of the steps below, which can be undone, brings the high ones down.
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state &= self.mask;
        let mixed = (self.state ^ (self.state >> self.shift)).wrapping_mul(0x9E37_79B9_7F4A_7C15) & self.mask;
        mixed ^ (mixed >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_place_comes_once() {
        for lens in [vec![0], vec![9], vec![10], vec![31, 0, 9, 20, 1_000_003], vec![640]] {
            for seed in 0..20 {
                let places: Vec<Place> = Places::of_lens(lens.iter().copied(), 10, seed).collect();
                let unique: BTreeSet<Place> = places.iter().copied().collect();
                let n: u64 = lens.iter().map(|len| len / 10).sum();
                assert_eq!((places.len() as u64, unique.len() as u64), (n, n), "seed {seed}");
                for place in places {
                    assert!(
                        place.offset_bytes + 10 <= lens[usize::from(place.file)],
                        "{place:?}, seed {seed}"
                    );
                }
            }
        }
    }

    #[test]
    fn neighbours_rarely_follow_each_other() {
        for seed in 0..20 {
            let places: Vec<u64> =
                Places::of_lens([10_000].into_iter(), 1, seed).map(|place| place.offset_bytes).collect();
            let n_near = places.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 16).count();
            assert!(n_near < 200, "{n_near} of {} steps are short, seed {seed}", places.len());
        }
    }

    #[test]
    fn another_seed_begins_elsewhere() {
        let first = |seed| Places::of_lens([1 << 30].into_iter(), 4096, seed).next();
        assert_ne!(first(1), first(2));
    }
}
