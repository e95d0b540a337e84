//! A read backend over bytes in memory and virtual time: latency, bandwidth, depth, and whatever goes wrong.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use forerun_arena::Window;
use forerun_model::{Clock, Nanos};
use forerun_storage::{Completed, Limits, Read, ReadBackend, Tag};

use crate::rng::{Rng, hash};
use crate::{Faults, VirtualClock};

/// How fast a flash is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashProfile {
    /// Time from the end of a transfer to its completion, at least.
    pub latency: Nanos,
    /// Most time beyond `latency`; it differs from read to read, so that they finish in any order.
    pub jitter: Nanos,
    /// Bytes per second, shared by all reads in flight.
    pub bytes_per_second: u64,
    /// Reads that may be submitted and not yet completed.
    pub depth: usize,
    /// What reads must be aligned to, as a disk's block; 1 for nothing.
    pub align_bytes: u32,
}

impl FlashProfile {
    /// One read at a time, in order, at 1 GB/s.
    pub fn calm() -> Self {
        Self {
            latency: Nanos::from_micros(80),
            jitter: Nanos(0),
            bytes_per_second: 1_000_000_000,
            depth: 1,
            align_bytes: 1,
        }
    }

    /// Anything from a good SSD to a bad memory card.
    pub fn random(rng: &mut Rng) -> Self {
        Self {
            latency: Nanos::from_micros(1 + rng.below(2_000)),
            jitter: Nanos::from_micros(rng.below(5_000)),
            bytes_per_second: 1_000_000 << rng.below(14),
            depth: 1 + rng.index(32),
            align_bytes: [1, 16, 512][rng.index(3)],
        }
    }
}

/// What a flash has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashLog {
    /// Reads that completed, well or not.
    pub n_reads: u64,
    /// Bytes that were moved.
    pub read_bytes: u64,
    /// Reads that failed once.
    pub n_eio: u64,
    /// Reads that were interrupted.
    pub n_interrupted: u64,
    /// Reads that ended early.
    pub n_short: u64,
    /// Reads that stalled.
    pub n_stalled: u64,
    /// Reads that failed for good.
    pub n_dead: u64,
    /// Reads with a wrong bit.
    pub n_flipped: u64,
    /// Reads that ran into the end of a truncated file.
    pub n_truncated: u64,
}

#[derive(Debug, Default)]
struct Shared {
    faults: Faults,
    log: FlashLog,
}

/// The outside of a [`SimFlash`] that lives inside a store.
#[derive(Clone, Debug, Default)]
pub struct FlashHandle(Arc<Mutex<Shared>>);

impl FlashHandle {
    /// From now on these faults happen; reads in flight keep their fate.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// What the flash has done so far.
    pub fn log(&self) -> FlashLog {
        self.lock().log
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a read will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Whole,
    Short,
    Flipped,
    Fails(io::ErrorKind),
}

struct InFlight {
    read: Read,
    done_at: Nanos,
    fate: Fate,
    /// Where the files end for this read.
    end_bytes: u64,
}

/// A read whose transfer hasn't begun.
struct Queued {
    read: Read,
    submitted_at: Nanos,
}

/// Flash in virtual time. `wait` moves the clock to the next completion; nothing else here does.
///
/// One transfer is under way at a time; the next to begin is the oldest demand, or the oldest guess if there is none.
/// Everything that happens follows from the seed and the order of calls. Where a read will land, its slot is filled
/// with garbage when it is submitted, so that nobody can mistake what was there before for what was asked for.
pub struct SimFlash {
    files: Vec<Bytes>,
    profile: FlashProfile,
    handle: FlashHandle,
    rng: Rng,
    seed: u64,
    clock: VirtualClock,
    queued: Vec<Queued>,
    in_flight: Vec<InFlight>,
    /// When the last transfer ends.
    busy_until: Nanos,
    /// Faults in a row, by read.
    in_a_row: HashMap<Tag, u32>,
}

impl SimFlash {
    /// A flash that holds `files`.
    pub fn new(
        files: Vec<Bytes>,
        profile: FlashProfile,
        faults: Faults,
        seed: u64,
        clock: VirtualClock,
    ) -> Self {
        let handle = FlashHandle::default();
        handle.set_faults(faults);
        Self {
            files,
            profile,
            handle,
            rng: Rng::new(seed),
            seed,
            clock,
            queued: Vec::new(),
            in_flight: Vec::new(),
            busy_until: Nanos(0),
            in_a_row: HashMap::new(),
        }
    }

