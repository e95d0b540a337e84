//! A target on disk: `TARGET.forerun-part` and `TARGET.forerun-journal`, until the part takes the target's name.
//!
//! The journal is locked while a process works, so that two can't make one target. Somebody may remove it all the same,
//! and not every file system has locks: before part and journal are renamed or removed, they must still be those that are
//! open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::output::{Output, Shortage};
use super::{Existing, hints};
use crate::PackError;
use crate::exclusive::{rename_new, sync_folder, try_lock};

/// Times that a lock is tried again when the journal vanished meanwhile, with the process that had it.
const LOCK_TRIES: usize = 8;

/// The files of one target.
#[derive(Debug)]
pub(super) struct DiskOutput {
    target: PathBuf,
    part_path: PathBuf,
    journal_path: PathBuf,
    folder: PathBuf,
    existing: Existing,
    journal: File,
    part: Option<File>,
    /// What was written since the last sync: first byte, bytes.
    unsynced: Vec<(u64, u64)>,
}

impl DiskOutput {
    /// Takes the lock on `target`, which must not be there unless `existing` says so, and then be an ordinary file.
    pub(super) fn open(target: &Path, existing: Existing) -> Result<Self, PackError> {
        let path = || target.to_owned();
        let name = target.file_name().filter(|_| !target.is_dir());
        let name = name.ok_or_else(|| PackError::TargetName { path: path() })?;
        if fs::symlink_metadata(target).is_ok() && !target.is_file() {
            return Err(PackError::TargetKind { path: path() });
        }
        let beside = |ending: &str| {
            let mut name = name.to_owned();
            name.push(ending);
            target.with_file_name(name)
        };
        let (part_path, journal_path) = (beside(".forerun-part"), beside(".forerun-journal"));
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).to_owned();
        let journal = lock(&journal_path, target)?;
        let mut output = Self {
            target: path(),
            part_path,
            journal_path,
            folder,
            existing,
            journal,
            part: None,
            unsynced: Vec::new(),
        };
        if output.is_refused() {
            // A journal without data is what remains of a run that ended right after it gave the target its name.
            if !output.part_path.exists() {
                let _ = output.discard();
            }
            return Err(PackError::TargetExists { path: path() });
        }
        Ok(output)
    }

    /// Whether there is a target that must not be replaced.
    fn is_refused(&self) -> bool {
        self.existing == Existing::Refuse && fs::symlink_metadata(&self.target).is_ok()
    }

    fn part(&self) -> io::Result<&File> {
        self.part.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_part(&self, options: &OpenOptions) -> io::Result<File> {
        options.open(&self.part_path)
    }

    /// Makes new and removed names safe.
    fn sync_folder(&self) -> io::Result<()> {
        sync_folder(&self.folder)
    }

    fn check_room(&self, need_bytes: u64) -> io::Result<()> {
        match hints::free_bytes(&self.folder) {
            Some(free_bytes) if free_bytes < need_bytes => Err(Shortage { need_bytes, free_bytes }.into()),
            _ => Ok(()),
        }
    }

    /// Whether the part that is open still has its name.
    fn has_part(&self) -> bool {
        self.part.as_ref().is_some_and(|part| is_at(part, &self.part_path))
    }

    /// Whether the journal still has its name.
    fn has_journal(&self) -> bool {
        is_at(&self.journal, &self.journal_path)
    }

    fn remove_journal(&self) -> io::Result<()> {
        if self.has_journal() { fs::remove_file(&self.journal_path) } else { Ok(()) }
    }
}

impl Output for DiskOutput {
    fn earlier(&mut self, len_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let found = fs::symlink_metadata(&self.part_path);
        if !found.is_ok_and(|found| found.is_file() && found.len() == len_bytes) {
            return Ok(None);
        }
        let mut journal = Vec::new();
        self.journal.seek(SeekFrom::Start(0))?;
        self.journal.read_to_end(&mut journal)?;
        Ok((!journal.is_empty()).then_some(journal))
    }

