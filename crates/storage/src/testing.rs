//! File sets for unit tests, and how much of a mapping is resident.

use std::io::Write as _;
use std::path::Path;

use bytes::Bytes;
use forerun_arena::{Arena, SlotIdx, Window};

use crate::{DataFile, FileSet, Priority, Read, Tag};

/// The contents as files in the file system, which are gone when the set is.
pub(crate) fn temporary(contents: &[Bytes]) -> FileSet {
    let files = contents.iter().enumerate().map(|(i, bytes)| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        DataFile::from_file(format!("temporary-{i}").as_ref(), file).unwrap()
    });
    FileSet::new(files.collect())
}

/// The contents as files with names, in a folder that goes with the first of the pair: some systems open a file once more by
/// its name only.
pub(crate) fn named(contents: &[Bytes]) -> (tempfile::TempDir, FileSet) {
    let folder = tempfile::tempdir().unwrap();
    let files = contents.iter().enumerate().map(|(i, bytes)| {
        let path = folder.path().join(format!("named-{i}"));
        std::fs::write(&path, bytes).unwrap();
        DataFile::open(&path).unwrap()
    });
    let files = FileSet::new(files.collect());
    (folder, files)
}

/// The contents as files in memory.
pub(crate) fn in_memory(contents: &[Bytes]) -> FileSet {
    let name = Path::new("memory");
    let files = contents.iter().map(|bytes| DataFile::from_bytes(name, bytes.clone()));
    FileSet::new(files.collect())
}

/// The first bytes of a slot of its own.
pub(crate) fn window(len_bytes: usize) -> Window {
    let lease = Arena::new(1, len_bytes).unwrap().try_write(SlotIdx(0)).unwrap();
    lease.window(0..len_bytes)
}

/// A demand for bytes of the first file.
pub(crate) fn read(tag: Tag, offset_bytes: u64, window: Window) -> Read {
    Read { tag, priority: Priority::Demand, file: 0, offset_bytes, windows: vec![window] }
}

/// Resident KiB of this program's mappings of `path`.
#[cfg(target_os = "linux")]
pub(crate) fn resident_kib(path: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines();
    let mut kib = 0;
    while let Some(line) = lines.next() {
        if line.ends_with(path.to_str().unwrap()) {
            let rss = lines.by_ref().find_map(|line| line.strip_prefix("Rss:")).unwrap();
            kib += rss.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap();
        }
    }
    kib
}
