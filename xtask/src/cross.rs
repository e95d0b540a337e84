//! What can be proven of other systems on a Linux machine: types and lints everywhere, the whole program linked for Windows,
//! and tests of the Arm kernels, of the layers and of the goldens under emulation.
//!
//! Targets' standard libraries come from rustup. C code in dependencies' build scripts is left out where nothing is linked: a
//! script that writes empty objects stands in for the compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ChoreError;
use crate::process::{cargo, run as run_command, target_dir, works};

const APPLE: &str = "aarch64-apple-darwin";
const ARM: &str = "aarch64-unknown-linux-gnu";
const ANDROID: &str = "aarch64-linux-android";
const WINDOWS: &str = "x86_64-pc-windows-gnu";

/// Processors that are emulated: all extensions that we use; without `i8mm`; without `dotprod` too. A kernel whose extension
/// isn't there, and that runs all the same, ends the test with an illegal instruction.
const PROCESSORS: &[&str] = &["max", "neoverse-n1", "cortex-a57"];
/// Where emulators are looked for, the preferred one first.
const EMULATORS: &[&str] = &["qemu-aarch64-static", "qemu-aarch64"];
/// The packages that are tested, together in every command: another set would have other features, and be built anew.
const TESTED: &[&str] = &[
    "forerun-model",
    "forerun-arena",
    "forerun-storage",
    "forerun-scheduler",
    "forerun-compute",
    "forerun-sim",
    "forerun-decode",
];
/// Tests of the arithmetic, which each processor does in its own way: names of the modules that have them.
const ARITHMETIC: &[&str] =
    &["--lib", "--", "kernels::", "products::", "dequant::", "quantise::", "delta_net", "attention"];
/// Tests of the layers, of the backends' conformance, and of the goldens; one processor says enough of them.
const LAYERS: &[&[&str]] = &[
    &["--lib", "--", "--skip", "text::"],
    &["--test", "conformance", "--test", "goldens", "--test", "architectures", "--test", "cpu"],
];

/// A target, and what is proven of it.
struct Part {
    name: &'static str,
    target: &'static str,
    run: fn() -> Result<(), ChoreError>,
}

const PARTS: &[Part] = &[
    Part { name: "apple", target: APPLE, run: apple },
    Part { name: "android", target: ANDROID, run: android },
    Part { name: "windows", target: WINDOWS, run: windows },
    Part { name: "arm", target: ARM, run: arm },
];

/// The chore: `cross [PART…]`, all of them where none is named. A part that fails doesn't keep the others from being tried.
///
/// # Errors
/// [`ChoreError::Usage`] for a part that there isn't, [`ChoreError::Missing`] names what to install, [`ChoreError::Failed`].
pub(crate) fn run(args: &[String]) -> Result<(), ChoreError> {
    let parts = parts(args)?;
    let mut add = Command::new("rustup");
    run_command(add.args(["target", "add"]).args(parts.iter().map(|part| part.target)))?;
    let results: Vec<_> = parts.iter().map(|part| (part.name, (part.run)())).collect();
    let mut first = Ok(());
    for (name, result) in results {
        eprintln!("== cross {name}: {}", result.as_ref().map_or_else(ToString::to_string, |()| "ok".into()));
        first = first.and(result);
    }
    first
}

fn parts(args: &[String]) -> Result<Vec<&'static Part>, ChoreError> {
    let find = |name: &String| PARTS.iter().find(|part| part.name == name);
    if let Some(wrong) = args.iter().find(|name| find(name).is_none()) {
        let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        return Err(ChoreError::Usage(format!("`cross` has no part `{wrong}`; it has {}", names.join(", "))));
    }
    Ok(if args.is_empty() { PARTS.iter().collect() } else { args.iter().filter_map(find).collect() })
}

/// Lints of everything, for a system that can't be linked for here; Metal is a feature, and Apple's alone.
fn apple() -> Result<(), ChoreError> {
    lints(APPLE, &["--workspace"])?;
    lints(APPLE, &["--package", "forerun-candle", "--features", "metal"])
}

fn android() -> Result<(), ChoreError> {
    lints(ANDROID, &["--workspace"])
}

/// Lints of everything; then the program, linked where a linker is at hand, and storage's tests where Wine is.
fn windows() -> Result<(), ChoreError> {
    lints(WINDOWS, &["--workspace"])?;
    let linker = "x86_64-w64-mingw32-gcc";
    if !works(Command::new(linker).arg("--version")) {
        eprintln!("not linked: there is no {linker} (Debian's gcc-mingw-w64-x86-64)");
        return Ok(());
    }
    run_command(&mut elsewhere(&["build", "-p", "forerun", "--target", WINDOWS]))?;
    let program = target_dir().join("cross").join("build").join(WINDOWS).join("debug").join("forerun.exe");
    if !works(Command::new("wine").arg(program).arg("--version").env("WINEDEBUG", "-all")) {
        // Wine 8 has no bcryptprimitives.dll, which the standard library wants.
        eprintln!("not run: there is no wine, or none of version 9 or later");
        return Ok(());
    }
    let wine = |args: &[&str]| {
        let mut command = elsewhere(args);
        command.args(["--target", WINDOWS]).env("WINEDEBUG", "-all").env(variable(WINDOWS, "RUNNER"), "wine");
        command
    };
    run_command(&mut wine(&["test", "-p", "forerun-storage", "--lib"]))?;
    run_command(wine(&["run", "-p", "forerun"]).args(["--", "run", "What does \"river\" mean?"]))
}

