//! Where the kernels are.

use std::io::Write;
use std::path::Path;

use xtask_msl::Library;

/// The kernels that `cargo xtask msl` has compiled; says so when the test is skipped.
pub(crate) fn library() -> Option<Library> {
    let Some(path) = std::env::var_os("FORERUN_MSL_LIBRARY") else {
        // Written directly, since what a passing test prints is not shown.
        let line = b"skipped: FORERUN_MSL_LIBRARY names no library; `cargo xtask msl` makes one\n";
        std::io::stderr().write_all(line).unwrap();
        return None;
    };
    Some(Library::open(Path::new(&path)).unwrap())
}
