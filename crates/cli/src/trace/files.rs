//! The files of a trace: arrays in temporary files while it is recorded, then two files that are whole or not there.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use forerun_sim::recording::N_COLUMNS;
use forerun_storage::exclusive::sync_folder;
use tempfile::NamedTempFile;

use super::TraceError;

/// A sink of a recording.
pub(super) type Column = BufWriter<File>;

/// Where a trace will be.
pub(super) struct Spool {
    header: PathBuf,
    arrays: PathBuf,
    folder: PathBuf,
}

impl Spool {
    /// The files `out` with `.json` and `.bin`; an ending that is one of these isn't doubled.
    ///
    /// # Errors
    /// [`TraceError::Exists`], unless they may be replaced.
    pub(super) fn create(out: &Path, replace: bool) -> Result<Self, TraceError> {
        let is_ours = out.extension().is_some_and(|ending| ending == "json" || ending == "bin");
        let stem = if is_ours { out.with_extension("") } else { out.to_path_buf() };
        let [header, arrays] = ["json", "bin"].map(|ending| stem.with_added_extension(ending));
        if let Some(path) = [&header, &arrays].into_iter().find(|path| !replace && path.exists()) {
            return Err(TraceError::Exists { path: path.display().to_string() });
        }
        let folder = match stem.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        Ok(Self { header, arrays, folder })
    }

    /// Files without names beside the trace, which are gone with the program.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub(super) fn columns(&self) -> Result<[Column; N_COLUMNS], TraceError> {
        let column = || tempfile::tempfile_in(&self.folder).map(BufWriter::new);
        let columns: Result<Vec<_>, _> = (0..N_COLUMNS).map(|_| column()).collect();
        let columns = columns.map_err(|source| self.failed(source))?;
        Ok(columns.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for")))
    }

    /// Writes the arrays, then the header, and says where they are.
    ///
    /// # Errors
    /// [`TraceError::Write`]; a file of that name is then as it was before.
    pub(super) fn save(
        self,
        header: &[u8],
        columns: [Column; N_COLUMNS],
    ) -> Result<(PathBuf, PathBuf), TraceError> {
        self.write(header, columns).map_err(|source| self.failed(source))?;
        Ok((self.header, self.arrays))
    }

    /// The error of a trace that can't be written.
    pub(super) fn failed(&self, source: io::Error) -> TraceError {
        TraceError::Write { path: self.arrays.display().to_string(), source }
    }

    fn write(&self, header: &[u8], columns: [Column; N_COLUMNS]) -> io::Result<()> {
        let mut arrays = NamedTempFile::new_in(&self.folder)?;
        for column in columns {
            let mut file = column.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.rewind()?;
            io::copy(&mut file, arrays.as_file_mut())?;
        }
        let mut head = NamedTempFile::new_in(&self.folder)?;
        head.write_all(header)?;
        // A header without its arrays is worse than none, so it comes last.
        for (file, path) in [(arrays, &self.arrays), (head, &self.header)] {
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)?;
        }
        sync_folder(&self.folder)
    }
}