    /// A handle that stays outside when a store takes the flash.
    pub fn handle(&self) -> FlashHandle {
        self.handle.clone()
    }

    /// Decides how a read will end, and how much later than usual.
    fn fate(&mut self, read: &Read) -> (Fate, Nanos) {
        let in_a_row = self.in_a_row.entry(read.tag).or_default();
        let mut shared = self.handle.lock();
        let Shared { faults, log } = &mut *shared;
        let mut happens = |permille, count: &mut u64| {
            let happens = self.rng.happens(permille);
            *count += u64::from(happens);
            happens
        };
        let late = if happens(faults.stall_permille, &mut log.n_stalled) { faults.stall } else { Nanos(0) };
        if is_dead(read, faults.dead_permille, self.seed) {
            log.n_dead += 1;
            return (Fate::Fails(io::ErrorKind::Other), late);
        }
        let may_fail = *in_a_row < Faults::IN_A_ROW_MAX;
        let fate = if may_fail && happens(faults.eio_permille, &mut log.n_eio) {
            Fate::Fails(io::ErrorKind::Other)
        } else if may_fail && happens(faults.interrupted_permille, &mut log.n_interrupted) {
            // Both mean: ask again.
            let kinds = [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock];
            Fate::Fails(kinds[usize::from(log.n_interrupted.is_multiple_of(2))])
        } else if may_fail && happens(faults.short_permille, &mut log.n_short) {
            Fate::Short
        } else if happens(faults.flip_permille, &mut log.n_flipped) {
            Fate::Flipped
        } else {
            Fate::Whole
        };
        let is_fault = matches!(fate, Fate::Short | Fate::Fails(_));
        *in_a_row = if is_fault { *in_a_row + 1 } else { 0 };
        (fate, late)
    }

    /// Begins the transfers that have begun by now.
    fn begin(&mut self) {
        let now = self.clock.now();
        while self.busy_until <= now
            && let Some(next) = (0..self.queued.len()).min_by_key(|&i| (self.queued[i].read.priority, i))
        {
            let Queued { read, submitted_at } = self.queued.remove(next);
            let (fate, late) = self.fate(&read);
            let speed = self.profile.bytes_per_second.max(1);
            let transfer = Nanos(read.len_bytes().saturating_mul(1_000_000_000) / speed);
            self.busy_until = self.busy_until.max(submitted_at) + transfer;
            let jitter = Nanos(self.rng.below(self.profile.jitter.0 + 1));
            let done_at = self.busy_until + self.profile.latency + jitter + late;
            let end_bytes = self.handle.lock().faults.truncate_bytes.unwrap_or(u64::MAX);
            self.in_flight.push(InFlight { read, done_at, fate, end_bytes });
        }
    }

    /// Carries out a read whose time has come.
    fn complete(&mut self, in_flight: InFlight) -> Completed {
        let InFlight { mut read, fate, end_bytes, .. } = in_flight;
        let len_bytes = read.len_bytes();
        self.handle.lock().log.n_reads += 1;
        let budget = match fate {
            Fate::Fails(kind) => {
                return Completed { read, result: Err(io::Error::new(kind, "the simulated flash says so")) };
            }
            Fate::Short => 1 + self.rng.below(len_bytes.saturating_sub(1)),
            Fate::Whole | Fate::Flipped => len_bytes,
        };
        let result = copy(&self.files, &mut read, budget, end_bytes);
        if fate == Fate::Flipped && !read.windows.is_empty() {
            flip(&mut read.windows, &mut self.rng);
        }
        if let Ok(moved) = result {
            let mut shared = self.handle.lock();
            shared.log.read_bytes += moved;
            shared.log.n_truncated += u64::from(moved < budget && end_bytes < u64::MAX);
        }
        Completed { read, result }
    }

