//! Where files go: into the cache that the Hub's tools share, or plainly into a folder.
//!
//! The cache keeps the bytes once, under their hash, and lets each revision point to them:
//! `models--OWNER--NAME/{blobs/HASH, snapshots/COMMIT/FILE, refs/REVISION}`. Locks lie where the Hub's own tool
//! looks for them too.

use std::fs::{self, File};
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use forerun_storage::exclusive::{rename_new, try_lock};
use hf_hub::{Cache, CacheRepo, Repo};

use super::error::{PullError, Subject};
use super::hash::Oid;

/// What is left in a folder beside its files: partial downloads and locks.
const WORK_FOLDER: &str = ".forerun";

/// One of two ways to lay out files.
pub(crate) enum Layout {
    /// The shared cache, of one revision.
    Cache { repo: CacheRepo, commit: String, locks: PathBuf },
    /// A folder that holds the files under their names.
    Folder(PathBuf),
}

/// Where one file goes.
#[derive(Debug)]
pub(crate) struct Target {
    /// The bytes, when they are complete and right.
    pub(crate) path: PathBuf,
    /// The bytes so far.
    pub(crate) partial: PathBuf,
    /// The `ETag` that the bytes so far came with.
    pub(crate) note: PathBuf,
    lock: PathBuf,
    /// What points to `path`, where that isn't the file's name.
    link: Option<Link>,
}

#[derive(Debug)]
struct Link {
    path: PathBuf,
    /// `path` of the target, relative to the link.
    to: PathBuf,
}

impl Layout {
    /// The cache in `folder`.
    pub(crate) fn cache(folder: &Path, repo: &Repo, commit: &str) -> Self {
        let locks = folder.join(".locks").join(repo.folder_name());
        Self::Cache {
            repo: Cache::new(folder.to_owned()).repo(repo.clone()),
            commit: commit.to_owned(),
            locks,
        }
    }

    /// Where the file `name` with the bytes `oid` goes. `name` must stay inside of a folder.
    pub(crate) fn target(&self, name: &str, oid: &Oid) -> Target {
        let hex = oid.hex();
        match self {
            Self::Cache { repo, commit, locks } => {
                let path = repo.blob_path(hex);
                // Up from the file's folders, from the commit, and from `snapshots`.
                let ups = iter::repeat_n("..", name.split('/').count() + 1);
                let link = Link {
                    path: repo.pointer_path(commit).join(name),
                    to: ups.chain(["blobs", hex]).collect(),
                };
                Target {
                    partial: path.with_file_name(format!("{hex}.incomplete")),
                    note: path.with_file_name(format!("{hex}.etag")),
                    path,
                    lock: locks.join(format!("{hex}.lock")),
                    link: Some(link),
                }
            }
            Self::Folder(folder) => {
                let work = |ending: &str| folder.join(WORK_FOLDER).join(format!("{name}{ending}"));
                Target {
                    path: folder.join(name),
                    partial: work(&format!(".{hex}.part")),
                    note: work(&format!(".{hex}.etag")),
                    lock: work(".lock"),
                    link: None,
                }
            }
        }
    }

    /// Notes which commit the revision is at, as the Hub's tools do.
    ///
    /// # Errors
    /// [`PullError::Io`].
    pub(crate) fn note_revision(&self, revision: &str) -> Result<(), PullError> {
        match self {
            Self::Cache { repo, commit, .. } if revision != commit => repo
                .create_ref(commit)
                .map_err(PullError::io("writing the revision below", &repo.pointer_path(""))),
            _ => Ok(()),
        }
    }
}

