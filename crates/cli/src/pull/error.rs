//! What can go wrong with a download.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::BinaryBytes;

/// Longest wait that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// What a request was about; part of every message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) repo: String,
    /// `None` for the list of files.
    pub(crate) file: Option<String>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            // A server chose the name, so a terminal gets it escaped.
            Some(file) => write!(f, "{} of {}", file.escape_debug(), self.repo),
            None => write!(f, "the list of files of {}", self.repo),
        }
    }
}

/// Why a model could not be pulled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PullError {
    #[error("{name} is {value:?}, but it must be {expected}")]
    Setting { name: &'static str, value: String, expected: &'static str },
    #[error("no home folder is known, so neither is the cache: set HF_HOME, or name a folder with --dir")]
    NoHome,

    #[error("{subject}: status 401; {}", unauthorized(*.has_token))]
    Unauthorized { subject: Subject, has_token: bool },
    #[error(
        "{subject}: status 403; accept the terms on the repository's page, and set HF_TOKEN to a token of the same account"
    )]
    Forbidden { subject: Subject },
    #[error("{subject}: status 404; check the names and the revision; a private repository needs HF_TOKEN")]
    NotFound { subject: Subject },
    #[error("{subject}: status {status}, the server is busy{}; try later{}", asked(.retry_after),
        if *.has_token { "" } else { ", or set HF_TOKEN for a higher limit" })]
    Busy { subject: Subject, status: u16, retry_after: Option<Duration>, has_token: bool },
    #[error("{subject}: status {status}, where 200 or 206 was expected")]
    Status { subject: Subject, status: u16 },
    #[error("{subject}: more than {most} redirects; check HF_ENDPOINT")]
    RedirectLoop { subject: Subject, most: usize },
    #[error("{subject}: a redirect to {to:?}, {why}")]
    Redirect { subject: Subject, to: String, why: &'static str },
    #[error("{subject}: {what}; is HF_ENDPOINT a Hugging Face Hub?")]
    Answer { subject: Subject, what: String },
    #[error("{subject}: the answer is no JSON of the expected shape; is HF_ENDPOINT a Hugging Face Hub?")]
    NotJson { subject: Subject, source: serde_json::Error },
    #[error("{subject}: the answer has more than {most} bytes")]
    TooLong { subject: Subject, most: u64 },
    #[error("given up after {tries} tries without a new byte; check the network and HF_ENDPOINT")]
    GivenUp { tries: u32, source: Box<PullError> },
    #[error("{subject}: the connection failed")]
    Connection { subject: Subject, source: Box<ureq::Error> },
    #[error("{subject}: the connection ended after {got} of {expected} bytes")]
    Dropped { subject: Subject, got: u64, expected: u64 },
    #[error(
        "{subject}: the answer is about a file of {got} bytes, but the repository says {expected}; does something between here \
         and the server answer for it?"
    )]
    OtherSize { subject: Subject, got: u64, expected: u64 },

    #[error("{repo} lists a file named {name:?}, which would lie outside of its folder")]
    UnsafeName { repo: String, name: String },
    #[error("{subject}: the server names no hash for it, so it can't be checked")]
    NoHash { subject: Subject },
    #[error("{repo} has no GGUF model; its files: {files}")]
    NoModel { repo: String, files: String },
    #[error("{repo} has several models: name one, as in `{repo}:{example}`\n{models}")]
    SeveralModels { repo: String, example: String, models: String },
    #[error("{repo} has nothing that `{wish}` names; it has\n{models}")]
    NoMatch { repo: String, wish: String, models: String },
    #[error("{repo} has {n} of the {n_shards} shards of `{model}`; the first that is missing is {missing}")]
    MissingShard { repo: String, model: String, n: usize, n_shards: u32, missing: u32 },

    #[error("{}: {} are needed and {} are free, so {} are missing; free them, or name another folder with --dir",
        .folder.display(), BinaryBytes(*.need), BinaryBytes(*.free), BinaryBytes(.need - .free))]
    NoSpace { folder: PathBuf, need: u64, free: u64 },
    #[error(
        "{subject}: its {kind} is {got}, but the repository says {expected}; the download is removed, so try again"
    )]
    WrongBytes { subject: Subject, kind: &'static str, expected: String, got: String },
    #[error("{}: a file with other bytes than {subject} has that name; move it away, or name another folder with --dir", .path.display())]
    Occupied { subject: Subject, path: PathBuf },
    #[error("{subject}: another process pulls it; wait for it, or end it (lock file {})", .lock.display())]
    Locked { subject: Subject, lock: PathBuf },
    #[error("{doing} {}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },

    /// The user asked to stop; no failure.
    #[error("interrupted")]
    Interrupted,
}

impl PullError {
    /// Whether the same request may do better later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connection { source, .. } => match &**source {
                // Such as a certificate that isn't trusted.
                ureq::Error::Io(error) => error.kind() != io::ErrorKind::InvalidData,
                ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed => true,
                ureq::Error::HostNotFound | ureq::Error::Protocol(_) => true,
                _ => false,
            },
            Self::Dropped { .. } | Self::OtherSize { .. } => true,
            Self::Busy { retry_after, .. } => retry_after.is_none_or(|asked| asked <= RETRY_AFTER_MAX),
            Self::Status { status, .. } => *status == 408 || *status >= 500,
            _ => false,
        }
    }

    /// How long the server asked to be left alone.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The failure of a file operation, as `map_err` wants it.
    pub(crate) fn io(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

fn unauthorized(has_token: bool) -> &'static str {
    if has_token {
        "the token isn't accepted: check HF_TOKEN"
    } else {
        "set HF_TOKEN if the repository is private or gated, and check the name: a repository that doesn't exist looks the same"
    }
}

fn asked(retry_after: &Option<Duration>) -> String {
    retry_after.map_or(String::new(), |asked| format!(" and asks for {} s of patience", asked.as_secs()))
}
