//! Lists, reads and writes files, with their names in the errors.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ChoreError;

/// Every file under `folder`, sorted, but for folders whose name `skip` has.
///
/// # Errors
/// [`ChoreError::Io`].
pub(crate) fn list(folder: &Path, skip: &[&str]) -> Result<Vec<PathBuf>, ChoreError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let io = |source| ChoreError::Io { doing: "list", path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let (name, path) = (entry.file_name(), entry.path());
            match entry.file_type().map_err(io)?.is_dir() {
                true if skip.iter().any(|skipped| name == *skipped) => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The path of `file` below `folder`, with `/` on every system.
pub(crate) fn relative(folder: &Path, file: &Path) -> String {
    let below = file.strip_prefix(folder).unwrap_or(file);
    let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// The bytes of a file.
///
/// # Errors
/// [`ChoreError::Io`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ChoreError> {
    fs::read(path).map_err(|source| ChoreError::Io { doing: "read", path: path.to_path_buf(), source })
}

/// The text of a file.
///
/// # Errors
/// [`ChoreError::Io`], also when it isn't UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String, ChoreError> {
    fs::read_to_string(path).map_err(|source| ChoreError::Io {
        doing: "read",
        path: path.to_path_buf(),
        source,
    })
}

/// Writes a file, and the folders that it lies in.
///
/// # Errors
/// [`ChoreError::Io`].
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), ChoreError> {
    let io = |source| ChoreError::Io { doing: "write", path: path.to_path_buf(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io)?;
    }
    fs::write(path, bytes).map_err(io)
}