impl Target {
    /// Keeps other processes away from the file until the result is dropped, where the file system has locks.
    ///
    /// # Errors
    /// [`PullError::Locked`] if another process has it, [`PullError::Io`].
    pub(crate) fn lock(&self, subject: &Subject) -> Result<File, PullError> {
        for path in [&self.lock, &self.partial, &self.path] {
            create_parent(path)?;
        }
        let open = File::options().create(true).truncate(false).write(true).open(&self.lock);
        let file = open.map_err(PullError::io("opening", &self.lock))?;
        if !try_lock(&file).map_err(PullError::io("locking", &self.lock))? {
            return Err(PullError::Locked { subject: subject.clone(), lock: self.lock.clone() });
        }
        Ok(file)
    }

    /// The file's own name, which `-m` takes.
    pub(crate) fn name(&self) -> &Path {
        self.link.as_ref().map_or(&self.path, |link| &link.path)
    }

    /// Whether an existing file of other bytes may be replaced: in the cache the hash is the name, so it is broken.
    pub(crate) fn may_replace(&self) -> bool {
        self.link.is_some()
    }

    /// Gives the bytes so far, which are all, their final name.
    ///
    /// # Errors
    /// [`PullError::Occupied`] if a file that must stay appeared there meanwhile, [`PullError::Io`].
    pub(crate) fn publish(&self, subject: &Subject) -> Result<(), PullError> {
        let renamed = if self.may_replace() {
            fs::rename(&self.partial, &self.path)
        } else {
            rename_new(&self.partial, &self.path)
        };
        renamed.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => {
                PullError::Occupied { subject: subject.clone(), path: self.path.clone() }
            }
            _ => PullError::io("renaming", &self.partial)(source),
        })
    }

    /// Makes the file's name point to its bytes.
    ///
    /// # Errors
    /// [`PullError::Io`].
    pub(crate) fn point(&self) -> Result<(), PullError> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        if fs::read_link(&link.path).is_ok_and(|to| to == link.to) {
            return Ok(());
        }
        create_parent(&link.path)?;
        let mut new = link.path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let _ = fs::remove_file(&new);
        symlink(&link.to, &new)
            .or_else(|_| fs::hard_link(&self.path, &new))
            .and_then(|()| fs::rename(&new, &link.path))
            .map_err(PullError::io("linking", &link.path))
    }
}

fn create_parent(path: &Path) -> Result<(), PullError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(PullError::io("creating", folder))
}

#[cfg(unix)]
fn symlink(to: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, link)
}

#[cfg(windows)]
fn symlink(to: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_to: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_the_one_of_other_tools() {
        let oid = Oid::sha256(&"5".repeat(64)).unwrap();
        let layout = Layout::cache(Path::new("hub"), &Repo::model("o/n".into()), "c");
        let target = layout.target("q/m.gguf", &oid);
        assert_eq!(target.path, Path::new("hub/models--o--n/blobs").join(oid.hex()));
        assert_eq!(target.name(), Path::new("hub/models--o--n/snapshots/c/q/m.gguf"));
        assert_eq!(target.link.unwrap().to, Path::new("../../../blobs").join(oid.hex()));
        assert_eq!(target.lock, Path::new("hub/.locks/models--o--n").join(format!("{}.lock", oid.hex())));
    }

    #[test]
    fn a_link_leads_to_the_bytes_and_replaces_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::cache(folder.path(), &Repo::model("o/n".into()), "c");
        for digit in ["5", "6"] {
            let target = layout.target("q/m.gguf", &Oid::sha256(&digit.repeat(64)).unwrap());
            create_parent(&target.path).unwrap();
            fs::write(&target.path, digit).unwrap();
            target.point().unwrap();
            target.point().unwrap();
            assert_eq!(fs::read_to_string(target.name()).unwrap(), digit);
        }
    }

    #[test]
    fn a_lock_keeps_others_away_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let subject = Subject { repo: "o/n".into(), file: None };
        let target =
            Layout::Folder(folder.path().to_owned()).target("m", &Oid::sha256(&"5".repeat(64)).unwrap());
        let lock = target.lock(&subject).unwrap();
        assert!(matches!(target.lock(&subject), Err(PullError::Locked { .. })));
        drop(lock);
        target.lock(&subject).unwrap();
    }
}
