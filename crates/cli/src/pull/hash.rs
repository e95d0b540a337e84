//! The hashes that the Hub names files by: sha256 of large ones, git's blob sha1 of the others.

use std::fmt;
use std::io::{self, Read};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// What a file's bytes must hash to, in lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Oid {
    /// Of the bytes.
    Sha256(String),
    /// Of git's header for a blob of that size, and the bytes.
    GitBlob(String),
}

impl Oid {
    /// A sha256; `None` if the text can't be one.
    pub(crate) fn sha256(text: &str) -> Option<Self> {
        hex(text, 64).map(Self::Sha256)
    }

    /// A git blob; `None` if the text can't be one.
    pub(crate) fn git_blob(text: &str) -> Option<Self> {
        hex(text, 40).map(Self::GitBlob)
    }

    /// The hash alone, which is also the file's name in the cache.
    pub(crate) fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }

    /// What the hash is called.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "sha256",
            Self::GitBlob(_) => "git blob sha1",
        }
    }
}

/// `text` in lower case, if it is `len` hex digits. As a name it can't leave its folder.
pub(crate) fn hex(text: &str, len: usize) -> Option<String> {
    (text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

/// Hashes a file as it comes.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    /// A hasher of the kind of `oid`, for a file of `size` bytes.
    pub(crate) fn new(oid: &Oid, size: u64) -> Self {
        match oid {
            Oid::Sha256(_) => Self::Sha256(Sha256::new()),
            Oid::GitBlob(_) => Self::GitBlob(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    /// Goes on with `bytes`.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    /// Goes on with all of `file`, and says after each part how many bytes there were. `false` if `seen` said to stop.
    pub(crate) fn read(
        &mut self,
        mut file: impl Read,
        mut seen: impl FnMut(u64) -> bool,
    ) -> io::Result<bool> {
        let (mut buffer, mut done) = (vec![0; 1 << 20], 0);
        loop {
            let n = match file.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.update(&buffer[..n]);
            done += n as u64;
            if !seen(done) {
                return Ok(false);
            }
        }
    }

    /// The hash of all bytes so far, in hex.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(hasher) => Hex(&hasher.finalize()).to_string(),
            Self::GitBlob(hasher) => Hex(&hasher.finalize()).to_string(),
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(oid: Oid, bytes: &[u8]) {
        let mut hasher = Hasher::new(&oid, bytes.len() as u64);
        assert!(hasher.read(bytes, |_| true).unwrap());
        assert_eq!(hasher.finish(), oid.hex());
    }

    #[test]
    fn hashes_are_those_that_git_and_sha256sum_print() {
        check(Oid::git_blob("ce013625030ba8dba906f756967f9e9ca394464a").unwrap(), b"hello\n");
        let sha256 = "5891B5B522D5DF086D0FF0B110FBD9D21BB4FC7163AF34D08286A2E846F6BE03";
        check(Oid::sha256(sha256).unwrap(), b"hello\n");
    }

    #[test]
    fn only_hex_of_the_right_length_is_a_hash() {
        for text in ["", "../../x", &"g".repeat(64), &"a".repeat(63), &"ä".repeat(32)] {
            assert_eq!(Oid::sha256(text), None, "{text}");
        }
    }
}
