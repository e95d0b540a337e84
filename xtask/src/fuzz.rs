//! Fuzzes every target of every crate for a while.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ChoreError;
use crate::files;
use crate::process::{NIGHTLY_REMEDY, nightly_cargo, root, run as run_command, works};

/// One target: a program in a crate's `fuzz/fuzz_targets`.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    /// The crate's `fuzz` folder.
    folder: PathBuf,
    name: String,
}

/// The chore: `fuzz SECONDS`.
///
/// # Errors
/// [`ChoreError::Usage`], and those of [`all`].
pub(crate) fn run(args: &[String]) -> Result<(), ChoreError> {
    let [seconds] = args else {
        return Err(ChoreError::Usage("`fuzz` takes the number of seconds for each target".into()));
    };
    match seconds.parse() {
        // libFuzzer takes 0 for "for ever".
        Ok(seconds) if seconds > 0 => all(seconds),
        _ => Err(ChoreError::Usage(format!("`{seconds}` isn't a number of seconds above 0"))),
    }
}

/// Fuzzes each target for `seconds`.
///
/// # Errors
/// [`ChoreError::Missing`] names a tool to install, [`ChoreError::Failed`] the target that found something.
pub(crate) fn all(seconds: u32) -> Result<(), ChoreError> {
    require_tools()?;
    for target in targets(&root())? {
        let corpus = target.folder.join("corpus").join(&target.name);
        let io = |source| ChoreError::Io { doing: "make", path: corpus.clone(), source };
        std::fs::create_dir_all(&corpus).map_err(io)?;
        // The versions that the program is built with; what the targets need besides is added.
        let lock = target.folder.join("Cargo.lock");
        let io = |source| ChoreError::Io { doing: "write", path: lock.clone(), source };
        std::fs::copy(root().join("Cargo.lock"), &lock).map_err(io)?;
        run_command(&mut command(&target, seconds))?;
    }
    Ok(())
}

/// The crates are known by their folders, so that a new target can't be forgotten.
fn targets(root: &Path) -> Result<Vec<Target>, ChoreError> {
    let crates = files::list(&root.join("crates"), &["target", "corpus", "artifacts", "src", "tests"])?;
    Ok(crates.iter().filter_map(|file| target_of(root, file)).collect())
}

/// `crates/NAME/fuzz/fuzz_targets/TARGET.rs` is a target.
fn target_of(root: &Path, file: &Path) -> Option<Target> {
    let relative = files::relative(root, file);
    let ["crates", _, "fuzz", "fuzz_targets", name] = relative.split('/').collect::<Vec<_>>()[..] else {
        return None;
    };
    let folder = file.parent()?.parent()?.to_path_buf();
    Some(Target { folder, name: name.strip_suffix(".rs")?.to_owned() })
}

/// Seeds of one target lie in `seeds/TARGET`, or in `seeds` when the crate has one target.
fn command(target: &Target, seconds: u32) -> Command {
    let corpus = format!("corpus/{}", target.name);
    let mut command =
        nightly_cargo(&target.folder, &["fuzz", "run", "--fuzz-dir", ".", &target.name, &corpus]);
    let seeds = [format!("seeds/{}", target.name), "seeds".to_owned()];
    command.args(seeds.iter().find(|seeds| target.folder.join(seeds).is_dir()));
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    command
}

fn require_tools() -> Result<(), ChoreError> {
    let nightly = |args: &[&str]| works(&mut nightly_cargo(&root(), args));
    if !nightly(&["--version"]) {
        return Err(ChoreError::Missing { tool: "the pinned nightly toolchain", remedy: NIGHTLY_REMEDY });
    }
    if !nightly(&["fuzz", "--version"]) {
        return Err(ChoreError::Missing {
            tool: "cargo-fuzz",
            remedy: "`cargo install cargo-fuzz` installs it",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_by_their_place() {
        let find = |file: &str| target_of(Path::new("/r"), &Path::new("/r").join(file)).map(|t| t.name);
        assert_eq!(find("crates/storage/fuzz/fuzz_targets/gguf_open.rs").as_deref(), Some("gguf_open"));
        assert_eq!(find("crates/storage/fuzz/seeds/gguf_open/stacked.gguf"), None);
        assert_eq!(find("crates/storage/src/fuzz/fuzz_targets/a.rs"), None);
    }

    #[test]
    fn the_readers_are_fuzzed() {
        let targets = targets(&root()).unwrap();
        for name in ["gguf_open", "packed_open", "imatrix_open"] {
            assert!(targets.iter().any(|target| target.name == name), "{name}");
        }
    }

    #[test]
    fn a_target_runs_for_as_long_as_it_was_told() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("seeds")).unwrap();
        let target = Target { folder: folder.path().to_path_buf(), name: "gguf_open".into() };
        let command = command(&target, 60);
        let args: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
        let expect = "run nightly-2026-05-20 cargo fuzz run --fuzz-dir . gguf_open corpus/gguf_open seeds -- -max_total_time=60";
        assert_eq!(args.join(" "), expect);
    }

    #[test]
    fn seconds_must_be_a_number_above_zero() {
        for wrong in ["0", "-1", "soon"] {
            let error = run(&[wrong.to_owned()]).unwrap_err().to_string();
            assert_eq!(error, format!("`{wrong}` isn't a number of seconds above 0"));
        }
        assert!(matches!(run(&[]), Err(ChoreError::Usage(_))));
    }
}
