//! The memory promise under the system's own limits: every command in a control group of its budget and a twentieth.

use crate::error::ChoreError;
use crate::process::{cargo, run as run_command, target_dir};

/// Models that are made once: their file, and how.
const MODELS: &[(&str, &[&str])] = &[
    // Of the real geometry, with as many layers as keep its file small.
    ("wide.gguf", &["--shape", "qwen3.5-35b-a3b", "--quant", "les", "--layers", "4"]),
    ("long.gguf", &["--shape", "pico", "--ctx", "32768"]),
];

/// The chore: makes the models, and runs the tests of `crates/cli/tests/cgroup.rs`. As root, on Linux.
///
/// # Errors
/// [`ChoreError::Failed`] names what failed.
pub(crate) fn run() -> Result<(), ChoreError> {
    let folder = target_dir().join("memory");
    let io = |source| ChoreError::Io { doing: "make", path: folder.clone(), source };
    std::fs::create_dir_all(&folder).map_err(io)?;
    for (name, how) in MODELS {
        let path = folder.join(name);
        if !path.exists() {
            let mut synth = cargo(&["run", "--release", "--package", "xtask-synth", "--", "--out"]);
            run_command(synth.arg(&path).args(*how))?;
        }
    }
    let mut tests = cargo(&["test", "--release", "--package", "forerun", "--test", "cgroup"]);
    tests.args(["--", "--ignored", "--nocapture", "--test-threads", "1"]);
    run_command(tests.env("FORERUN_MEMORY_MODELS", &folder))
}
