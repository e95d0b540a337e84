//! Why a measurement ended early.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A file or folder.
    #[error("can't {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// A program couldn't be started.
    #[error("can't start `{command}`")]
    NotStarted { command: String, source: io::Error },
    /// A program that builds or makes something ran and failed; it has said why.
    #[error("`{command}` failed: {status}")]
    Failed { command: String, status: ExitStatus },
    /// What a program printed isn't what it should be.
    #[error("`{command}` printed something else than its figures")]
    Figures { command: String, source: serde_json::Error },
    /// What can't be kept.
    #[error("a run can't be written as JSON")]
    Write { source: serde_json::Error },
    /// A line of the journal.
    #[error("line {line} of {} is no run; `--fresh` begins anew", path.display())]
    Journal { line: usize, path: PathBuf, source: serde_json::Error },
    /// The journal is of other settings.
    #[error("{} was made with other settings ({found}); `--fresh` begins anew, `--out` elsewhere", path.display())]
    Settings { path: PathBuf, found: String },
    /// The picture.
    #[error("can't draw {}: {reason}", path.display())]
    Chart { path: PathBuf, reason: String },
    /// The engine in this process.
    #[error("a run inside failed")]
    Engine { source: forerun_decode::DecodeError },
    /// What must change nothing changed an answer.
    #[error("the answer with guesses or drafts of our own differs from the answer without")]
    Changed,
    /// Control groups can't be used.
    #[error("--cgroup: {0}")]
    Cgroup(String),
}

impl BenchError {
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }
}
