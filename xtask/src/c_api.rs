//! The tests of the C interface under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer.
//!
//! Twice: with only the C program instrumented, which sees all that passes through `malloc`, Rust's too; and, where a
//! nightly is installed, with all Rust instrumented as well.

use std::process::Command;

use crate::error::ChoreError;
use crate::process::{
    NIGHTLY, NIGHTLY_REMEDY, cargo, nightly_cargo, output, root, run as run_command, target_dir, works,
};

/// Every finding ends the program, so that the test fails.
const C_FLAGS: &str = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer";
/// Instruments Rust. Its own test programs link the runtime, the C program's compiler has one as well.
const RUST_FLAGS: &str = "-Zsanitizer=address";

const TEST: &[&str] = &["test", "--package", "forerun-capi", "--test", "c_programs"];
const TOUR: &[&str] = &["--", "--nocapture", "the_tour"];

/// The chore.
///
/// # Errors
/// [`ChoreError::Missing`] without a C compiler; [`ChoreError::Failed`] for what a sanitizer finds.
pub(crate) fn run() -> Result<(), ChoreError> {
    if !works(Command::new("cc").arg("--version")) {
        let remedy = "`apt-get install gcc` or its like installs it";
        return Err(ChoreError::Missing { tool: "a C compiler (`cc`)", remedy });
    }
    run_command(cargo(TEST).args(TOUR).env("FORERUN_C_FLAGS", C_FLAGS))?;
    let Some(host) = nightly_host() else {
        eprintln!("the Rust side wasn't instrumented, for there is no {NIGHTLY}: {NIGHTLY_REMEDY}");
        return Ok(());
    };
    let mut command = nightly_cargo(&root(), TEST);
    // With a target, programs that build other things aren't instrumented.
    command.args(["--target", &host]).args(TOUR).env("FORERUN_C_FLAGS", C_FLAGS);
    run_command(command.env("RUSTFLAGS", RUST_FLAGS).env("CARGO_TARGET_DIR", target_dir().join("c-api")))
}

/// What the nightly compiles for if nothing else is said; `None` without a nightly.
pub(crate) fn nightly_host() -> Option<String> {
    if !works(Command::new("rustup").args(["run", NIGHTLY, "rustc", "--version"])) {
        return None;
    }
    let said = output(Command::new("rustup").args(["run", NIGHTLY, "rustc", "-vV"])).ok()?;
    host_in(&String::from_utf8_lossy(&said))
}

fn host_in(said: &str) -> Option<String> {
    said.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_the_compiler_says() {
        let said =
            "rustc 1.97.0-nightly\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.97.0-nightly\n";
        assert_eq!(host_in(said).as_deref(), Some("x86_64-unknown-linux-gnu"));
        assert_eq!(host_in("rustc 1.97.0"), None);
    }
}
