//! Starts other programs, says which, and turns their failure into an error.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::ChoreError;

/// The checkout's root: of the checkout at hand, since two that share a target folder share this program too.
pub(crate) fn root() -> PathBuf {
    let xtask = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// Where builds go: as cargo is told, or `target`.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The cargo that runs this program, in the checkout's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(args).current_dir(root());
    command
}

/// The nightly that fuzzes, interprets and sanitises: one, so that what it finds is found again.
pub(crate) const NIGHTLY: &str = "nightly-2026-05-20";
/// How one gets it, with all that the chores need of it.
pub(crate) const NIGHTLY_REMEDY: &str = "`rustup toolchain install nightly-2026-05-20 --profile minimal --component miri --component rust-src` installs it";

/// The nightly cargo, in `folder`. Goes through rustup, whatever toolchain runs this program.
pub(crate) fn nightly_cargo(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", NIGHTLY, "cargo"]).args(args).current_dir(folder);
    command
}

/// Runs `command` with its output shown.
///
/// # Errors
/// [`ChoreError::NotStarted`] and [`ChoreError::Failed`].
pub(crate) fn run(command: &mut Command) -> Result<(), ChoreError> {
    let shown = shown(command);
    eprintln!("== {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(ChoreError::Failed { command: shown, status }),
        Err(source) => Err(ChoreError::NotStarted { command: shown, source }),
    }
}

/// Runs `command` and returns what it writes to its standard output.
///
/// # Errors
/// As [`run`].
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, ChoreError> {
    let shown = shown(command);
    match command.stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(ChoreError::Failed { command: shown, status: output.status }),
        Err(source) => Err(ChoreError::NotStarted { command: shown, source }),
    }
}

/// Whether `command` runs and succeeds; shows nothing.
pub(crate) fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The command as one would type it: without the path of the program, with the variables that were set for it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default();
    let envs = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        Some(format!("{}='{value}' ", name.to_string_lossy()))
    });
    let args = command.get_args().map(|arg| format!(" {}", arg.to_string_lossy()));
    envs.chain([program.to_string_lossy().into_owned()]).chain(args).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("some/where/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-Dwarnings");
        assert_eq!(shown(&command), "RUSTDOCFLAGS='-Dwarnings' cargo doc --no-deps");
    }

    #[test]
    fn a_failing_command_is_named_with_its_status() {
        let error = run(&mut cargo(&["no-such-subcommand"])).unwrap_err().to_string();
        assert!(error.starts_with("`cargo no-such-subcommand` failed: "), "{error}");
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let mut command = Command::new("no-such-program");
        assert!(!works(&mut command));
        assert_eq!(run(&mut command).unwrap_err().to_string(), "can't start `no-such-program`");
    }
}