/// Kernels on each processor, the rest on the first.
fn arm() -> Result<(), ChoreError> {
    let linker = "aarch64-linux-gnu-gcc";
    if !works(Command::new(linker).arg("--version")) {
        let remedy = "Debian's gcc-aarch64-linux-gnu and libc6-dev-arm64-cross have it";
        return Err(ChoreError::Missing { tool: "aarch64-linux-gnu-gcc", remedy });
    }
    let emulator = EMULATORS.iter().find(|emulator| works(Command::new(emulator).arg("--version")));
    let emulator = emulator
        .ok_or(ChoreError::Missing { tool: "qemu-aarch64", remedy: "Debian's qemu-user-static has it" })?;
    let packages: Vec<&str> =
        ["test"].into_iter().chain(TESTED.iter().flat_map(|&name| ["-p", name])).collect();
    let test = |args: &[&str], processor: &str| {
        let mut command = elsewhere(&packages);
        command.args(["--target", ARM]).args(args).env("QEMU_CPU", processor);
        command.env(variable(ARM, "LINKER"), linker);
        command.env(variable(ARM, "RUNNER"), format!("{emulator} -L /usr/aarch64-linux-gnu"));
        command.env(compiler_variable("CC", ARM), linker);
        run_command(&mut command)
    };
    for processor in PROCESSORS {
        test(ARITHMETIC, processor)?;
    }
    LAYERS.iter().try_for_each(|args| test(args, PROCESSORS[0]))
}

/// Clippy over packages, with warnings denied.
fn lints(target: &str, packages: &[&str]) -> Result<(), ChoreError> {
    let stand_in = StandIn::write(&target_dir().join("cross"))?;
    let mut command = elsewhere(&["clippy", "--all-targets", "--keep-going", "--target", target]);
    command.args(packages).args(["--", "-D", "warnings"]);
    command.env(compiler_variable("CC", target), &stand_in.compiler);
    command.env(compiler_variable("CXX", target), &stand_in.compiler);
    command.env(compiler_variable("AR", target), &stand_in.archiver);
    run_command(&mut command)
}

/// A cargo whose builds lie apart, so that they and those for this machine leave each other alone.
fn elsewhere(args: &[&str]) -> Command {
    let mut command = cargo(args);
    command.env("CARGO_TARGET_DIR", target_dir().join("cross").join("build"));
    command
}

/// The variable with which cargo takes `what` of a target.
fn variable(target: &str, what: &str) -> String {
    format!("CARGO_TARGET_{}_{what}", target.to_uppercase().replace('-', "_"))
}

/// The variable with which build scripts take a tool for a target.
fn compiler_variable(tool: &str, target: &str) -> String {
    format!("{tool}_{}", target.replace('-', "_"))
}

/// A C compiler and an archiver whose results are empty.
struct StandIn {
    compiler: PathBuf,
    archiver: PathBuf,
}

impl StandIn {
    /// Scripts, since a build script wants programs of their own.
    const COMPILER: &str = include_str!("cross/empty-cc.sh");
    const ARCHIVER: &str = include_str!("cross/empty-ar.sh");

    fn write(folder: &Path) -> Result<Self, ChoreError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ChoreError::Io { doing: "write", path, source }
        };
        fs::create_dir_all(folder).map_err(io(folder))?;
        let script = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).and_then(|()| make_executable(&path)).map_err(io(&path))?;
            Ok::<_, ChoreError>(path)
        };
        Ok(Self {
            compiler: script("empty-cc", Self::COMPILER)?,
            archiver: script("empty-ar", Self::ARCHIVER)?,
        })
    }
}

#[cfg(unix)]
fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> std::io::Result<()> {
    Err(std::io::Error::other("stand-ins for compilers are shell scripts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_by_name_and_all_when_none_is_named() {
        let names = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
            parts(&args).map(|parts| parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap(), ["apple", "android", "windows", "arm"]);
        assert_eq!(names(&["arm", "apple"]).unwrap(), ["arm", "apple"]);
        let error = names(&["amiga"]).unwrap_err().to_string();
        assert_eq!(error, "`cross` has no part `amiga`; it has apple, android, windows, arm");
    }

    #[test]
    fn variables_are_spelt_as_cargo_and_build_scripts_take_them() {
        assert_eq!(variable(ARM, "RUNNER"), "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER");
        assert_eq!(compiler_variable("CC", APPLE), "CC_aarch64_apple_darwin");
    }
}
