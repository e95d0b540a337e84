//! Each layer's example, built and run in a workspace of its own that depends on that crate and no other of ours.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::ChoreError;
use crate::process::{cargo, output, root, run as run_command, target_dir};

/// A layer's crate, its example, what that is given, and the packages of others that the example itself uses.
const EXAMPLES: &[(&str, &str, &[&str], &[&str])] = &[
    ("model", "shape", &[], &[]),
    ("arena", "hand_over", &[], &[]),
    ("storage", "read_experts", &["fixtures/pico-q4_k_m.gguf"], &[]),
    ("scheduler", "replay_trace", &["fixtures/traces/pico-chat", "96"], &["serde_json"]),
    ("compute", "moe_block", &[], &[]),
    ("sim", "custom_predictor", &["fixtures/traces/trace-docs"], &[]),
    ("decode", "generate", &["fixtures/pico-q4_k_m.gguf", "Spell thunder."], &[]),
];

/// The chore. Prints the packages that each crate brings; built without optimising, since it's the building that is asked for.
///
/// # Errors
/// [`ChoreError::Failed`] names what failed.
pub(crate) fn run() -> Result<(), ChoreError> {
    let base = target_dir().join("alone");
    for (name, example, args, uses) in EXAMPLES {
        let folder = base.join(name);
        let source = root().join("crates").join(name).join("examples").join(format!("{example}.rs"));
        let source = fs::read(&source).map_err(|error| io("read", &source, error))?;
        write(&folder.join("src/main.rs"), &source)?;
        write(&folder.join("Cargo.toml"), manifest(name, uses, &root()).as_bytes())?;
        // The same versions as here.
        let lock = root().join("Cargo.lock");
        write(&folder.join("Cargo.lock"), &fs::read(&lock).map_err(|error| io("read", &lock, error))?)?;
        let within = |args: &[&str]| -> Command {
            let mut command = cargo(args);
            command.env("CARGO_TARGET_DIR", base.join("target")).arg("--manifest-path");
            command.arg(folder.join("Cargo.toml"));
            command
        };
        run_command(within(&["run", "--quiet"]).arg("--").args(*args))?;
        let tree =
            output(within(&["tree", "--edges", "normal", "--prefix", "none"]).args(["--format", "{p}"]))?;
        eprintln!("{name}: {}", packages(&String::from_utf8_lossy(&tree)).join(", "));
    }
    Ok(())
}

/// A package that uses one crate of ours.
fn manifest(name: &str, uses: &[&str], root: &Path) -> String {
    let path = root.join("crates").join(name);
    let path = toml_text(&path.to_string_lossy());
    let others: String = uses.iter().map(|other| format!("{other} = \"1\"\n")).collect();
    format!(
        "[package]\nname = \"alone\"\nedition = \"2024\"\n\n[dependencies]\nforerun-{name} = {{ path = {path} }}\n{others}\n\
         [workspace]\n"
    )
}

fn toml_text(text: &str) -> String {
    format!("'{text}'")
}

/// Names of a tree's packages, each once; not the one that was made for it.
fn packages(tree: &str) -> Vec<String> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut names: Vec<_> =
        names.filter(|name| !name.is_empty() && *name != "alone").map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ChoreError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| io("make", folder, error))?;
    fs::write(path, bytes).map_err(|error| io("write", path, error))
}

fn io(doing: &'static str, path: &Path, source: std::io::Error) -> ChoreError {
    ChoreError::Io { doing, path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::LAYERS;

    #[test]
    fn every_layer_has_an_example() {
        let programs = ["candle", "quantize", "server", "capi", "cli"];
        for (name, _) in LAYERS.iter().filter(|(name, _)| !programs.contains(name)) {
            let (_, example, ..) = EXAMPLES.iter().find(|(layer, ..)| layer == name).unwrap();
            assert!(
                root().join(format!("crates/{name}/examples/{example}.rs")).is_file(),
                "{name}: {example}"
            );
        }
    }

    #[test]
    fn a_package_depends_on_one_crate() {
        let manifest = manifest("arena", &[], Path::new("/r"));
        assert_eq!(manifest.matches("path = ").count(), 1);
        assert!(manifest.contains("forerun-arena = { path = '/r/crates/arena' }"), "{manifest}");
    }

    #[test]
    fn packages_are_listed_once() {
        let tree = "alone v0.0.0 (/a)\nforerun-arena v0.0.0 (/b)\nbytes v1.0\n\nbytes v1.0 (*)\n";
        assert_eq!(packages(tree), ["bytes", "forerun-arena"]);
    }
}