    /// Moves the reads whose time has come into `done`, first things first.
    fn deliver(&mut self, done: &mut Vec<Completed>) {
        let now = self.clock.now();
        while let Some(next) = self.next().filter(|&i| self.in_flight[i].done_at <= now) {
            let in_flight = self.in_flight.remove(next);
            let completed = self.complete(in_flight);
            done.push(completed);
        }
    }

    /// The transferred read that completes first.
    fn next(&self) -> Option<usize> {
        (0..self.in_flight.len()).min_by_key(|&i| self.in_flight[i].done_at)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every backend")]
impl ReadBackend for SimFlash {
    fn limits(&self) -> Limits {
        Limits { depth: self.profile.depth, align_bytes: self.profile.align_bytes }
    }

    fn submit(&mut self, mut read: Read) -> Result<(), Read> {
        if self.queued.len() + self.in_flight.len() >= self.profile.depth {
            return Err(read);
        }
        let align = u64::from(self.profile.align_bytes);
        let whole = |bytes: usize| (bytes as u64).is_multiple_of(align);
        let windows = read.windows.iter().all(|window| whole(window.start()) && whole(window.len()));
        assert!(read.offset_bytes.is_multiple_of(align) && windows, "{read:?} isn't aligned");
        for window in &mut read.windows {
            window.bytes_mut().fill(0xa5);
        }
        self.begin();
        self.queued.push(Queued { read, submitted_at: self.clock.now() });
        self.begin();
        Ok(())
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        self.begin();
        let at = self.queued.iter().position(|queued| queued.read.tag == tag)?;
        Some(self.queued.remove(at).read)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        let before = done.len();
        loop {
            self.begin();
            self.deliver(done);
            let completion = self.next().map(|i| self.in_flight[i].done_at);
            let beginning = (!self.queued.is_empty()).then_some(self.busy_until);
            let event = completion.into_iter().chain(beginning).min();
            let Some(event) = event.filter(|_| done.len() == before) else { return };
            self.clock.advance_to(event.min(until));
            if event > until {
                return;
            }
        }
    }
}

/// Whether a read begins in a range that is broken for good: ranges of 512 bytes, chosen by the seed. Only the
/// beginnings count, so that long reads die no more often than short ones.
fn is_dead(read: &Read, permille: u32, seed: u64) -> bool {
    hash(&[seed, read.file.into(), read.offset_bytes / 512]) % 1000 < u64::from(permille)
}

/// Copies at most `budget` bytes and stops where the file ends; returns how many it were.
fn copy(files: &[Bytes], read: &mut Read, budget: u64, end_bytes: u64) -> io::Result<u64> {
    let file = files.get(usize::from(read.file)).ok_or(io::ErrorKind::NotFound)?;
    let end = usize::try_from(end_bytes).unwrap_or(usize::MAX).min(file.len());
    let start = usize::try_from(read.offset_bytes).unwrap_or(usize::MAX).min(end);
    let n = usize::try_from(budget).unwrap_or(usize::MAX).min(end - start);
    let mut left = &file[start..start + n];
    for window in &mut read.windows {
        let (now, later) = left.split_at(window.len().min(left.len()));
        window.bytes_mut()[..now.len()].copy_from_slice(now);
        left = later;
    }
    Ok((n - left.len()) as u64)
}

fn flip(windows: &mut [Window], rng: &mut Rng) {
    let bytes = windows[rng.index(windows.len())].bytes_mut();
    let at = rng.index(bytes.len());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

#[cfg(test)]
mod tests;
