//! Rules that no lint knows. A rule that a lint can hold belongs into `Cargo.toml` or a `clippy.toml` instead.

use std::path::PathBuf;

use crate::error::ChoreError;
use crate::process::root;
use crate::{files, layers};

mod messages;
mod source;

use source::{code_only, functions, has_word};

/// Longest source file, in lines.
const FILE_LINES_MAX: usize = 400;
/// Longest function, in lines from `fn` to the closing brace.
const FUNCTION_LINES_MAX: usize = 60;

/// Files that may be longer: path and lines. An entry may shrink, and none may be added.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions that may be longer: `path::name` and lines. An entry may shrink, and none may be added.
const LONG_FUNCTIONS: &[(&str, usize)] = &[];

/// Files that may open `unsafe_code`.
const UNSAFE_FILES: &[&str] = &[
    "crates/arena/src/lease.rs",
    "crates/arena/src/memory.rs",
    "crates/arena/src/threads.rs",
    "crates/arena/src/window.rs",
    "crates/candle/src/metal/gpu.rs",
    "crates/candle/src/metal/slots.rs",
    "crates/candle/src/pinned.rs",
    "crates/capi/src/borrow.rs",
    "crates/capi/src/exports.rs",
    "crates/compute/src/activation/coding.rs",
    "crates/compute/src/activation/rows.rs",
    "crates/compute/src/kernels/avx2_ops.rs",
    "crates/compute/src/kernels/avx512/blocks.rs",
    "crates/compute/src/kernels/avx512/floats.rs",
    "crates/compute/src/kernels/avx512/mod.rs",
    "crates/compute/src/kernels/avx512/narrow.rs",
    "crates/compute/src/kernels/avx512/rows.rs",
    "crates/compute/src/kernels/avx512/tile.rs",
    "crates/compute/src/kernels/columns.rs",
    "crates/compute/src/kernels/isa.rs",
    "crates/compute/src/kernels/neon_ops.rs",
    "crates/compute/src/products/quantised.rs",
    "crates/compute/src/stack/moe.rs",
    "crates/compute/src/stack/recurrence.rs",
    "crates/compute/src/workers/mod.rs",
    "crates/compute/src/workers/pool.rs",
    "crates/compute/src/workers/slices.rs",
    "crates/decode/src/commit.rs",
    "crates/decode/src/heap.rs",
    "crates/decode/tests/allocations.rs",
    "crates/decode/tests/grammar_memory.rs",
    "crates/storage/src/backend/mmap.rs",
    "crates/storage/src/backend/uring/ring.rs",
    "crates/storage/src/mapped.rs",
    "crates/storage/src/resident.rs",
    "crates/storage/tests/support/allocations.rs",
    "xtask/msl/src/fibers.rs",
    "xtask/msl/src/library.rs",
];

/// Crates where time may be read, and the files of others that may: elsewhere it comes from outside. Not a lint, for
/// tests may measure.
const MAY_READ_TIME: &[&str] =
    &["crates/cli/", "crates/server/", "crates/capi/src/engine.rs", "crates/model/src/time.rs"];
/// How time is read.
const CLOCKS: &[&str] = &["Instant::now", "SystemTime::now"];

/// What tells of work that isn't done, wherever it stands.
const UNDONE: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];
/// The same, as code.
const UNDONE_CODE: &[&str] = &["todo!", "unimplemented!"];
/// Paths that only one machine has.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/tm", "p/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// Folders and files of the root that are looked through.
const LOOKED_AT: &[&str] = &["crates", "xtask", "benches", "docs", "fixtures", ".github", ".ci", ".cargo"];
/// Folders that tools fill.
const SKIPPED: &[&str] = &["target", "corpus", "artifacts", "coverage"];
/// Endings of the texts that people write.
const TEXTS: &[&str] =
    &["rs", "md", "toml", "yml", "yaml", "py", "metal", "html", "js", "css", "sh", "c", "h"];

/// Fails unless every text of the checkout keeps the rules, and every crate its layer.
///
/// # Errors
/// [`ChoreError::Broken`] names each broken rule with file and line.
pub(crate) fn check() -> Result<(), ChoreError> {
    eprintln!("== tidy");
    let rules = Rules { long_files: LONG_FILES, long_functions: LONG_FUNCTIONS, unsafe_files: UNSAFE_FILES };
    let texts = texts()?;
    let mut broken = rules.violations(&texts);
    broken.extend(messages::idle(texts.iter().map(|text| text.text.as_str())));
    if !broken.is_empty() {
        return Err(ChoreError::Broken { rules: "tidy", broken });
    }
    layers::check()
}

/// A file of the checkout.
struct Text {
    /// Below the root, with `/`.
    path: String,
    text: String,
}

fn texts() -> Result<Vec<Text>, ChoreError> {
    let root = root();
    let mut paths = Vec::new();
    for folder in LOOKED_AT.iter().map(|name| root.join(name)).filter(|folder| folder.is_dir()) {
        paths.extend(files::list(&folder, SKIPPED)?);
    }
    let top = ["README.md", "Cargo.toml", "clippy.toml"].map(|name| root.join(name));
    paths.extend(top.into_iter().filter(|file| file.is_file()));
    let is_text = |path: &&PathBuf| match path.extension() {
        Some(ending) => TEXTS.iter().any(|text| ending == *text),
        None => path.starts_with(root.join(".ci")),
    };
    paths
        .iter()
        .filter(is_text)
        .map(|path| Ok(Text { path: files::relative(&root, path), text: files::read_text(path)? }))
        .collect()
}

