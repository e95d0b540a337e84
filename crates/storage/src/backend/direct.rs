//! Files opened so that reads go past the system's page cache: `O_DIRECT` on Linux, `F_NOCACHE` on macOS,
//! `FILE_FLAG_NO_BUFFERING` on Windows.
//!
//! Direct reads cost a fraction of the CPU of cached ones and leave the memory of others alone, but not every file
//! system takes them, some take them only in larger blocks than others, and some accept them when a file is opened and
//! refuse when it is read. So each file is read once, in the smallest block first, before anybody relies on it.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use forerun_arena::{Arena, SLOT_ALIGN_BYTES, SlotIdx};

use crate::files::{Content, DataFile, FileSet};

/// Blocks that disks have, the smallest first.
const BLOCKS_BYTES: [u32; 2] = [512, 4096];

/// Every file of a set, opened for direct reads.
#[derive(Clone, Debug)]
pub struct DirectFiles {
    files: Arc<[Opened]>,
    align_bytes: u32,
    /// What happened to the way of reading that was chosen.
    note: Arc<OnceLock<String>>,
}

#[derive(Debug)]
struct Opened {
    direct: File,
    /// The same file, read through the page cache when the system changes its mind.
    cached: DataFile,
    refused: Arc<AtomicBool>,
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
            Ok(Opened { direct, cached: file.clone(), refused: Arc::default() })
        });
        let files = opened.collect::<Result<_, String>>()?;
        Ok(Self { files, align_bytes, note: Arc::default() })
    }

    /// The same for another thread. Windows lets the reads of one handle wait for each other, so there it has handles of its own.
    ///
    /// # Errors
    /// When a file can't be opened once more.
    pub(crate) fn for_another_thread(&self) -> io::Result<Self> {
        if !cfg!(windows) {
            return Ok(self.clone());
        }
        let files = self.files.iter().map(|file| {
            let Content::File(content) = &file.cached.content else {
                return Err(io::ErrorKind::NotFound.into());
            };
            let direct = reopen(&file.cached, content)?;
            Ok(Opened { direct, cached: file.cached.clone(), refused: Arc::clone(&file.refused) })
        });
        Ok(Self { files: files.collect::<io::Result<_>>()?, ..self.clone() })
    }

    /// The block that suits every file.
    pub fn align_bytes(&self) -> u32 {
        self.align_bytes
    }

    /// Whether the system refused a direct read after the first ones, so that some went through the page cache.
    pub fn was_refused(&self) -> bool {
        self.files.iter().any(|file| file.refused.load(Ordering::Relaxed))
    }

    /// Why reads no longer go the way that was chosen, if something happened to it since.
    pub fn fallback(&self) -> Option<String> {
        let refused = "the file system took direct reads at first and refused some later: those went through the page cache";
        self.was_refused().then(|| refused.to_owned()).or_else(|| self.note.get().cloned())
    }

    /// Says what happened to the way that was chosen; the first word counts.
    #[cfg(target_os = "linux")]
    pub(crate) fn note(&self, why: &str) {
        let _ = self.note.set(why.to_owned());
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
        reopen(file, content).map_err(|error| format!("the file system refuses direct reads ({error})"))?;
    let arena = Arena::new(1, SLOT_ALIGN_BYTES).map_err(|error| error.to_string())?;
    let block_bytes = find_block(|block_bytes| {
        let lease = arena.try_write(SlotIdx(0)).expect("the only slot is free between reads");
        // A small block lands one small block into the memory, which a disk of larger blocks doesn't take either.
        let start = if block_bytes == BLOCKS_BYTES[0] { block_bytes as usize } else { 0 };
        let mut window = lease.window(start..start + (block_bytes as usize).min(SLOT_ALIGN_BYTES - start));
        read_vectored_at(&direct, &mut [IoSliceMut::new(window.bytes_mut())], 0)
    })?;
    Ok((direct, block_bytes))
}

/// The smallest block that can be read.
fn find_block(mut read: impl FnMut(u32) -> io::Result<usize>) -> Result<u32, String> {
    let mut last = String::new();
    for block_bytes in BLOCKS_BYTES {
        match read(block_bytes) {
            Ok(_) => return Ok(block_bytes),
            Err(error) => last = error.to_string(),
        }
    }
    Err(format!("direct reads were accepted when the file was opened and refused when it was read ({last})"))
}

/// The same file once more, past the page cache. Not by its path, where another file may be by now.
#[cfg(target_os = "linux")]
fn reopen(_file: &DataFile, content: &File) -> io::Result<File> {
    use std::os::fd::AsRawFd;

    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let fd = rustix::fs::open(format!("/proc/self/fd/{}", content.as_raw_fd()), flags, Mode::empty())?;
    Ok(fd.into())
}

