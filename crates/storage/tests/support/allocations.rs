//! Counts the bytes that the current thread allocates, and holds a malformed file to its bound.

#![expect(unsafe_code, reason = "an allocator that counts must be an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forerun_storage::{Gguf, OpenError};

/// What opening a malformed file may allocate beyond the file's size.
const SLACK_BYTES: usize = 16 << 20;

thread_local! {
    static TOTAL: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is the system allocator's own; counting touches a constant-initialised thread local only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(n: usize) {
    // A thread that is ending has no counter any more.
    let _ = TOTAL.try_with(|total| total.set(total.get().saturating_add(n)));
}

/// Runs `work`; its result and the bytes that it allocated in all.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
    TOTAL.set(0);
    let result = work();
    (result, TOTAL.get())
}

/// Opens `bytes` in memory and as a file; both must agree, be quick, and allocate little.
#[track_caller]
pub fn open_both(bytes: &[u8]) -> Result<Gguf, OpenError> {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let from_file = bounded(bytes.len(), || Gguf::open(file.path()));
    let shared = Bytes::copy_from_slice(bytes);
    let from_memory = bounded(bytes.len(), || Gguf::open_bytes("memory", shared));
    match (&from_file, &from_memory) {
        (Ok(a), Ok(b)) => assert_eq!(a.tensors(), b.tensors()),
        (Err(a), Err(b)) => {
            let path = file.path().display().to_string();
            assert_eq!(a.to_string().replace(&path, "memory"), b.to_string());
        }
        _ => panic!("a file and the same bytes in memory disagree: {from_file:?}, {from_memory:?}"),
    }
    from_memory
}

/// The message with which `bytes` are refused; it must contain each of `names`.
#[track_caller]
pub fn refused(bytes: &[u8], names: &[&str]) -> String {
    let error = open_both(bytes).expect_err("a malformed file must be refused").to_string();
    for name in names {
        assert!(error.contains(name), "{error:?} should say {name:?}");
    }
    error
}

#[track_caller]
fn bounded<T>(file_bytes: usize, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let (result, allocated) = counted(work);
    assert!(start.elapsed() < Duration::from_secs(1), "took {:?}", start.elapsed());
    assert!(allocated < file_bytes + SLACK_BYTES, "allocated {allocated} for a file of {file_bytes}");
    result
}
