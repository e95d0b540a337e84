//! Copies out of a mapping of each file: the plain baseline, which leaves reading and caching to the system.
//!
//! Pages are dropped from the program's resident memory as soon as they are copied, so that only slots count; the
//! system's page cache keeps them as long as it likes.
//!
//! Unproven: a file that is truncated *between* the length check and the copy ends the program with a signal. The
//! check closes the window to the copy's own duration; no portable way closes it fully. The other backends have no
//! such window.

#![expect(unsafe_code, reason = "a file mapping's bytes change when somebody else writes the file")]

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use forerun_model::Nanos;
use memmap2::{Mmap, MmapOptions};

use super::queue::Waiting;
use super::{Completed, Limits, Read, ReadBackend, Tag, copy_into};
use crate::OpenError;
use crate::files::{Content, FileSet};

/// Reads that may be submitted and not yet completed; they are copied one after the other.
const DEPTH: usize = 64;

/// The system maps more than the touched page: a window around it, or a whole huge page if the page cache has one
/// there, and what is left of that when a part is dropped. Windows of this size hold either.
#[cfg(unix)]
const DROPPED_TOGETHER_BYTES: u64 = 2 << 20;

/// Copies from file mappings, one read per [`ReadBackend::wait`], so that the first is ready first. There is no reader
/// but the waiting thread itself, so a look, a wait until time zero, brings nothing: copying is what sleeping is
/// elsewhere, and begins when the caller has nothing else to do.
#[derive(Debug)]
pub struct MmapBackend {
    files: Vec<Mapped>,
    queue: Waiting,
}