/// The same file once more, whose reads leave no pages behind. A copy of the handle would turn the page cache off for
/// both, so it is opened by its path, if it is still the one there.
#[cfg(target_vendor = "apple")]
fn reopen(file: &DataFile, content: &File) -> io::Result<File> {
    use std::os::unix::fs::MetadataExt;
    let again = File::open(&file.path)?;
    let (a, b) = (content.metadata()?, again.metadata()?);
    if (a.dev(), a.ino()) != (b.dev(), b.ino()) {
        return Err(io::Error::other("another file is at its path by now"));
    }
    rustix::fs::fcntl_nocache(&again, true)?;
    Ok(again)
}

/// The same file once more, past the system's cache; by its path, if it is still the one there.
#[cfg(windows)]
fn reopen(file: &DataFile, content: &File) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    /// `FILE_FLAG_NO_BUFFERING`: offsets, lengths and memory must be whole sectors.
    const NO_BUFFERING: u32 = 0x2000_0000;
    let again = File::options().read(true).custom_flags(NO_BUFFERING).open(&file.path)?;
    let same = same_file::Handle::from_file(again.try_clone()?)?
        == same_file::Handle::from_file(content.try_clone()?)?;
    if same { Ok(again) } else { Err(io::Error::other("another file is at its path by now")) }
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
fn reopen(_file: &DataFile, _content: &File) -> io::Result<File> {
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

/// One call of the system for each buffer, since there is none for several: until one comes back short.
#[cfg(windows)]
pub(crate) fn read_vectored_at(
    file: &File,
    buffers: &mut [IoSliceMut<'_>],
    offset_bytes: u64,
) -> io::Result<usize> {
    let mut n_read = 0;
    for buffer in buffers.iter_mut().filter(|buffer| !buffer.is_empty()) {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset_bytes + n_read as u64) {
            Ok(n) => {
                n_read += n;
                if n < buffer.len() {
                    break;
                }
            }
            // Whoever resumes the read hears of it then.
            Err(_) if n_read > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(n_read)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::testing;

    #[test]
    fn bytes_in_memory_are_refused_in_words() {
        let error = DirectFiles::open(&testing::in_memory(&[Bytes::from_static(b"x")])).unwrap_err();
        assert!(error.ends_with("it is in memory already"), "{error}");
    }

    #[test]
    fn the_smallest_block_that_can_be_read_is_taken() {
        let disk_of = |blocks: u32| {
            move |asked: u32| match asked.is_multiple_of(blocks) {
                true => Ok(asked as usize),
                false => Err(io::Error::from(io::ErrorKind::InvalidInput)),
            }
        };
        assert_eq!(find_block(disk_of(512)), Ok(512));
        assert_eq!(find_block(disk_of(4096)), Ok(4096));
        let why = find_block(disk_of(65_536)).unwrap_err();
        assert!(why.contains("accepted when the file was opened and refused when it was read"), "{why}");
    }

    /// Case 91: what a file system refuses after all comes from the page cache, and is told.
    #[test]
    fn a_read_that_is_refused_later_comes_from_the_page_cache() {
        let bytes: Vec<u8> = (0..9_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        let (_folder, files) = testing::named(&[bytes.clone().into()]);
        let Ok(files) = DirectFiles::open(&files) else {
            eprintln!("skipped: no direct reads of temporary files");
            return;
        };
        let mut buffer = vec![0; 1000];
        let n = files.read_at(0, &mut [IoSliceMut::new(&mut buffer)], 0).unwrap();
        // This memory begins at no block's boundary and has no block's length: most file systems refuse it.
        let refused = files.was_refused();
        assert_eq!(buffer[..n], bytes[..n]);
        assert!(n == 1000 || !refused, "{n} bytes came from the page cache");
    }

    /// What a thread of its own reads, and what it is told of refusals, is what the others read and are told.
    #[test]
    fn another_thread_reads_the_same_files() {
        let (_folder, files) = testing::named(&[vec![5; 8192].into()]);
        let Ok(files) = DirectFiles::open(&files) else {
            eprintln!("skipped: no direct reads of temporary files");
            return;
        };
        let theirs = files.for_another_thread().unwrap();
        let arena = Arena::new(1, 8192).unwrap();
        let mut window = arena.try_write(SlotIdx(0)).unwrap().window(0..4096);
        let n = theirs.read_at(0, &mut [IoSliceMut::new(window.bytes_mut())], 4096).unwrap();
        assert_eq!(window.bytes_mut()[..n], [5; 4096]);
        theirs.files[0].refused.store(true, Ordering::Relaxed);
        assert!(files.was_refused());
    }

    /// Such a file system either takes direct reads or says why not; both are fine, a wrong byte isn't.
    #[cfg(target_os = "linux")]
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
