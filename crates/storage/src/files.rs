//! The files of one model, opened once and shared by everything that reads from them.

use std::fs::{self, File, Metadata};
use std::io::{self, IoSliceMut, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::OpenError;
use crate::backend::{copy_into, direct::read_vectored_at};

/// Where a file's bytes are.
#[derive(Clone, Debug)]
pub enum Content {
    /// In the file system. Its cursor is not to be relied on: reads name their offset.
    File(Arc<File>),
    /// In memory, such as a model inside the program.
    Bytes(Bytes),
}

/// One file of a set.
#[derive(Clone, Debug)]
pub struct DataFile {
    /// Its path, or a name for bytes in memory; for messages.
    pub path: PathBuf,
    /// Its length when it was opened.
    pub len_bytes: u64,
    /// Its bytes.
    pub content: Content,
    /// What it looked like when it was opened; `None` for bytes in memory, which don't change.
    stamp: Option<Stamp>,
}

/// The files of a model, in the order of their shards. Clones share the open files.
#[derive(Clone, Debug)]
pub struct FileSet(Arc<[DataFile]>);

impl FileSet {
    /// The set of `files`.
    pub fn new(files: Vec<DataFile>) -> Self {
        Self(files.into())
    }

    /// The files.
    pub fn files(&self) -> &[DataFile] {
        &self.0
    }

    /// The path of file `file`, for messages; empty when there is no such file.
    pub(crate) fn path(&self, file: u16) -> PathBuf {
        self.0.get(usize::from(file)).map(|file| file.path.clone()).unwrap_or_default()
    }
}

impl DataFile {
    /// Opens a regular file.
    ///
    /// # Errors
    /// [`OpenError::NotAFile`] for anything but a regular file, [`OpenError::Io`] when the system refuses.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let refused = |source| OpenError::Io { doing: "open", path: path.to_owned(), source };
        // Asked before opening, since opening a pipe would wait for its writer.
        if !fs::metadata(path).map_err(refused)?.is_file() {
            return Err(OpenError::NotAFile { path: path.to_owned() });
        }
        Self::from_file(path, File::open(path).map_err(refused)?)
    }

    /// Takes a file that is open already; `path` is for messages.
    ///
    /// # Errors
    /// [`OpenError::Io`] when the system doesn't tell its length.
    pub fn from_file(path: &Path, file: File) -> Result<Self, OpenError> {
        let path = path.to_owned();
        match file.metadata() {
            Ok(metadata) => {
                let stamp = Some(Stamp::of(&metadata));
                Ok(Self { path, len_bytes: metadata.len(), content: Content::File(Arc::new(file)), stamp })
            }
            Err(source) => Err(OpenError::Io { doing: "measure", path, source }),
        }
    }

    /// Takes bytes in memory; `name` is for messages.
    pub fn from_bytes(name: &Path, bytes: Bytes) -> Self {
        Self {
            path: name.to_owned(),
            len_bytes: bytes.len() as u64,
            content: Content::Bytes(bytes),
            stamp: None,
        }
    }

    /// The whole file: shared if it is in memory, read if it isn't.
    ///
    /// # Errors
    /// [`OpenError::Io`] when it can't be read, or is too large for this machine's addresses.
    pub fn to_bytes(&self) -> Result<Bytes, OpenError> {
        if let Content::Bytes(bytes) = &self.content {
            return Ok(bytes.clone());
        }
        let refused = |source| OpenError::Io { doing: "read", path: self.path.clone(), source };
        let too_large = |_| refused(io::ErrorKind::FileTooLarge.into());
        let mut bytes = vec![0; usize::try_from(self.len_bytes).map_err(too_large)?];
        self.read_exact_at(&mut bytes, 0).map_err(refused)?;
        Ok(bytes.into())
    }

    /// Reads from the file's start.
    pub(crate) fn reader(&self) -> Box<dyn Read + '_> {
        match &self.content {
            Content::File(file) => Box::new(FromStart { file, offset_bytes: 0 }),
            Content::Bytes(bytes) => Box::new(&bytes[..]),
        }
    }

    /// Fills `buffer` from `offset_bytes` on.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before; the system's reason.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset_bytes: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset_bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buffer = &mut buffer[n..];
                    offset_bytes += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether somebody wrote to it, or cut it, since it was opened. A file that was replaced under its name was not
    /// changed: the one that was opened lives on.
    pub(crate) fn is_changed(&self) -> bool {
        match &self.content {
            Content::File(file) => file.metadata().ok().map(|now| Stamp::of(&now)) != self.stamp,
            Content::Bytes(_) => false,
        }
    }

    /// One read at `offset_bytes` that fills `buffers` one after the other and may be short; 0 at the file's end.
    pub(crate) fn read_vectored_at(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset_bytes: u64,
    ) -> io::Result<usize> {
        match &self.content {
            Content::File(file) => read_vectored_at(file, buffers, offset_bytes),
            Content::Bytes(bytes) => {
                let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX).min(bytes.len());
                Ok(copy_into(buffers, &bytes[start..]))
            }
        }
    }

    /// One read at `offset_bytes`, which may be short; 0 at the end of the file.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        match &self.content {
            Content::File(file) => read_at(file, buffer, offset_bytes),
            Content::Bytes(bytes) => {
                let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX).min(bytes.len());
                (&bytes[start..]).read(buffer)
            }
        }
    }
}

/// What tells a file from what it was when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    len_bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { len_bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

/// Reads a shared file front to back without its cursor.
struct FromStart<'a> {
    file: &'a File,
    offset_bytes: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = read_at(self.file, buffer, self.offset_bytes)?;
        self.offset_bytes += n as u64;
        Ok(n)
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset_bytes)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset_bytes)
}