impl MmapBackend {
    /// Maps every file of the set.
    ///
    /// # Errors
    /// [`OpenError::Backend`] for bytes in memory, [`OpenError::Io`] when the system refuses.
    pub fn new(files: &FileSet) -> Result<Self, OpenError> {
        let files = files.files().iter().map(|file| {
            let path = || file.path.clone();
            let Content::File(content) = &file.content else {
                let reason = "it is in memory already";
                return Err(OpenError::Backend { path: path(), backend: "mmap", reason });
            };
            Mapped::new(content, file.len_bytes).map_err(|source| OpenError::Io {
                doing: "map",
                path: path(),
                source,
            })
        });
        Ok(Self { files: files.collect::<Result<_, _>>()?, queue: Waiting::default() })
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every backend")]
impl ReadBackend for MmapBackend {
    fn limits(&self) -> Limits {
        Limits { depth: DEPTH, align_bytes: 1 }
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        if self.queue.len() == DEPTH {
            return Err(read);
        }
        self.queue.push(read);
        Ok(())
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        self.queue.withdraw(tag)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        if until == Nanos(0) {
            return;
        }
        let Some(mut read) = self.queue.pop() else { return };
        let result = read.perform(|file, buffers, offset_bytes| {
            let mapped = self.files.get(usize::from(file)).ok_or(io::ErrorKind::NotFound)?;
            mapped.copy(buffers, offset_bytes)
        });
        done.push(Completed { read, result });
    }
}

#[derive(Debug)]
struct Mapped {
    file: Arc<File>,
    /// `None` for an empty file, which can't be mapped.
    map: Option<Mmap>,
}

impl Mapped {
    fn new(file: &Arc<File>, len_bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(len_bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: nobody of this program writes the file. Bytes that another program changes have no invalid values,
        // are only copied, and never borrowed beyond `copy`; for truncation see the module's docs.
        let map = (len > 0).then(|| unsafe { MmapOptions::new().len(len).map(&**file) });
        Ok(Self { file: Arc::clone(file), map: map.transpose()? })
    }

    /// Copies as much as the file has now.
    fn copy(&self, buffers: &mut [IoSliceMut<'_>], offset_bytes: u64) -> io::Result<usize> {
        let Some(map) = &self.map else { return Ok(0) };
        let file_bytes = self.file.metadata()?.len().min(map.len() as u64);
        let asked: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let there = file_bytes.saturating_sub(offset_bytes).min(asked);
        let (Ok(start), Ok(len)) = (usize::try_from(offset_bytes), usize::try_from(there)) else {
            return Ok(0);
        };
        if len > 0 {
            copy_into(buffers, &map[start..start + len]);
            // A system that was told to keep all of this program's memory refuses; the bytes are right all the same.
            let _ = drop_pages(map, offset_bytes, there);
        }
        Ok(len)
    }
}

/// Takes the pages of a range out of the program's resident memory.
#[cfg(unix)]
fn drop_pages(map: &Mmap, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    let start = offset_bytes / DROPPED_TOGETHER_BYTES * DROPPED_TOGETHER_BYTES;
    let end = (offset_bytes + len_bytes).next_multiple_of(DROPPED_TOGETHER_BYTES).min(map.len() as u64);
    let range = usize::try_from(start).ok().zip(usize::try_from(end - start).ok());
    let (start, len) = range.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the mapping is of a file, shared and never written through, so dropped pages read the same again; no
    // reference into it lives outside `Mapped::copy`.
    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) }
}

/// Systems without that advice trim the program's memory themselves.
#[cfg(not(unix))]
fn drop_pages(_map: &Mmap, _offset_bytes: u64, _len_bytes: u64) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{conformance, testing};

    #[test]
    fn mmap_conforms() {
        conformance::check(|files| MmapBackend::new(&testing::temporary(files)).unwrap());
    }

    #[test]
    fn a_look_copies_nothing() {
        let mut backend = MmapBackend::new(&testing::temporary(&[Bytes::from_static(b"x")])).unwrap();
        backend.submit(testing::read(Tag(1), 0, testing::window(1))).unwrap();
        let mut done = Vec::new();
        backend.wait(Nanos(0), &mut done);
        assert!(done.is_empty(), "a look would have blocked for a whole read");
        backend.wait(Nanos(1), &mut done);
        assert_eq!(done.len(), 1);
    }

    /// Windows lets no mapped file shrink.
    #[cfg(unix)]
    #[test]
    fn a_file_that_shrinks_gives_a_short_read() {
        let files = testing::temporary(&[Bytes::from(vec![7; 20_000])]);
        let mut backend = MmapBackend::new(&files).unwrap();
        let Content::File(file) = &files.files()[0].content else { unreachable!() };
        file.set_len(5_000).unwrap();
        backend.submit(testing::read(Tag(1), 4_000, testing::window(10_000))).unwrap();
        let mut done = Vec::new();
        backend.wait(Nanos::MAX, &mut done);
        assert_eq!(done.pop().unwrap().result.unwrap(), 1_000);
    }

    /// Copied pages don't stay in the program's resident memory.
    #[cfg(target_os = "linux")]
    #[test]
    fn copied_pages_are_dropped() {
        const FILE_BYTES: u32 = 8 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; FILE_BYTES as usize]).unwrap();
        let files = FileSet::new(vec![crate::DataFile::open(file.path()).unwrap()]);
        let mut backend = MmapBackend::new(&files).unwrap();
        let mut done = Vec::new();
        for i in 0..FILE_BYTES >> 20 {
            backend.submit(testing::read(Tag(0), u64::from(i << 20), testing::window(1 << 20))).unwrap();
            backend.wait(Nanos::MAX, &mut done);
            assert_eq!(done.pop().unwrap().result.unwrap(), 1 << 20);
        }
        let kib = testing::resident_kib(file.path());
        assert!(kib <= 256, "{kib} KiB of the mapping are resident");
    }

    #[test]
    fn bytes_in_memory_are_refused() {
        let files = testing::in_memory(&[Bytes::from_static(b"x")]);
        assert!(matches!(MmapBackend::new(&files), Err(OpenError::Backend { backend: "mmap", .. })));
    }
}
