//! What takes too long for every change.

use std::env;

use crate::c_api::nightly_host;
use crate::error::ChoreError;
use crate::fuzz;
use crate::process::{NIGHTLY_REMEDY, cargo, nightly_cargo, root, run as run_command, target_dir, works};

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u32 = 60;

/// Every test, the ignored ones too, every benchmark once, then a short fuzz run.
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
    // Without `--bench`, criterion runs each once.
    run_command(&mut cargo(&["test", "--release", "--package", "forerun-benches", "--benches"]))?;
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

/// The arena, and the products' scalar code, under miri.
///
/// # Errors
/// [`ChoreError::Missing`] names what to install.
pub(crate) fn miri() -> Result<(), ChoreError> {
    if !works(&mut nightly_cargo(&root(), &["miri", "--version"])) {
        return Err(ChoreError::Missing { tool: "miri", remedy: NIGHTLY_REMEDY });
    }
    // An interpreter sees in one case what others need thousands for.
    let interpret = |package: &str, tests: &[&str]| {
        let mut command = nightly_cargo(&root(), &["miri", "test", "--package", package, "--lib", "--"]);
        command.args(tests).env("CARGO_TARGET_DIR", target_dir().join("miri"));
        run_command(command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "1"))
    };
    interpret("forerun-arena", &[])?;
    interpret("forerun-compute", &["kernels::tests::the_twin", "kernels::tests::many_rows"])
}

/// What crosses threads under ThreadSanitizer: leases, reads, the scheduler and the pool.
///
/// # Errors
/// [`ChoreError::Missing`] names what to install, [`ChoreError::Failed`] the tests in which threads raced.
pub(crate) fn tsan() -> Result<(), ChoreError> {
    let Some(host) = nightly_host() else {
        return Err(ChoreError::Missing { tool: "the pinned nightly toolchain", remedy: NIGHTLY_REMEDY });
    };
    // The standard library is built too, or its locks would go unseen.
    let mut command = nightly_cargo(&root(), &["test", "-Zbuild-std", "--target", &host, "--lib"]);
    for package in ["forerun-arena", "forerun-storage", "forerun-scheduler", "forerun-compute"] {
        command.args(["--package", package]);
    }
    command.env("RUSTFLAGS", "-Zsanitizer=thread").env("PROPTEST_CASES", "8");
    run_command(command.env("CARGO_TARGET_DIR", target_dir().join("tsan")))
}
