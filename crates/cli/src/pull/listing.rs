//! What a repository holds, as its server says; nothing of it is trusted.

use serde::Deserialize;

use super::error::{PullError, Subject};
use super::hash::{Oid, hex};

/// A revision of a repository.
#[derive(Debug)]
pub(crate) struct Listing {
    /// 40 hex digits.
    pub(crate) commit: String,
    /// With names that stay inside of a folder.
    pub(crate) files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// Below the repository, with `/`.
    pub(crate) name: String,
    /// `None` if the server doesn't say.
    pub(crate) size: Option<u64>,
    /// `None` if the server doesn't say.
    pub(crate) oid: Option<Oid>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Reads the answer to `/api/models/REPO/revision/REV?blobs=true`.
    ///
    /// # Errors
    /// [`PullError::NotJson`], [`PullError::Answer`] if the commit is none, [`PullError::UnsafeName`].
    pub(crate) fn parse(bytes: &[u8], subject: &Subject) -> Result<Self, PullError> {
        let answer: Answer = serde_json::from_slice(bytes)
            .map_err(|source| PullError::NotJson { subject: subject.clone(), source })?;
        let commit = hex(&answer.sha, 40).ok_or_else(|| {
            let what = format!("the commit is {:?} in place of 40 hex digits", answer.sha);
            PullError::Answer { subject: subject.clone(), what }
        })?;
        let files = answer.siblings.into_iter().map(|sibling| {
            let Sibling { rfilename: name, size, blob_id, lfs } = sibling;
            if !stays_inside(&name) {
                return Err(PullError::UnsafeName { repo: subject.repo.clone(), name });
            }
            // Of an LFS file, `blobId` is the hash of the pointer to it.
            let (size, oid) = match lfs {
                Some(lfs) => (Some(lfs.size), Oid::sha256(&lfs.sha256)),
                None => (size, blob_id.and_then(|id| Oid::git_blob(&id))),
            };
            Ok(RemoteFile { name, size, oid })
        });
        Ok(Self { commit, files: files.collect::<Result<_, _>>()? })
    }
}

/// Whether a name, joined to a folder, is below that folder on every system that we run on.
fn stays_inside(name: &str) -> bool {
    let is_bad = |c: char| c.is_control() || c == '\\' || cfg!(windows) && ":*?\"<>|".contains(c);
    !name.contains(is_bad) && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: impl AsRef<[u8]>) -> Result<Listing, PullError> {
        Listing::parse(text.as_ref(), &Subject { repo: "o/n".into(), file: None })
    }

    fn with_files(files: &str) -> String {
        format!(r#"{{"sha": "{}", "more": [1], "siblings": [{files}]}}"#, "Ab".repeat(20))
    }

    #[test]
    fn a_file_has_the_size_and_hash_of_its_bytes_not_of_its_pointer() {
        let (blob, sha256) = ("b".repeat(40), "5".repeat(64));
        let listing = parse(with_files(&format!(
            r#"{{"rfilename": "m.gguf", "size": 9, "blobId": "{blob}", "lfs": {{"sha256": "{sha256}", "size": 10, "pointerSize": 3}}}},
               {{"rfilename": "s/README.md", "size": 7, "blobId": "{blob}"}},
               {{"rfilename": "old"}}"#
        )));
        let listing = listing.unwrap();
        assert_eq!(listing.commit, "ab".repeat(20));
        let file = |name: &str, size, oid| RemoteFile { name: name.into(), size, oid };
        let want = [
            file("m.gguf", Some(10), Oid::sha256(&sha256)),
            file("s/README.md", Some(7), Oid::git_blob(&blob)),
            file("old", None, None),
        ];
        assert_eq!(listing.files, want);
    }

    #[test]
    fn a_name_that_leaves_its_folder_is_refused() {
        for name in [
            "../m.gguf",
            "a/../../m.gguf",
            "/etc/m.gguf",
            "a//b",
            "./a",
            "",
            "a\\\\..\\\\b",
            "a\\u0000b",
            "a\\nb",
        ] {
            let error = parse(with_files(&format!(r#"{{"rfilename": "{name}"}}"#))).unwrap_err();
            assert!(matches!(error, PullError::UnsafeName { .. }), "{name}: {error}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bytes in
            [&b"<!doctype html>"[..], b"", b"[]", b"{}", b"\xff\xfe", br#"{"sha": "x", "siblings": 3}"#]
        {
            assert!(matches!(parse(bytes), Err(PullError::NotJson { .. })), "{bytes:?}");
        }
        let size = with_files(r#"{"rfilename": "m.gguf", "size": -1}"#);
        assert!(matches!(parse(size), Err(PullError::NotJson { .. })));
        let commit = r#"{"sha": "../../x", "siblings": []}"#;
        assert!(matches!(parse(commit), Err(PullError::Answer { .. })));
    }
}