/// The exceptions. Each must be needed, or it is a violation itself.
struct Rules<'a> {
    long_files: &'a [(&'a str, usize)],
    long_functions: &'a [(&'a str, usize)],
    unsafe_files: &'a [&'a str],
}

impl Rules<'_> {
    fn violations(&self, texts: &[Text]) -> Vec<String> {
        let mut broken = Vec::new();
        let (mut files, mut all_functions, mut unsafes) = (Vec::new(), Vec::new(), Vec::new());
        for Text { path, text } in texts {
            broken.extend(words(path, text));
            if !path.ends_with(".rs") {
                continue;
            }
            broken.extend(messages::violations(path, text));
            let code = code_only(text);
            broken.extend(undone_code(path, &code));
            broken.extend(clocks(path, &code));
            if !text.starts_with("//!") {
                broken.push(format!("{path}:1 must begin with `//!` and what the file is"));
            }
            if has_word(&code, "unsafe") || has_word(&code, "unsafe_code") {
                unsafes.push(path.as_str());
            }
            files.push((path.clone(), text.lines().count()));
            all_functions.extend(functions(&code).map(|f| (format!("{path}::{}", f.name), f.n_lines)));
        }
        broken.extend(ratchet("file", &files, FILE_LINES_MAX, self.long_files));
        broken.extend(ratchet("function", &all_functions, FUNCTION_LINES_MAX, self.long_functions));
        broken.extend(self.unsafe_violations(&unsafes));
        broken
    }

    fn unsafe_violations(&self, found: &[&str]) -> Vec<String> {
        let opened = found.iter().filter(|path| !self.unsafe_files.contains(path));
        let idle = self.unsafe_files.iter().filter(|path| !found.contains(path));
        opened
            .map(|path| format!("{path} opens unsafe code but isn't in UNSAFE_FILES of xtask/src/tidy.rs"))
            .chain(idle.map(|path| format!("{path} is in UNSAFE_FILES but opens no unsafe code")))
            .collect()
    }
}

/// Words and paths that no text may have.
fn words(path: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let at = format!("{path}:{}", i + 1);
        for word in UNDONE.iter().filter(|word| has_word(line, word)) {
            broken.push(format!("{at} says {word}: do it or drop it"));
        }
        for machine in MACHINE_PATHS.iter().filter(|machine| has_path(line, machine)) {
            broken.push(format!("{at} names {machine}, which other machines lack"));
        }
    }
    broken
}

fn undone_code(path: &str, code: &str) -> Vec<String> {
    let lines = code.lines().enumerate();
    let found = lines.flat_map(|(i, line)| {
        UNDONE_CODE.iter().filter(move |word| line.contains(*word)).map(move |word| (i + 1, word))
    });
    found.map(|(line, word)| format!("{path}:{line} calls {word}: do it or return an error")).collect()
}

fn clocks(path: &str, code: &str) -> Vec<String> {
    let is_engine = path.starts_with("crates/") && path.split('/').nth(2) == Some("src");
    if !is_engine || MAY_READ_TIME.iter().any(|may| path.starts_with(may)) {
        return Vec::new();
    }
    let reads_time = |line: &str| CLOCKS.iter().any(|clock| has_word(line, clock));
    let found = code.lines().enumerate().filter(|(_, line)| reads_time(line));
    found.map(|(i, _)| format!("{path}:{} reads the time: take a `model::Clock`", i + 1)).collect()
}

/// Whether `line` names an absolute path that begins with `machine`.
fn has_path(line: &str, machine: &str) -> bool {
    line.match_indices(machine).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-})/~".contains(before))
    })
}

/// Nothing may be longer than `max` but what is in `old`, which may not grow, and whose entries follow it down.
fn ratchet(what: &str, found: &[(String, usize)], max: usize, old: &[(&str, usize)]) -> Vec<String> {
    let allowed = |name: &str| old.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
    let too_long = found.iter().filter_map(|(name, n)| match (*n, allowed(name)) {
        (n, None) => (n > max).then(|| format!("{what} {name} has {n} lines, {max} may be")),
        (n, Some(was)) if n > was => Some(format!("{what} {name} has grown from {was} to {n} lines")),
        (n, Some(was)) if n > max && n < was => {
            Some(format!("{what} {name} has shrunk: lower its entry in xtask/src/tidy.rs from {was} to {n}"))
        }
        _ => None,
    });
    let is_long = |name: &str| found.iter().any(|(found, n)| found == name && *n > max);
    let idle = old.iter().filter(|entry| !is_long(entry.0));
    too_long
        .chain(
            idle.map(|(name, _)| format!("{what} {name} is short now: drop its entry in xtask/src/tidy.rs")),
        )
        .collect()
}

#[cfg(test)]
mod tests;
