//! The programs that are measured and that make models, built once.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::args::Args;
use crate::error::BenchError;

/// Where they lie.
#[derive(Debug)]
pub(crate) struct Programs {
    /// `forerun`, with what the backends asked for need.
    pub(crate) forerun: PathBuf,
    root: PathBuf,
}

impl Programs {
    /// Builds `forerun` in release mode.
    ///
    /// # Errors
    /// [`BenchError`] when cargo fails.
    pub(crate) fn build(args: &Args) -> Result<Self, BenchError> {
        // Of the checkout at hand: two that share a target folder share this program too.
        let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let here = Path::new(&here);
        let root = here.ancestors().nth(2).unwrap_or(here).to_path_buf();
        let features: Vec<&str> = ["candle", "cuda", "metal"]
            .into_iter()
            .filter(|feature| args.backends().iter().any(|backend| backend == feature))
            .collect();
        let features = features.join(",");
        let mut build = cargo(&root);
        build.args(["build", "--release", "--package", "forerun", "--features", &features]);
        succeed(&mut build)?;
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let forerun = target.join("release").join(format!("forerun{}", env::consts::EXE_SUFFIX));
        Ok(Self { forerun, root })
    }

    /// The checkout's root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the fixtures.
    pub(crate) fn fixture(&self, name: &str) -> PathBuf {
        self.root.join("fixtures").join(name)
    }

    /// `cargo xtask synth`.
    ///
    /// # Errors
    /// [`BenchError`] when it fails.
    pub(crate) fn synth(&self, args: &[OsString]) -> Result<(), BenchError> {
        let mut synth = cargo(&self.root);
        synth.args(["run", "--quiet", "--release", "--package", "xtask-synth", "--"]).args(args);
        succeed(&mut synth)
    }

    /// `forerun`, for what isn't measured.
    ///
    /// # Errors
    /// [`BenchError`] when it fails.
    pub(crate) fn forerun(&self, args: &[OsString]) -> Result<(), BenchError> {
        succeed(Command::new(&self.forerun).args(args))
    }
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    command
}

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default();
    let args = command.get_args().map(|arg| format!(" {}", arg.to_string_lossy()));
    [program.to_string_lossy().into_owned()].into_iter().chain(args).collect()
}

/// Runs `command` with its errors shown.
///
/// # Errors
/// [`BenchError`] when it can't be started, or fails.
pub(crate) fn succeed(command: &mut Command) -> Result<(), BenchError> {
    eprintln!("== {}", shown(command));
    let status = command.stdout(Stdio::null()).status();
    let status = status.map_err(|source| BenchError::NotStarted { command: shown(command), source })?;
    if status.success() {
        return Ok(());
    }
    Err(BenchError::Failed { command: shown(command), status })
}
