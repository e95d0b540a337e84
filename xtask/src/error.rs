//! Why a chore failed.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ChoreError {
    /// The command line names something that there isn't.
    #[error("{0}")]
    Usage(String),
    /// A program ran and failed; it has said why.
    #[error("`{command}` failed: {status}")]
    Failed { command: String, status: ExitStatus },
    /// A program couldn't be started.
    #[error("can't start `{command}`")]
    NotStarted { command: String, source: io::Error },
    /// A program that a chore needs isn't installed.
    #[error("this needs {tool}, which isn't installed; {remedy}")]
    Missing { tool: &'static str, remedy: &'static str },
    /// Rules are broken.
    #[error("{rules}: {} broken\n  {}", broken.len(), broken.join("\n  "))]
    Broken { rules: &'static str, broken: Vec<String> },
    /// A file or folder.
    #[error("can't {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// JSON that isn't what it should be.
    #[error("can't make sense of {what}")]
    Json { what: String, source: serde_json::Error },
    /// A routing trace that can't be shortened.
    #[error("the trace can't be shortened: {0}")]
    Trace(String),
    /// `SHA256SUMS` has a line that isn't a sum and a name.
    #[error("line {line} of SHA256SUMS isn't `<64 hex digits>  <file>`")]
    Sums { line: usize },
}