    fn begin(&mut self, len_bytes: u64) -> io::Result<()> {
        self.journal.set_len(0)?;
        self.journal.sync_all()?;
        match fs::remove_file(&self.part_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.check_room(len_bytes)?;
        let part = self.open_part(OpenOptions::new().write(true).create_new(true))?;
        let part = self.part.insert(part);
        hints::reserve(part, len_bytes)?;
        part.sync_all()?;
        self.sync_folder()
    }

    fn resume(&mut self, journal_bytes: u64, left_bytes: u64) -> io::Result<()> {
        self.journal.set_len(journal_bytes)?;
        let part = self.open_part(OpenOptions::new().write(true))?;
        let metadata = part.metadata()?;
        let len_bytes = metadata.len();
        // Some of what is left may have its room already; what is done has, though compressed it may look smaller.
        self.check_room(left_bytes.min(len_bytes.saturating_sub(allocated_bytes(&metadata))))?;
        hints::reserve(&part, len_bytes)?;
        self.part = Some(part);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        write_all_at(self.part()?, bytes, offset_bytes)?;
        let len_bytes = bytes.len() as u64;
        match self.unsynced.last_mut() {
            Some((start, len)) if *start + *len == offset_bytes => *len += len_bytes,
            _ => self.unsynced.push((offset_bytes, len_bytes)),
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.part()?.sync_data()?;
        let part = self.part.as_ref();
        for (offset_bytes, len_bytes) in self.unsynced.drain(..) {
            part.into_iter().for_each(|part| hints::done_with(part, offset_bytes, len_bytes));
        }
        Ok(())
    }

    fn note(&mut self, entry: &[u8]) -> io::Result<()> {
        self.journal.seek(SeekFrom::End(0))?;
        self.journal.write_all(entry)?;
        self.journal.sync_data()
    }

    fn publish(&mut self) -> io::Result<()> {
        self.part()?.sync_all()?;
        if !self.has_part() || !self.has_journal() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        match self.existing {
            Existing::Refuse => rename_new(&self.part_path, &self.target)?,
            Existing::Replace => fs::rename(&self.part_path, &self.target)?,
        }
        self.part = None;
        self.sync_folder()?;
        self.remove_journal()?;
        self.sync_folder()
    }

    fn discard(&mut self) -> io::Result<()> {
        let removed = if self.has_part() { fs::remove_file(&self.part_path) } else { Ok(()) };
        self.part = None;
        removed.and(self.remove_journal())
    }

    fn free_bytes(&self) -> Option<u64> {
        hints::free_bytes(&self.folder)
    }
}

/// Opens and locks the journal of `target`.
fn lock(journal_path: &Path, target: &Path) -> Result<File, PackError> {
    let failed = |source| PackError::Write { doing: "open the journal", path: target.to_owned(), source };
    for _ in 0..LOCK_TRIES {
        let mut options = OpenOptions::new();
        let journal = options.read(true).write(true).create(true).truncate(false).open(journal_path);
        let journal = journal.map_err(failed)?;
        // Without locks another run may come in and start afresh; this one then finds its part gone, and publishes nothing.
        if !try_lock(&journal).map_err(failed)? {
            return Err(PackError::Busy { path: target.to_owned() });
        }
        // The process that had the lock may have removed the file that we hold now.
        if is_at(&journal, journal_path) {
            return Ok(journal);
        }
    }
    Err(PackError::Busy { path: target.to_owned() })
}

/// Whether `path` names `file`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(file), Ok(path)) => id(file) == id(path),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Bytes of the disk that a file has already.
#[cfg(unix)]
fn allocated_bytes(metadata: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    metadata.blocks().saturating_mul(512)
}

#[cfg(not(unix))]
fn allocated_bytes(metadata: &fs::Metadata) -> u64 {
    metadata.len()
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset_bytes)
}

#[cfg(not(unix))]
fn write_all_at(mut file: &File, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset_bytes))?;
    file.write_all(bytes)
}
