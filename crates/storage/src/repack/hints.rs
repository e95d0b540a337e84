//! What the system can be told and asked: which pages will be read or are done with, how much room there is.
//!
//! Hints only: where a system has none, nothing happens. Packing reads and writes each byte once, so its pages must not
//! push out those of others.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::files::{Content, DataFile};

const PAGE_BYTES: u64 = 4096;

/// Bytes of `file` from `offset_bytes` on will be read soon.
pub(super) fn will_need(file: &DataFile, offset_bytes: u64, len_bytes: u64) {
    if let Content::File(file) = &file.content {
        system::will_need(file, offset_bytes, len_bytes);
    }
}

/// Bytes of `file` have been read.
pub(super) fn done_reading(file: &DataFile, offset_bytes: u64, len_bytes: u64) {
    if let Content::File(file) = &file.content {
        done_with(file, offset_bytes, len_bytes);
    }
}

/// Whole pages up to the range's end need not stay in memory; written ones must be on disk already.
pub(super) fn done_with(file: &File, offset_bytes: u64, len_bytes: u64) {
    let start = offset_bytes - offset_bytes % PAGE_BYTES;
    let end = offset_bytes + len_bytes;
    system::forget(file, start, end - end % PAGE_BYTES);
}

/// Bytes that a user may still write into `folder`, if the system says.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    fs4::available_space(folder).ok()
}

/// Makes `file` `len_bytes` long, of zeros, and reserves room for them where the system can.
pub(super) fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    system::reserve(file, len_bytes)?;
    file.set_len(len_bytes)
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::io;
    use std::num::NonZeroU64;

    use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
    use rustix::io::Errno;

    pub(super) fn will_need(file: &File, offset_bytes: u64, len_bytes: u64) {
        if let Some(len) = NonZeroU64::new(len_bytes) {
            let _ = fadvise(file, offset_bytes, Some(len), Advice::WillNeed);
        }
    }

    pub(super) fn forget(file: &File, start: u64, end: u64) {
        if let Some(len) = NonZeroU64::new(end.saturating_sub(start)) {
            let _ = fadvise(file, start, Some(len), Advice::DontNeed);
        }
    }

    pub(super) fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
        match fallocate(file, FallocateFlags::empty(), 0, len_bytes) {
            // File systems that can't.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::File;
    use std::io;

    pub(super) fn will_need(_: &File, _: u64, _: u64) {}

    pub(super) fn forget(_: &File, _: u64, _: u64) {}

    pub(super) fn reserve(_: &File, _: u64) -> io::Result<()> {
        Ok(())
    }
}
