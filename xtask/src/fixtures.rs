//! Fixtures: checked against `fixtures/SHA256SUMS`, or made anew from the files that they come from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::ChoreError;
use crate::files;
use crate::process::root;

mod trace;

/// Lists every other file of the folder but [`TEXTS`], as `sha256sum` writes it.
const SUMS: &str = "SHA256SUMS";
/// Written by hand, and no input of anything.
const TEXTS: &[&str] = &["README.md", "cases.md"];

/// Each fixture that is a copy, and where it lies in the folder that `--from` names.
const COPIES: &[(&str, &str)] = &[
    ("pico-q4_k_m.gguf", "models/pico/pico-q4_k_m.gguf"),
    ("prompts.json", "models/pico/prompts.json"),
    ("tokenizer_golden.json", "models/pico/tokenizer_golden.json"),
    ("tiny-a-f32.gguf", "fixtures/tiny-random/tiny-a-f32.gguf"),
    ("tiny-b-q3_k_m.gguf", "fixtures/tiny-random/tiny-b-q3_k_m.gguf"),
    ("tiny-random/tiny-a-f32.expected.json", "fixtures/tiny-random/tiny-a-f32.expected.json"),
    ("tiny-random/tiny-b-q3_k_m.expected.json", "fixtures/tiny-random/tiny-b-q3_k_m.expected.json"),
    ("tiny-random/tokenizer.expected.json", "fixtures/tiny-random/tokenizer.expected.json"),
];

/// The goldens of pico, here and there, and what is left out of each case for its size: tests that need it need the model
/// in BF16 too, which isn't here either.
const GOLDENS: (&str, &str, &str) = ("pico-golden.json", "models/pico/golden.json", "last_logits");

/// A routing trace: what of the recorded one becomes a fixture.
struct TraceCut {
    /// Header and arrays, here and there: this path with `.json` and `.bin`.
    path: &'static str,
    /// It is cut to whole documents within so many tokens.
    tokens_max: usize,
    /// The arrays that it keeps.
    arrays: &'static [&'static str],
}

impl TraceCut {
    /// All tokens, and only the arrays that caches and guesses are judged by.
    const fn whole(path: &'static str) -> Self {
        Self { path, tokens_max: usize::MAX, arrays: &["ids", "pred:prev_mid", "pred:prev_out"] }
    }
}

const TRACES: &[TraceCut] = &[
    TraceCut {
        path: "traces/pico-chat",
        tokens_max: 2000,
        arrays: &["tokens", "ids", "weights", "pred:prev_mid"],
    },
    TraceCut::whole("traces/pico-docs"),
    TraceCut::whole("traces/pico-gen"),
    TraceCut::whole("traces/trace-chat"),
    TraceCut::whole("traces/trace-docs"),
    TraceCut::whole("traces/trace-gen"),
];

/// The chore: `fixtures [--from DIR]`.
///
/// # Errors
/// [`ChoreError::Broken`] names each fixture that isn't as it was sealed.
pub(crate) fn run(args: &[String]) -> Result<(), ChoreError> {
    match args {
        [] => check(),
        [flag, from] if flag == "--from" => {
            let folder = folder();
            copy(Path::new(from), &folder)?;
            files::write(&folder.join(SUMS), sums_text(&sums_of(&folder)?).as_bytes())
        }
        _ => Err(ChoreError::Usage("`fixtures` takes nothing, or `--from DIR`".into())),
    }
}

/// Compares every fixture with its sum; writes nothing.
///
/// # Errors
/// [`ChoreError::Broken`] names each that differs, lacks, or isn't listed.
pub(crate) fn check() -> Result<(), ChoreError> {
    eprintln!("== fixtures");
    let folder = folder();
    let listed = parse_sums(&files::read_text(&folder.join(SUMS))?)?;
    let broken = differences(&listed, &sums_of(&folder)?);
    if broken.is_empty() { Ok(()) } else { Err(ChoreError::Broken { rules: "fixtures", broken }) }
}

fn folder() -> PathBuf {
    root().join("fixtures")
}

