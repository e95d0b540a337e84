//! Offsets beyond 32 bits and beyond any file, on sparse files that take no room.

// Files are sparse by themselves on unix only: elsewhere a hole of 10 GiB takes 10 GiB.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use support::Raw;

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{Nanos, SystemClock};
use forerun_storage::{
    Gguf, MmapBackend, OpenError, PreadBackend, PreadConfig, Priority, Read, ReadBackend, Tag,
};

const FAR: u64 = 5 << 30;

/// Held by every test with such a file, so that a file system without holes has room for one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A header of two tensors, the second of `len` bytes at `offset_bytes` of the data.
fn header(offset_bytes: u64, len: u64) -> Vec<u8> {
    Raw::start(2, 0).tensor("near", &[8], 24, 0).tensor("far", &[len], 24, offset_bytes).pad(32).0
}

fn sparse(header: &[u8], parts: &[(u64, &[u8])], len_bytes: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(header).unwrap();
    file.as_file().set_len(len_bytes).unwrap();
    for (offset_bytes, bytes) in parts {
        file.seek(SeekFrom::Start(*offset_bytes)).unwrap();
        file.write_all(bytes).unwrap();
    }
    file
}

fn first_and_last(gguf: &Gguf, backend: &mut dyn ReadBackend) -> Vec<u8> {
    let far = gguf.tensor("far").unwrap();
    let last = far.offset_bytes + far.len_bytes - 1;
    let mut byte = |offset_bytes| {
        let windows = vec![Arena::new(1, 1).unwrap().try_write(SlotIdx(0)).unwrap().window(0..1)];
        let read = Read { tag: Tag(0), priority: Priority::Demand, file: far.file, offset_bytes, windows };
        backend.submit(read).unwrap();
        let mut done = Vec::new();
        backend.wait(Nanos::MAX, &mut done);
        let mut completed = done.pop().unwrap();
        assert_eq!(completed.result.unwrap(), 1);
        completed.read.windows[0].bytes_mut()[0]
    };
    vec![byte(far.offset_bytes), byte(last)]
}

#[test]
fn a_tensor_beyond_four_gibibytes_is_read() {
    let _alone = alone();
    let header = header(FAR, 1000);
    let start = header.len() as u64 + FAR;
    let file = sparse(&header, &[(start, b"F"), (start + 999, b"L")], start + 1000);
    let gguf = Gguf::open(file.path()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let mut pread = PreadBackend::new(gguf.files(), PreadConfig::default(), clock).unwrap();
    assert_eq!(first_and_last(&gguf, &mut pread), b"FL");
    let mut mmap = MmapBackend::new(gguf.files()).unwrap();
    assert_eq!(first_and_last(&gguf, &mut mmap), b"FL");
}

#[test]
fn one_byte_past_a_large_file_is_refused() {
    let _alone = alone();
    let header = header(FAR, 1000);
    let end = header.len() as u64 + FAR + 1000;
    let file = sparse(&header, &[], end - 1);
    let error = Gguf::open(file.path()).unwrap_err().to_string();
    assert!(error.contains("`far`") && error.contains(&end.to_string()), "{error}");
    assert!(error.contains(&(end - 1).to_string()), "{error}");
}

#[test]
fn offsets_beyond_any_file_are_refused() {
    let _alone = alone();
    for offset_bytes in [(1 << 63) - 32, 1 << 63, u64::MAX - 31] {
        let file = sparse(&header(offset_bytes, 1000), &[], FAR);
        let error = Gguf::open(file.path()).unwrap_err();
        assert!(matches!(error, OpenError::Header { .. }) && error.to_string().contains("`far`"), "{error}");
    }
}

#[test]
fn a_huge_hole_is_no_header() {
    let _alone = alone();
    // A string and an array as long as the hole: zeros that the file really has.
    for entry in [
        Raw::default().entry("a", support::raw::TEXT).u64(FAR),
        Raw::default().array("a", support::raw::ARRAY, FAR / 16),
        Raw::default().array("a", support::raw::TEXT, FAR / 16),
    ] {
        let file = sparse(&Raw::start(0, 1).bytes(&entry.0).0, &[], 2 * FAR);
        let start = std::time::Instant::now();
        let (result, allocated) = support::allocations::counted(|| Gguf::open(file.path()));
        assert!(result.is_err() && allocated < 1 << 20, "allocated {allocated}");
        assert!(start.elapsed().as_secs() < 1);
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Gguf::open(Path::new("no/such/model.gguf")).unwrap_err();
    assert!(error.to_string().contains("no/such/model.gguf"));
}
