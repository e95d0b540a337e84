//! The Metal kernels on a machine without Metal: clang reads them as C++ for OpenCL, whose address spaces are Metal's.
//!
//! Each file is type-checked by itself and all together, as a GPU gets them; faults that a check must see are shown to be seen; then
//! the kernels become a library for this CPU, and the tests of `xtask-msl` run each against its twin, and models against the goldens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ChoreError;
use crate::files;
use crate::process::{cargo, root, run as run_command, target_dir, works};

/// Compilers, the preferred one first.
const COMPILERS: &[&str] = &["clang-22", "clang-21", "clang-20", "clang-19", "clang"];
/// What other files need, in the order that a GPU gets them.
const HEADERS: &[&str] = &["common", "blocks"];
/// Files with kernels.
const KERNELS: &[&str] = &["delta_net", "expert", "close_layer"];
/// Faults in `broken.metal`.
const FAULTS: u32 = 5;
/// The kernels' language, as far as clang has it. Contraction is off, as the kernels ask for where they can.
const LANGUAGE: &[&str] = &[
    "-x",
    "clcpp",
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "-ffp-contract=off",
    "-Wall",
    "-Werror",
    // Metal's attributes, which say where arguments come from.
    "-Wno-unknown-attributes",
    "-Wno-ignored-attributes",
];
/// What is undefined ends the run: addresses that don't suit their type, shifts and indices that are too large.
const TRAPS: &[&str] = &["-fsanitize=undefined", "-fsanitize-trap=undefined"];

/// The chore.
///
/// # Errors
/// [`ChoreError::Missing`] without a compiler; [`ChoreError::Failed`] for what it, or a test, finds; [`ChoreError::Broken`] when a
/// fault passes the check.
pub(crate) fn run() -> Result<(), ChoreError> {
    let clang = Clang::find()?;
    for name in KERNELS {
        run_command(clang.with_headers().arg("-fsyntax-only").arg(source(name)))?;
    }
    let folder = target_dir().join("msl");
    let whole = folder.join("whole.metal");
    let texts = HEADERS.iter().chain(KERNELS).map(|name| files::read_text(&source(name)));
    files::write(&whole, texts.collect::<Result<String, _>>()?.as_bytes())?;
    run_command(clang.command().arg("-fsyntax-only").arg(&whole))?;
    refuses_faults(&clang)?;
    let library = build(&clang, &folder)?;
    let mut tests = cargo(&["test", "--package", "xtask-msl", "--", "--nocapture", "--test-threads=1"]);
    run_command(tests.env("FORERUN_MSL_LIBRARY", library))
}

/// Fails unless the file of faults is taken without one, and with each refused.
fn refuses_faults(clang: &Clang) -> Result<(), ChoreError> {
    let file = root().join("xtask/msl/broken.metal");
    let check = |fault: u32| {
        let mut command = clang.with_headers();
        command.args(["-Wno-unused-variable", "-fsyntax-only", &format!("-DFAULT={fault}")]).arg(&file);
        command
    };
    run_command(&mut check(0))?;
    let passed: Vec<_> = (1..=FAULTS).filter(|&fault| works(&mut check(fault))).collect();
    eprintln!("== faults: {} of {FAULTS} refused", FAULTS as usize - passed.len());
    if passed.is_empty() {
        return Ok(());
    }
    let broken = passed.iter().map(|fault| format!("{} passes with FAULT={fault}", file.display())).collect();
    Err(ChoreError::Broken { rules: "the check of kernels", broken })
}

/// An object of each file of kernels, and the library of all.
fn build(clang: &Clang, folder: &Path) -> Result<PathBuf, ChoreError> {
    fs::create_dir_all(folder).map_err(|source| ChoreError::Io {
        doing: "make",
        path: folder.to_path_buf(),
        source,
    })?;
    let native = if cfg!(target_arch = "x86_64") { "-march=native" } else { "-mcpu=native" };
    let mut objects = Vec::new();
    for name in KERNELS {
        let object = folder.join(name).with_extension("o");
        let mut command = clang.with_headers();
        command.args(["-O2", "-fPIC", native]).args(TRAPS).arg("-c").arg(source(name)).arg("-o").arg(&object);
        run_command(&mut command)?;
        objects.push(object);
    }
    let library = folder.join("libforerun_msl.so");
    let mut link = Command::new(clang.0);
    link.args(["-O2", "-fPIC", "-shared", "-Wall", "-Werror"]).arg(root().join("xtask/msl/runtime.c"));
    run_command(link.args(&objects).arg("-o").arg(&library))?;
    Ok(library)
}

fn source(name: &str) -> PathBuf {
    root().join("crates/candle/metal").join(name).with_extension("metal")
}

struct Clang(&'static str);

impl Clang {
    fn find() -> Result<Self, ChoreError> {
        let found = COMPILERS.iter().find(|name| works(Command::new(name).arg("--version")));
        let remedy = "apt.llvm.org has clang-22, with which the kernels are known to pass";
        found.map(|name| Self(name)).ok_or(ChoreError::Missing { tool: "clang", remedy })
    }

    /// A compiler of the kernels' language, which finds the stand-in for Metal's library.
    fn command(&self) -> Command {
        let mut command = Command::new(self.0);
        command.args(LANGUAGE).arg("-I").arg(root().join("xtask/msl/shim"));
        command
    }

    /// The same, with what every file of kernels needs before it.
    fn with_headers(&self) -> Command {
        let mut command = self.command();
        for header in HEADERS {
            command.arg("-include").arg(source(header));
        }
        command
    }
}
