//! Who may depend on whom.

use serde::Deserialize;

use crate::error::ChoreError;
use crate::process::{cargo, output};

/// Each crate, and those of ours that it may use.
pub(crate) const LAYERS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("arena", &[]),
    ("storage", &["model", "arena"]),
    ("scheduler", &["model", "arena", "storage"]),
    ("compute", &["model", "arena"]),
    ("candle", &["model", "arena", "compute"]),
    ("sim", &["model", "arena", "storage", "scheduler", "compute"]),
    ("decode", &["model", "arena", "storage", "scheduler", "compute", "candle"]),
    ("quantize", &["model", "storage", "compute"]),
    ("server", &["model", "decode"]),
    ("capi", &["model", "decode"]),
    ("cli", &["model", "storage", "quantize", "decode", "sim", "server"]),
];

/// What a crate's tests may use on top of that.
const TESTS_TOO: &[(&str, &[&str])] = &[("decode", &["sim"])];

/// These work on the others, so they may use all of them; nobody may use these.
const FREE: &[&str] = &["xtask", "xtask-bench", "xtask-msl", "xtask-synth", "benches"];

/// Fails unless every crate of the workspace keeps to [`LAYERS`].
///
/// # Errors
/// [`ChoreError::Broken`], and what `cargo metadata` may end with.
pub(crate) fn check() -> Result<(), ChoreError> {
    eprintln!("== layers");
    let metadata = output(&mut cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let broken = violations(&metadata)?;
    if broken.is_empty() { Ok(()) } else { Err(ChoreError::Broken { rules: "layers", broken }) }
}

/// What breaks [`LAYERS`] in the output of `cargo metadata --no-deps`.
fn violations(metadata: &[u8]) -> Result<Vec<String>, ChoreError> {
    let metadata: Metadata = serde_json::from_slice(metadata)
        .map_err(|source| ChoreError::Json { what: "the output of `cargo metadata`".into(), source })?;
    Ok(metadata.packages.iter().flat_map(broken_by).collect())
}

fn broken_by(package: &Package) -> Vec<String> {
    let user = layer(&package.name);
    if FREE.contains(&user) {
        return Vec::new();
    }
    let Some(may) = row(LAYERS, user) else {
        return vec![format!("crate `{user}` has no row in LAYERS of xtask/src/layers.rs")];
    };
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    ours.filter_map(|dependency| {
        let used = layer(&dependency.name);
        let in_tests = dependency.kind.as_deref() == Some("dev");
        let allowed = may.contains(&used)
            || in_tests && (used == user || row(TESTS_TOO, user).is_some_and(|more| more.contains(&used)));
        let tests = if in_tests { "'s tests" } else { "" };
        (!allowed).then(|| format!("{user}{tests} must not depend on {used}"))
    })
    .collect()
}

fn row(table: &'static [(&str, &[&str])], layer: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|row| row.0 == layer).map(|row| row.1)
}

/// `forerun-model` is `model`; `forerun` itself is the program in `crates/cli`.
fn layer(package: &str) -> &str {
    if package == "forerun" { "cli" } else { package.strip_prefix("forerun-").unwrap_or(package) }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev`, `build`, or none.
    kind: Option<String>,
    /// None for a package of a registry.
    path: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines `user -> used`, or `user => used` for tests only.
    #[track_caller]
    fn check(lines: &[&str], expect: &[&str]) {
        let packages = lines.iter().map(|line| {
            let (user, used, kind) = match line.split_once(" -> ") {
                Some((user, used)) => (user, used, "null"),
                None => line.split_once(" => ").map(|(user, used)| (user, used, r#""dev""#)).unwrap(),
            };
            format!(
                r#"{{"name": "{user}", "dependencies": [
                    {{"name": "serde", "kind": null, "source": "registry"}},
                    {{"name": "{used}", "kind": {kind}, "path": "crates/x"}}]}}"#
            )
        });
        let metadata = format!(r#"{{"packages": [{}]}}"#, packages.collect::<Vec<_>>().join(","));
        assert_eq!(violations(metadata.as_bytes()).unwrap(), expect);
    }

    #[test]
    fn a_layer_may_use_those_below() {
        check(&["forerun-storage -> forerun-model", "forerun -> forerun-decode"], &[]);
    }

    #[test]
    fn a_layer_must_not_use_those_above() {
        check(&["forerun-storage -> forerun-scheduler"], &["storage must not depend on scheduler"]);
        check(&["forerun-decode -> forerun"], &["decode must not depend on cli"]);
        check(&["forerun-model -> forerun-arena"], &["model must not depend on arena"]);
    }

    #[test]
    fn computing_knows_no_schedule() {
        check(&["forerun-compute -> forerun-scheduler"], &["compute must not depend on scheduler"]);
    }

    #[test]
    fn only_tests_of_decode_may_simulate() {
        check(&["forerun-decode => forerun-sim"], &[]);
        check(&["forerun-decode -> forerun-sim"], &["decode must not depend on sim"]);
        check(&["forerun-storage => forerun-sim"], &["storage's tests must not depend on sim"]);
    }

    #[test]
    fn benches_are_free_but_nobody_uses_them() {
        check(&["forerun-benches -> forerun-sim"], &[]);
        check(&["forerun-sim -> forerun-benches"], &["sim must not depend on benches"]);
    }

    #[test]
    fn a_new_crate_needs_a_row() {
        let expect = "crate `gpu` has no row in LAYERS of xtask/src/layers.rs";
        check(&["forerun-gpu -> forerun-model"], &[expect]);
    }
}
