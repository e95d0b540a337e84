//! Runs the program as a user would.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub(crate) mod hub;
#[path = "../../../decode/tests/support/older_layout.rs"]
pub(crate) mod older_layout;
pub(crate) mod shards;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// A file of the project's fixtures, or the one that is made of another.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    if !name.ends_with(older_layout::NAME) {
        return fixtures.join(name);
    }
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
        older_layout::written(&fixtures.join("architectures/qwen3next-f32.gguf"), &folder)
    };
    MADE.get_or_init(make).clone()
}

/// The program with `args`, ready to start.
pub(crate) fn forerun(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    // What a probe finds is kept among the build's own files, not the user's.
    command.args(args).stdin(Stdio::null()).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// What the program with `args` says.
pub(crate) fn output(args: &[&str]) -> Output {
    forerun(args).output().unwrap()
}

/// The JSON object that a run with `args` prints.
#[track_caller]
pub(crate) fn json(args: &[&str]) -> Value {
    let output = output(args);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {words}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}"))
}

/// What a failing run with `args` says on stderr, and its exit code.
#[track_caller]
pub(crate) fn failure(args: &[&str]) -> (i32, String) {
    let output = output(args);
    assert!(!output.status.success(), "{args:?} should fail");
    assert_eq!(output.stdout, b"", "{args:?}: nothing on stdout");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Where a server listens, and what it said before; it ends if it never does.
#[track_caller]
pub(crate) fn listening(stderr: &mut BufReader<ChildStderr>) -> (String, String) {
    let mut words = String::new();
    loop {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended before it listened: {words}");
        if let Some((_, address)) = line.trim().split_once("listens on http://") {
            return (address.to_owned(), words);
        }
        words += &line;
    }
}

/// What the program says to `input`.
pub(crate) fn talk(args: &[&str], input: &str) -> Output {
    let mut command = forerun(args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The program may have heard enough before the end.
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    if let Err(error) = written {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    }
    child.wait_with_output().unwrap()
}
