//! Crashes and full disks at every byte, on a simulated disk that loses what wasn't synced, and on a real one.

mod recode;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use proptest::prelude::*;

use super::disk::DiskOutput;
use super::output::Output;
use super::{Direction, Existing, Order, Settings, begin};
use crate::{Gguf, PackError};

/// What a write's data survives a crash in: whole pieces of this size.
const SECTOR_BYTES: usize = 512;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny-b-q3_k_m.gguf")
}

/// Small steps, so that there are many places to end at.
fn settings() -> Settings {
    Settings { step_bytes: 40_000, checkpoint_bytes: 200_000, ..Settings::default() }
}

/// The packed fixture, as an uninterrupted run makes it.
static PACKED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let source = Gguf::open(&fixture()).unwrap();
    let disk = Disk::default();
    run(&source, &disk, Direction::Pack, &settings()).unwrap();
    let published = disk.lock().published.take();
    published.unwrap()
});

fn run(source: &Gguf, disk: &Disk, direction: Direction, settings: &Settings) -> Result<u64, PackError> {
    let open = |_: &Path, _| -> Result<Box<dyn Output>, PackError> { Ok(Box::new(disk.clone())) };
    let job = begin(source, Path::new("target"), settings, direction, &open)?;
    let resumed_bytes = job.progress().resumed_bytes;
    job.finish().map(|_| resumed_bytes)
}