fn copy(from: &Path, to: &Path) -> Result<(), ChoreError> {
    for (here, there) in COPIES {
        files::write(&to.join(here), &files::read(&from.join(there))?)?;
    }
    let (here, there, left_out) = GOLDENS;
    files::write(&to.join(here), &without(&files::read(&from.join(there))?, left_out)?)?;
    for TraceCut { path, tokens_max, arrays } in TRACES {
        let files = [format!("{path}.json"), format!("{path}.bin")];
        let [header, bytes] = files.each_ref().map(|file| files::read(&from.join(file)));
        let short = trace::shorten(&header?, &bytes?, *tokens_max, arrays)?;
        files::write(&to.join(&files[0]), &short.0)?;
        files::write(&to.join(&files[1]), &short.1)?;
    }
    Ok(())
}

/// A JSON file whose cases lack the entry `key`.
fn without(json: &[u8], key: &str) -> Result<Vec<u8>, ChoreError> {
    let broken = |error: serde_json::Error| ChoreError::Usage(format!("the goldens can't be read: {error}"));
    let mut goldens: serde_json::Value = serde_json::from_slice(json).map_err(broken)?;
    for case in goldens["cases"].as_array_mut().into_iter().flatten() {
        case.as_object_mut().and_then(|case| case.remove(key));
    }
    serde_json::to_vec(&goldens).map_err(broken)
}

/// Name and sum of every file.
type Sums = BTreeMap<String, String>;

fn sums_of(folder: &Path) -> Result<Sums, ChoreError> {
    let mut sums = Sums::new();
    for file in files::list(folder, &[])? {
        let name = files::relative(folder, &file);
        if name != SUMS && !TEXTS.contains(&name.as_str()) {
            sums.insert(name, sum(&files::read(&file)?));
        }
    }
    Ok(sums)
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes all that is written");
        hex
    })
}

fn parse_sums(text: &str) -> Result<Sums, ChoreError> {
    let parse = |(i, line): (usize, &str)| match line.split_once("  ") {
        Some((sum, name)) if sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()) => {
            Ok((name.to_owned(), sum.to_ascii_lowercase()))
        }
        _ => Err(ChoreError::Sums { line: i + 1 }),
    };
    text.lines().enumerate().map(parse).collect()
}

fn sums_text(sums: &Sums) -> String {
    sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect()
}

fn differences(listed: &Sums, found: &Sums) -> Vec<String> {
    let names: BTreeSet<_> = listed.keys().chain(found.keys()).collect();
    let difference = |name: &String| match (listed.get(name), found.get(name)) {
        (Some(listed), Some(found)) if listed == found => None,
        (Some(listed), Some(found)) => Some(format!("{name} has the sum {found}, but {SUMS} says {listed}")),
        (Some(_), None) => Some(format!("{name} is in {SUMS} but not in the folder")),
        (None, found) => Some(format!("{name} ({}) isn't in {SUMS}", found.map_or("", String::as_str))),
    };
    names.into_iter().filter_map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn sums(lines: &[(&str, &str)]) -> Sums {
        lines.iter().map(|(name, sum)| ((*name).to_owned(), (*sum).to_owned())).collect()
    }

    #[test]
    fn a_sum_is_that_of_sha256() {
        assert_eq!(sum(b""), EMPTY);
    }

    #[test]
    fn sums_survive_their_text() {
        let written = sums(&[("a.gguf", EMPTY), ("traces/b.bin", EMPTY)]);
        assert_eq!(parse_sums(&sums_text(&written)).unwrap(), written);
    }

    #[test]
    fn a_broken_line_is_named() {
        let text = format!("{EMPTY}  a\n{EMPTY} b\n");
        assert!(matches!(parse_sums(&text), Err(ChoreError::Sums { line: 2 })));
    }

    #[test]
    fn what_differs_lacks_or_is_new_is_named() {
        let listed = sums(&[("same", "1"), ("changed", "2"), ("gone", "3")]);
        let found = sums(&[("same", "1"), ("changed", "5"), ("new", "4")]);
        let expect = [
            "changed has the sum 5, but SHA256SUMS says 2",
            "gone is in SHA256SUMS but not in the folder",
            "new (4) isn't in SHA256SUMS",
        ];
        assert_eq!(differences(&listed, &found), expect);
    }

    #[test]
    fn copies_are_summed_and_notes_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["README.md", "cases.md", "SHA256SUMS", "traces/a.bin"] {
            files::write(&folder.path().join(name), b"").unwrap();
        }
        assert_eq!(sums_of(folder.path()).unwrap(), sums(&[("traces/a.bin", EMPTY)]));
    }
}
