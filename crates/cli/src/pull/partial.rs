//! A file that isn't complete yet: its bytes so far, their hash, and where they came from.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};

use forerun_storage::exclusive;

use super::error::{PullError, Subject};
use super::hash::{Hasher, Oid};
use super::layout::Target;

/// Longest `ETag` that is kept.
const NOTE_BYTES_MAX: u64 = 1 << 10;

/// What a file must be in the end.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) subject: Subject,
    pub(crate) size: u64,
    pub(crate) oid: Oid,
}

/// The bytes so far.
pub(crate) struct Partial<'a> {
    target: &'a Target,
    content: &'a Content,
    file: File,
    have: u64,
    hasher: Hasher,
    etag: Option<String>,
}

impl<'a> Partial<'a> {
    /// Goes on with what an earlier process left, if that is known to be a part of the same file.
    ///
    /// # Errors
    /// [`PullError::Io`]; [`PullError::Interrupted`] if `seen`, which is told of bytes read again, says to stop.
    pub(crate) fn open(
        target: &'a Target,
        content: &'a Content,
        seen: impl FnMut(u64) -> bool,
    ) -> Result<Self, PullError> {
        let path = &target.partial;
        let options = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = options.map_err(PullError::io("opening", path))?;
        let hasher = Hasher::new(&content.oid, content.size);
        let mut partial = Self { target, content, file, have: 0, hasher, etag: note(target) };
        let len = partial.file.metadata().map_err(PullError::io("measuring", path))?.len();
        if partial.etag.is_none() || len > content.size {
            partial.restart(None)?;
        } else if !partial.hasher.read(&partial.file, seen).map_err(PullError::io("reading", path))? {
            return Err(PullError::Interrupted);
        } else {
            partial.have = len;
        }
        Ok(partial)
    }

    pub(crate) fn have(&self) -> u64 {
        self.have
    }

    /// The `ETag` of the bytes so far.
    pub(crate) fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    /// Forgets all bytes; those to come are from a file with this `ETag`.
    pub(crate) fn restart(&mut self, etag: Option<&str>) -> Result<(), PullError> {
        let Target { partial, note, .. } = self.target;
        self.file.set_len(0).map_err(PullError::io("emptying", partial))?;
        self.file.seek(SeekFrom::Start(0)).map_err(PullError::io("emptying", partial))?;
        self.have = 0;
        self.hasher = Hasher::new(&self.content.oid, self.content.size);
        self.etag = etag.map(str::to_owned);
        match etag {
            Some(etag) => fs::write(note, etag).map_err(PullError::io("writing", note)),
            None => remove(note),
        }
    }

    /// Goes on with `bytes`.
    ///
    /// # Errors
    /// [`PullError::WrongBytes`] if these are more than there should be, [`PullError::Io`].
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        let have = self.have.saturating_add(bytes.len() as u64);
        if have > self.content.size {
            return Err(self.wrong("size", self.content.size.to_string(), format!("{have} or more")));
        }
        self.file.write_all(bytes).map_err(PullError::io("writing", &self.target.partial))?;
        self.hasher.update(bytes);
        self.have = have;
        Ok(())
    }

    /// The mismatch, and the partial file is gone.
    fn wrong(&self, kind: &'static str, expected: String, got: String) -> PullError {
        let subject = self.content.subject.clone();
        match self.remove() {
            Ok(()) => PullError::WrongBytes { subject, kind, expected, got },
            Err(error) => error,
        }
    }

    /// Gives complete bytes their final name, after a check of their hash and once the disk has them.
    ///
    /// # Errors
    /// [`PullError::WrongBytes`], [`PullError::Occupied`], [`PullError::Io`].
    pub(crate) fn finish(mut self) -> Result<(), PullError> {
        let oid = &self.content.oid;
        let hasher = std::mem::replace(&mut self.hasher, Hasher::new(oid, 0));
        let hash = hasher.finish();
        if hash != oid.hex() {
            return Err(self.wrong(oid.kind(), oid.hex().to_owned(), hash));
        }
        let Target { path, partial, note, .. } = self.target;
        self.file.sync_all().map_err(PullError::io("flushing", partial))?;
        self.target.publish(&self.content.subject)?;
        sync_folder(path)?;
        remove(note)
    }

    fn remove(&self) -> Result<(), PullError> {
        remove(&self.target.partial)?;
        remove(&self.target.note)
    }
}

fn note(target: &Target) -> Option<String> {
    let mut text = String::new();
    File::open(&target.note).ok()?.take(NOTE_BYTES_MAX).read_to_string(&mut text).ok()?;
    (!text.is_empty()).then_some(text)
}

fn remove(path: &std::path::Path) -> Result<(), PullError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(PullError::io("removing", path)(error))
        }
        _ => Ok(()),
    }
}

/// Makes a rename last; only Unix lets a program ask for that.
fn sync_folder(path: &std::path::Path) -> Result<(), PullError> {
    match path.parent() {
        Some(folder) => exclusive::sync_folder(folder).map_err(PullError::io("flushing", folder)),
        None => Ok(()),
    }
}
