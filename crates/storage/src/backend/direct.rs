//! Files opened so that reads go past the system's page cache: `O_DIRECT` on Linux, `F_NOCACHE` on macOS.
//!
//! Direct reads cost a fraction of the CPU of cached ones and leave the memory of others alone, but not every file
//! system takes them, some take them only in larger blocks than others, and some accept them when a file is opened and
//! refuse when it is read. So each file is read once, in the smallest block first, before anybody relies on it.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_arena::{Arena, SLOT_ALIGN_BYTES, SlotIdx};

use crate::files::{Content, DataFile, FileSet};

/// Blocks that disks have, the smallest first.
const BLOCKS_BYTES: [u32; 2] = [512, 4096];

/// Every file of a set, opened for direct reads.
#[derive(Clone, Debug)]
pub struct DirectFiles {
    files: Arc<[Opened]>,
    align_bytes: u32,
}

#[derive(Debug)]
struct Opened {
    direct: File,
    /// The same file, read through the page cache when the system changes its mind.
    cached: DataFile,
    refused: AtomicBool,
}

impl DirectFiles {
    /// Opens all files of the set and reads a block of each.
    ///
    /// # Errors
    /// Why direct reads can't be had, in words: the caller falls back and says so.
    pub fn open(files: &FileSet) -> Result<Self, String> {
        let mut align_bytes = BLOCKS_BYTES[0];
        let opened = files.files().iter().map(|file| {
            let (direct, block_bytes) =
                open(file).map_err(|why| format!("{}: {why}", file.path.display()))?;
            align_bytes = align_bytes.max(block_bytes);
            Ok(Opened { direct, cached: file.clone(), refused: AtomicBool::new(false) })
        });
        let files = opened.collect::<Result<_, String>>()?;
        Ok(Self { files, align_bytes })
    }

    /// The block that suits every file.
    pub fn align_bytes(&self) -> u32 {
        self.align_bytes
    }

    /// Whether the system refused a direct read after the first ones, so that some went through the page cache.
    pub fn was_refused(&self) -> bool {
        self.files.iter().any(|file| file.refused.load(Ordering::Relaxed))
    }

    /// The direct handle of file `file`.
    #[cfg(target_os = "linux")]
    pub(crate) fn file(&self, file: u16) -> Option<&File> {
        self.files.get(usize::from(file)).map(|file| &file.direct)
    }

    /// One read, which may be short; through the page cache when the system doesn't take it directly any more.
    pub(crate) fn read_at(
        &self,
        file: u16,
        buffers: &mut [IoSliceMut<'_>],
        offset_bytes: u64,
    ) -> io::Result<usize> {
        let file = self.files.get(usize::from(file)).ok_or(io::ErrorKind::NotFound)?;
        match read_vectored_at(&file.direct, buffers, offset_bytes) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                file.refused.store(true, Ordering::Relaxed);
                file.cached.read_vectored_at(buffers, offset_bytes)
            }
            read => read,
        }
    }
}

/// Opens one file and finds its block.
fn open(file: &DataFile) -> Result<(File, u32), String> {
    let Content::File(content) = &file.content else { return Err("it is in memory already".into()) };
    let direct =
        reopen(content).map_err(|error| format!("the file system refuses direct reads ({error})"))?;
    let arena = Arena::new(1, SLOT_ALIGN_BYTES).map_err(|error| error.to_string())?;
    let lease = arena.try_write(SlotIdx(0)).expect("the only slot of a new arena is free");
    let mut last = None;
    let block = BLOCKS_BYTES[0] as usize;
    // Begins one small block into the memory, which a disk of larger blocks doesn't take either.
    let mut window = lease.window(block..SLOT_ALIGN_BYTES);
    for block_bytes in BLOCKS_BYTES {
        let bytes = window.bytes_mut();
        let len = (block_bytes as usize).min(bytes.len());
        match read_vectored_at(&direct, &mut [IoSliceMut::new(&mut bytes[..len])], 0) {
            Ok(_) => return Ok((direct, block_bytes)),
            Err(error) => last = Some(error),
        }
        if block_bytes == BLOCKS_BYTES[0] {
            let lease = window.join().expect("it is the only window");
            window = lease.window(0..SLOT_ALIGN_BYTES);
        }
    }
    Err(match last {
        Some(error) => format!(
            "direct reads were accepted when the file was opened and refused when it was read ({error})"
        ),
        None => "no block size was tried".into(),
    })
}

/// The same file once more, past the page cache. Not by its path, where another file may be by now.
#[cfg(target_os = "linux")]
fn reopen(file: &File) -> io::Result<File> {
    use std::os::fd::AsRawFd;

    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let fd = rustix::fs::open(format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty())?;
    Ok(fd.into())
}

/// The same open file, whose reads no longer leave pages behind.
#[cfg(target_vendor = "apple")]
fn reopen(file: &File) -> io::Result<File> {
    let file = file.try_clone()?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn reopen(_file: &File) -> io::Result<File> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "there are none on this system"))
}

/// One call of the system, which may come back short.
#[cfg(unix)]
pub(crate) fn read_vectored_at(
    file: &File,
    buffers: &mut [IoSliceMut<'_>],
    offset_bytes: u64,
) -> io::Result<usize> {
    Ok(rustix::io::preadv(file, buffers, offset_bytes)?)
}

/// One call of the system for the first buffer that isn't empty: systems without vectored reads are resumed.
#[cfg(windows)]
pub(crate) fn read_vectored_at(
    file: &File,
    buffers: &mut [IoSliceMut<'_>],
    offset_bytes: u64,
) -> io::Result<usize> {
    let first = buffers.iter_mut().find(|buffer| !buffer.is_empty());
    first.map_or(Ok(0), |buffer| std::os::windows::fs::FileExt::seek_read(file, buffer, offset_bytes))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::testing;

    #[test]
    fn bytes_in_memory_are_refused_in_words() {
        let error = DirectFiles::open(&testing::in_memory(&[Bytes::from_static(b"x")])).unwrap_err();
        assert!(error.ends_with("it is in memory already"), "{error}");
    }

    /// Such a file system either takes direct reads or says why not; both are fine, a wrong byte isn't.
    #[test]
    fn a_file_system_in_memory_works_or_is_refused_in_words() {
        let Ok(mut file) = tempfile::tempfile_in("/dev/shm") else { return };
        std::io::Write::write_all(&mut file, &[7; 10_000]).unwrap();
        let set = FileSet::new(vec![DataFile::from_file("shm".as_ref(), file).unwrap()]);
        match DirectFiles::open(&set) {
            Err(why) => assert!(why.starts_with("shm: "), "{why}"),
            Ok(files) => {
                let arena = Arena::new(1, 16_384).unwrap();
                let mut window = arena.try_write(SlotIdx(0)).unwrap().window(0..12_288);
                let n = files.read_at(0, &mut [IoSliceMut::new(window.bytes_mut())], 0).unwrap();
                assert_eq!(n, 10_000);
                assert!(window.bytes_mut()[..n].iter().all(|&byte| byte == 7));
            }
        }
    }
}
