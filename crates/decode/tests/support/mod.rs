//! What the tests of this crate share: fixtures and engines over them.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub(crate) mod answers;
pub(crate) mod conversations;
pub(crate) mod drafters;
pub(crate) mod goldens;
pub(crate) mod older_layout;
pub(crate) mod rig;
pub(crate) mod tolerance;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forerun_decode::{BackendChoice, Engine, EngineConfig, Logits, ModelSource, Session};
use forerun_model::TokenId;
use serde_json::Value;

/// A file of the project's fixtures, or the one that is made of another.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    if !name.ends_with(older_layout::NAME) {
        return fixtures.join(name);
    }
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
        older_layout::written(&fixtures.join("architectures/qwen3next-f32.gguf"), &folder)
    };
    MADE.get_or_init(make).clone()
}

/// A JSON fixture.
pub(crate) fn json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

/// A file outside the project, from the folder that `FORERUN_EXTRA` names; says so when the test is skipped.
pub(crate) fn extra(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("FORERUN_EXTRA") else {
        // Written directly, since what a passing test prints is not shown.
        let line = format!("skipped: FORERUN_EXTRA doesn't name a folder with {name}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    };
    let path = Path::new(&folder).join(name);
    assert!(path.is_file(), "FORERUN_EXTRA is set but holds no {name}");
    Some(path)
}

/// A configuration for `path` with everything resident.
pub(crate) fn config(path: &Path, backend: BackendChoice) -> EngineConfig {
    let mut config = EngineConfig::new(ModelSource::Path(path.to_owned()));
    config.backend = backend;
    config.n_threads = Some(1);
    config
}

/// Token ids of a JSON array.
pub(crate) fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(u32::try_from(id.as_u64().unwrap()).unwrap())).collect()
}

/// Numbers of a JSON array.
#[allow(clippy::cast_possible_truncation, reason = "goldens are compared as f32")]
pub(crate) fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// The largest difference of two rows.
pub(crate) fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The index of the largest value; of equals the first.
pub(crate) fn argmax(row: &[f32]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, v)| if *v > row[best] { i } else { best })
}

/// The logits after every one of `tokens`, fed one by one.
pub(crate) fn logits_of_all(engine: &mut Engine, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut session = Session::new();
    tokens
        .iter()
        .map(|token| session.extend(engine, &[*token], Logits::Last).unwrap().unwrap().to_vec())
        .collect()
}

/// The logits after the last of `tokens`, fed in steps of `chunk`.
pub(crate) fn logits_of_last(engine: &mut Engine, tokens: &[TokenId], chunk: usize) -> Vec<f32> {
    let mut session = Session::new();
    let mut last = Vec::new();
    for part in tokens.chunks(chunk) {
        last = session.extend(engine, part, Logits::Last).unwrap().unwrap().to_vec();
    }
    last
}
