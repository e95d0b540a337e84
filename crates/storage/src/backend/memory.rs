//! Reads from bytes in memory: a model inside the program, or files that were read as a whole.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use forerun_model::Nanos;

use super::{Completed, Limits, Read, ReadBackend, Tag, copy_into};
use crate::OpenError;
use crate::files::{DataFile, FileSet};

/// Reads that may wait to be fetched; a read takes no time here, so a deeper queue gains nothing.
const DEPTH: usize = 64;

/// Copies from memory; a read is complete when it has been submitted.
#[derive(Debug)]
pub struct MemoryBackend {
    files: Vec<Bytes>,
    done: VecDeque<Completed>,
}

impl MemoryBackend {
    /// Reads from `files`, in the order of their indices.
    pub fn new(files: Vec<Bytes>) -> Self {
        Self { files, done: VecDeque::with_capacity(DEPTH) }
    }

    /// Reads from a set, whose files are read into memory now if they aren't there already.
    ///
    /// # Errors
    /// [`OpenError::Io`] when one can't be read.
    pub fn open(files: &FileSet) -> Result<Self, OpenError> {
        files.files().iter().map(DataFile::to_bytes).collect::<Result<_, _>>().map(Self::new)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must be thought about in every backend")]
impl ReadBackend for MemoryBackend {
    fn limits(&self) -> Limits {
        Limits { depth: DEPTH, align_bytes: 1 }
    }

    fn submit(&mut self, mut read: Read) -> Result<(), Read> {
        if self.done.len() == DEPTH {
            return Err(read);
        }
        let result = read.perform(|file, buffers, offset_bytes| {
            let bytes = self.files.get(usize::from(file)).ok_or(io::ErrorKind::NotFound)?;
            let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX).min(bytes.len());
            Ok(copy_into(buffers, &bytes[start..]))
        });
        self.done.push_back(Completed { read, result });
        Ok(())
    }

    fn withdraw(&mut self, _tag: Tag) -> Option<Read> {
        None
    }

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Completed>) {
        done.extend(self.done.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_conforms() {
        crate::conformance::check(|files| MemoryBackend::new(files.to_vec()));
    }
}
