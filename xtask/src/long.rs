//! What takes too long for every change.

use std::env;

use crate::error::ChoreError;
use crate::fuzz;
use crate::process::{cargo, nightly_cargo, root, run as run_command, target_dir, works};

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u32 = 60;

/// Every test, the ignored ones too, then a short fuzz run.
///
/// # Errors
/// What fails first.
pub(crate) fn run() -> Result<(), ChoreError> {
    if env::var_os("FORERUN_EXTRA").is_none() {
        eprintln!("FORERUN_EXTRA names no folder: tests on files outside the project skip themselves");
    }
    // Not the examples in docs: one that is marked `ignore` is not meant to run.
    let targets = ["--lib", "--bins", "--examples", "--test", "*"];
    let test = ["test", "--workspace", "--release"];
    run_command(cargo(&test).args(targets).args(["--", "--include-ignored"]))?;
    fuzz::all(FUZZ_SECONDS)
}

/// The arena and the pool of threads under loom. Its flag changes every crate below, so it builds in a folder of its own.
///
/// # Errors
/// [`ChoreError::Failed`].
pub(crate) fn loom() -> Result<(), ChoreError> {
    let packages = ["--package", "forerun-arena", "--package", "forerun-compute"];
    let mut command = cargo(&["test", "--release", "--lib"]);
    // Everything else in them would run without being modelled.
    command.args(packages).args(["--", "model"]);
    run_command(command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target_dir().join("loom")))
}

/// The arena under miri.
///
/// # Errors
/// [`ChoreError::Missing`] names what to install.
pub(crate) fn miri() -> Result<(), ChoreError> {
    if !works(&mut nightly_cargo(&root(), &["miri", "--version"])) {
        let remedy = "`rustup toolchain install nightly --component miri` installs it";
        return Err(ChoreError::Missing { tool: "miri", remedy });
    }
    let mut command = nightly_cargo(&root(), &["miri", "test", "--package", "forerun-arena", "--lib"]);
    run_command(command.env("CARGO_TARGET_DIR", target_dir().join("miri")))
}
