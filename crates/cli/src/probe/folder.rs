//! Where this program keeps what it can make again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The program's own folder for caches; `None` when the environment doesn't say.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    folder(std::env::consts::OS, |name| std::env::var_os(name))
}

fn folder(system: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = |below: &str| path("HOME").map(|home| home.join(below));
    let caches = path("XDG_CACHE_HOME").or_else(|| match system {
        "macos" => home("Library/Caches"),
        "windows" => variable("LOCALAPPDATA").filter(|folder| !folder.is_empty()).map(PathBuf::from),
        _ => home(".cache"),
    });
    Some(caches?.join(Path::new("forerun")))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// The environment as `NAME=value`, apart by spaces.
    #[track_caller]
    fn check(system: &str, environment: &str, expect: Option<&str>) {
        let pairs: Vec<_> = environment.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        let variable = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into());
        assert_eq!(folder(system, variable).as_deref(), expect.map(Path::new));
    }

    #[test]
    fn every_system_has_its_place() {
        check("linux", "HOME=/h", Some("/h/.cache/forerun"));
        check("linux", "HOME=/h XDG_CACHE_HOME=/c", Some("/c/forerun"));
        check("macos", "HOME=/h", Some("/h/Library/Caches/forerun"));
        check("windows", "LOCALAPPDATA=/l", Some("/l/forerun"));
    }

    #[test]
    fn what_is_no_absolute_path_does_not_count() {
        check("linux", "", None);
        check("linux", "HOME=here", None);
        check("linux", "HOME=/h XDG_CACHE_HOME=", Some("/h/.cache/forerun"));
        check("linux", "HOME=/h XDG_CACHE_HOME=here", Some("/h/.cache/forerun"));
    }
}
