//! What only one of several processes gets: the lock of a file, and a name that nobody has; and how names last.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

/// Takes the lock of `file` until it is closed; `false` when another process has it.
///
/// Where the file system has no locks, everybody gets it: a caller that can lose something then has to look out itself.
///
/// # Errors
/// The system's reason, other than that there are no locks.
pub fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Gives `from` the name `to`, which no file may have.
///
/// One step where system and file system can, so that a file that appears at any moment stays; elsewhere a look comes
/// before.
///
/// # Errors
/// `AlreadyExists` when there is a `to`; the system's reason.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    system::rename_new(from, to).unwrap_or_else(|| look_and_rename(from, to))
}

/// Makes the names in `folder` last through a loss of power, where the system can: elsewhere folders can't be opened.
///
/// # Errors
/// The system's reason.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

fn look_and_rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(from, to),
        Err(error) => Err(error),
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    #[cfg(unix)]
    if rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::NOLCK) {
        // Network file systems without a lock service.
        return true;
    }
    error.kind() == io::ErrorKind::Unsupported
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
mod system {
    use std::io;
    use std::path::Path;

    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    /// `None` when the system or the file system can't.
    pub(super) fn rename_new(from: &Path, to: &Path) -> Option<io::Result<()>> {
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Some(Ok(())),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => None,
            Err(error) => Some(Err(error.into())),
        }
    }
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
mod system {
    use std::io;
    use std::path::Path;

    pub(super) fn rename_new(_: &Path, _: &Path) -> Option<io::Result<()>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, to] = ["a", "b", "to"].map(|name| folder.path().join(name));
        for rename in [rename_new, look_and_rename] {
            fs::write(&a, "a").unwrap();
            fs::write(&b, "b").unwrap();
            rename(&a, &to).unwrap();
            assert_eq!(rename(&b, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!((fs::read(&to).unwrap(), fs::read(&b).unwrap()), (b"a".to_vec(), b"b".to_vec()));
            assert!(!a.exists());
            fs::remove_file(&to).unwrap();
        }
    }

    #[test]
    fn a_lock_is_given_once_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::create(folder.path().join("lock")).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(&first).unwrap() && !try_lock(&second).unwrap());
        drop(first);
        assert!(try_lock(&second).unwrap());
        assert!(has_no_locks(&io::ErrorKind::Unsupported.into()));
        #[cfg(unix)]
        assert!(has_no_locks(&rustix::io::Errno::NOLCK.into()));
    }
}