/// A disk that ends all work once its allowance is used up.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    part: Option<Vec<u8>>,
    /// Written but not synced.
    pending: Vec<(usize, Vec<u8>)>,
    journal: Vec<u8>,
    published: Option<Vec<u8>>,
    /// Bytes that may still be written; every other operation costs one.
    allowance: Option<usize>,
    /// What the end looks like.
    end: Option<io::ErrorKind>,
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// What is there when the machine comes back: of the unsynced sectors those that `seed` keeps.
    fn crash(&self, mut seed: u64) {
        let mut state = self.lock();
        let pending = std::mem::take(&mut state.pending);
        let Some(part) = &mut state.part else { return };
        for (at, bytes) in pending {
            for (i, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if seed >> 63 == 1 {
                    part[at + i * SECTOR_BYTES..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
    }
}

impl State {
    /// Takes up to `n` from the allowance; what it gets, or the end.
    fn spend(&mut self, n: usize) -> Result<(), (usize, io::Error)> {
        let Some(allowance) = &mut self.allowance else { return Ok(()) };
        if n <= *allowance {
            *allowance -= n;
            return Ok(());
        }
        let got = std::mem::take(allowance);
        Err((got, self.end.unwrap_or(io::ErrorKind::Other).into()))
    }

    fn settle(&mut self) {
        let part = self.part.as_mut().unwrap();
        for (at, bytes) in self.pending.drain(..) {
            part[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

impl Output for Disk {
    fn earlier(&mut self, len_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let state = self.lock();
        let fits = state.part.as_ref().is_some_and(|part| part.len() as u64 == len_bytes);
        Ok((fits && !state.journal.is_empty()).then(|| state.journal.clone()))
    }

    fn begin(&mut self, len_bytes: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.spend(1).map_err(|end| end.1)?;
        state.journal.clear();
        state.pending.clear();
        state.spend(1).map_err(|end| end.1)?;
        state.part = Some(vec![0; usize::try_from(len_bytes).unwrap()]);
        Ok(())
    }

    fn resume(&mut self, journal_bytes: u64, _: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.spend(1).map_err(|end| end.1)?;
        state.journal.truncate(usize::try_from(journal_bytes).unwrap());
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        let mut state = self.lock();
        let (got, result) = match state.spend(bytes.len()) {
            Ok(()) => (bytes.len(), Ok(())),
            Err((got, end)) => (got, Err(end)),
        };
        state.pending.push((usize::try_from(offset_bytes).unwrap(), bytes[..got].to_vec()));
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.lock();
        state.spend(1).map_err(|end| end.1)?;
        state.settle();
        Ok(())
    }

    fn note(&mut self, entry: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let (got, result) = match state.spend(entry.len()) {
            Ok(()) => (entry.len(), Ok(())),
            Err((got, end)) => (got, Err(end)),
        };
        state.journal.extend(&entry[..got]);
        result
    }

    fn publish(&mut self) -> io::Result<()> {
        let mut state = self.lock();
        state.spend(1).map_err(|end| end.1)?;
        state.settle();
        state.published = state.part.take();
        state.journal.clear();
        Ok(())
    }

    fn discard(&mut self) -> io::Result<()> {
        let mut state = self.lock();
        state.part = None;
        state.pending.clear();
        state.journal.clear();
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(7)
    }
}

/// Ends a run after each of `allowances`, then lets one go on to the end; the target, and bytes that were resumed.
fn interrupted(
    source: &Gguf,
    direction: Direction,
    allowances: &[usize],
    seed: u64,
) -> (Option<Vec<u8>>, u64) {
    let disk = Disk::default();
    let mut resumed_bytes = 0;
    for (i, allowance) in allowances.iter().map(|n| Some(*n)).chain([None]).enumerate() {
        disk.lock().allowance = allowance;
        match run(source, &disk, direction, &settings()) {
            Ok(bytes) => return (disk.lock().published.take(), resumed_bytes + bytes),
            Err(_) => {
                assert!(disk.lock().published.is_none(), "a run that failed published something");
                disk.crash(seed.wrapping_add(i as u64));
            }
        }
        // What the last run had made, not counting the journal's reading.
        resumed_bytes = 0;
    }
    panic!("the last run has no end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_at_any_byte_changes_nothing_in_the_end(
        allowances in prop::collection::vec(0_usize..9_000_000, 1..5),
        seed in any::<u64>(),
    ) {
        let source = Gguf::open(&fixture()).unwrap();
        let (packed, _) = interrupted(&source, Direction::Pack, &allowances, seed);
        prop_assert!(packed.unwrap() == *PACKED, "the packed file differs");
        let source = Gguf::open_bytes("packed", PACKED.clone().into()).unwrap();
        let (unpacked, _) = interrupted(&source, Direction::Unpack, &allowances, seed);
        prop_assert!(unpacked.unwrap() == std::fs::read(fixture()).unwrap(), "the unpacked file differs");
    }
}

/// Every early byte, where journals begin, and every byte around a checkpoint.
#[test]
fn a_crash_at_each_of_many_bytes_changes_nothing_in_the_end() {
    let source = Gguf::open(&fixture()).unwrap();
    for allowance in (0..120).chain((190_000..260_000).step_by(997)) {
        let (packed, _) = interrupted(&source, Direction::Pack, &[allowance], 1);
        assert!(packed.unwrap() == *PACKED, "after {allowance} bytes");
    }
}

#[test]
fn a_later_run_goes_on_where_the_last_checkpoint_was() {
    let source = Gguf::open(&fixture()).unwrap();
    let (packed, resumed_bytes) = interrupted(&source, Direction::Pack, &[700_000], 3);
    assert!(packed.unwrap() == *PACKED);
    assert!((400_000..700_000).contains(&resumed_bytes), "{resumed_bytes}");
}

#[test]
fn other_settings_start_afresh() {
    let source = Gguf::open(&fixture()).unwrap();
    let disk = Disk::default();
    disk.lock().allowance = Some(700_000);
    run(&source, &disk, Direction::Pack, &settings()).unwrap_err();
    disk.lock().allowance = None;
    let n_experts = u32::try_from(super::recipe::describe(&source).unwrap().0.moe.n_experts).unwrap();
    let reversed: Vec<u32> = (0..n_experts).rev().collect();
    let order = Order::Given(vec![reversed; super::recipe::describe(&source).unwrap().0.n_layers()]);
    let other = Settings { order, ..settings() };
    assert_eq!(run(&source, &disk, Direction::Pack, &other).unwrap(), 0);
    assert!(disk.lock().published.take().unwrap() != *PACKED);
}

#[test]
fn a_full_disk_leaves_nothing_and_says_what_is_missing() {
    let source = Gguf::open(&fixture()).unwrap();
    let disk = Disk::default();
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge] {
        for allowance in [0, 1, 50, 300_000, PACKED.len() / 2] {
            (disk.lock().allowance, disk.lock().end) = (Some(allowance), None);
            disk.lock().end = Some(kind);
            let error = run(&source, &disk, Direction::Pack, &settings()).unwrap_err();
            let PackError::NoSpace { need_bytes, free_bytes: 7, .. } = error else { panic!("{error}") };
            assert!(need_bytes <= PACKED.len() as u64 && need_bytes > 7);
            assert!(error.to_string().contains(&format!("{} are missing", need_bytes - 7)), "{error}");
            let state = disk.lock();
            assert!(state.part.is_none() && state.journal.is_empty() && state.published.is_none());
        }
    }
}

#[test]
fn a_shortage_when_going_on_leaves_what_is_done() {
    let source = Gguf::open(&fixture()).unwrap();
    let disk = Disk::default();
    disk.lock().allowance = Some(700_000);
    run(&source, &disk, Direction::Pack, &settings()).unwrap_err();
    (disk.lock().allowance, disk.lock().end) = (Some(0), Some(io::ErrorKind::StorageFull));
    let error = run(&source, &disk, Direction::Pack, &settings()).unwrap_err();
    let PackError::NoSpace { need_bytes, .. } = error else { panic!("{error}") };
    disk.lock().allowance = None;
    let resumed_bytes = run(&source, &disk, Direction::Pack, &settings()).unwrap();
    assert!(resumed_bytes > 0);
    assert_eq!(need_bytes, PACKED.len() as u64 - resumed_bytes);
    assert!(disk.lock().published.take().unwrap() == *PACKED);
}

#[test]
fn a_piece_can_be_tried_again_after_an_error() {
    let source = Gguf::open(&fixture()).unwrap();
    let disk = Disk::default();
    let open = |_: &Path, _| -> Result<Box<dyn Output>, PackError> { Ok(Box::new(disk.clone())) };
    let mut job = begin(&source, Path::new("target"), &settings(), Direction::Pack, &open).unwrap();
    let mut n_errors = 0;
    loop {
        disk.lock().allowance = Some(30_000);
        n_errors += usize::from(job.step().is_err());
        disk.lock().allowance = None;
        if !job.step().unwrap() {
            break;
        }
    }
    assert!(n_errors > 10, "{n_errors}");
    job.finish().unwrap();
    assert!(disk.lock().published.take().unwrap() == *PACKED);
}

/// A real disk under a wrapper that ends after some writes.
struct Ending {
    inner: DiskOutput,
    n_writes_left: usize,
    end: io::ErrorKind,
}

impl Output for Ending {
    fn earlier(&mut self, len_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        self.inner.earlier(len_bytes)
    }

    fn begin(&mut self, len_bytes: u64) -> io::Result<()> {
        self.inner.begin(len_bytes)
    }

    fn resume(&mut self, journal_bytes: u64, left_bytes: u64) -> io::Result<()> {
        self.inner.resume(journal_bytes, left_bytes)
    }

    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        match self.n_writes_left.checked_sub(1) {
            Some(n) => self.n_writes_left = n,
            None => {
                self.inner.write_at(&bytes[..bytes.len() / 2], offset_bytes)?;
                return Err(self.end.into());
            }
        }
        self.inner.write_at(bytes, offset_bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.inner.sync()
    }

    fn note(&mut self, entry: &[u8]) -> io::Result<()> {
        self.inner.note(entry)
    }

    fn publish(&mut self) -> io::Result<()> {
        self.inner.publish()
    }

    fn discard(&mut self) -> io::Result<()> {
        self.inner.discard()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
}

fn run_on_disk(target: &Path, n_writes: usize, end: io::ErrorKind) -> Result<u64, PackError> {
    let source = Gguf::open(&fixture())?;
    let open = |target: &Path, existing: Existing| -> Result<Box<dyn Output>, PackError> {
        Ok(Box::new(Ending { inner: DiskOutput::open(target, existing)?, n_writes_left: n_writes, end }))
    };
    let job = begin(&source, target, &settings(), Direction::Pack, &open)?;
    let resumed_bytes = job.progress().resumed_bytes;
    job.finish().map(|_| resumed_bytes)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_real_disk_keeps_what_a_crash_left_and_gives_back_what_filled_it() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.gguf");
    let left = ["out.gguf.forerun-journal", "out.gguf.forerun-part"];
    for n_writes in [0, 1, 9, 20, 33] {
        let error = run_on_disk(&target, n_writes, io::ErrorKind::Other).unwrap_err();
        assert!(matches!(error, PackError::Write { .. }), "{error}");
        assert_eq!(names(folder.path()), left);
    }
    assert!(run_on_disk(&target, 60, io::ErrorKind::Other).is_err());
    assert!(run_on_disk(&target, 4, io::ErrorKind::StorageFull).is_err());
    assert_eq!(names(folder.path()), [""; 0], "a full disk must be given back");
    run_on_disk(&target, usize::MAX, io::ErrorKind::Other).unwrap();
    assert!(std::fs::read(&target).unwrap() == *PACKED);
    assert_eq!(names(folder.path()), ["out.gguf"]);
}
