//! Models that are split into several files, `NAME-00001-of-00003.gguf`: which files belong together, and whether
//! their headers agree.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use crate::OpenError;

const SUFFIX: &str = ".gguf";
const KEY_NO: &str = "split.no";
const KEY_COUNT: &str = "split.count";
const KEY_TENSORS: &str = "split.tensors.count";

/// What a shard's file name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ShardName<'a> {
    prefix: &'a str,
    n_shards: u64,
    /// Counted from 1.
    shard: u64,
}

impl<'a> ShardName<'a> {
    fn parse(file_name: &'a str) -> Option<Self> {
        let (rest, n_shards) = file_name.strip_suffix(SUFFIX)?.rsplit_once("-of-")?;
        let (prefix, shard) = rest.rsplit_once('-')?;
        let five_digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        if !five_digits(shard) || !five_digits(n_shards) {
            return None;
        }
        Some(Self { prefix, n_shards: n_shards.parse().ok()?, shard: shard.parse().ok()? })
    }
}

/// The files of a model, in the order of their shards.
pub(super) struct Located {
    pub(super) paths: Vec<PathBuf>,
    /// Whether the name says that it is a shard.
    pub(super) split: bool,
}

/// Finds all files of the model that `path` names: a file, any shard of a set, or a folder that holds one model.
pub(super) fn locate(path: &Path) -> Result<Located, OpenError> {
    let metadata = fs::metadata(path);
    let metadata =
        metadata.map_err(|source| OpenError::Io { doing: "find", path: path.to_owned(), source })?;
    if metadata.is_dir() { locate_in(path) } else { siblings(path) }
}

fn locate_in(folder: &Path) -> Result<Located, OpenError> {
    let refused = |source| OpenError::Io { doing: "list", path: folder.to_owned(), source };
    // One entry per model, whatever order the system lists files in: its first file.
    let mut models: BTreeMap<(OsString, u64), OsString> = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(refused)? {
        let name = entry.map_err(refused)?.file_name();
        if !name.as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
            continue;
        }
        let model = match name.to_str().and_then(ShardName::parse) {
            Some(shard) => (shard.prefix.into(), shard.n_shards),
            None => (name.clone(), 0),
        };
        let first = models.entry(model).or_insert_with(|| name.clone());
        if name < *first {
            *first = name;
        }
    }
    let mut found: Vec<OsString> = models.into_values().collect();
    match (found.pop(), found.is_empty()) {
        (None, _) => Err(OpenError::EmptyFolder { path: folder.to_owned() }),
        (Some(name), true) => siblings(&folder.join(name)),
        (Some(name), false) => {
            found.push(name);
            let found = found.iter().map(|name| name.to_string_lossy().into_owned()).collect();
            Err(OpenError::SeveralModels { path: folder.to_owned(), found })
        }
    }
}

fn siblings(path: &Path) -> Result<Located, OpenError> {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(ShardName::parse);
    let Some(ShardName { prefix, n_shards, shard }) = name else {
        return Ok(Located { paths: vec![path.to_owned()], split: false });
    };
    if !(1..=n_shards).contains(&shard) || n_shards > u64::from(u16::MAX) {
        return Err(OpenError::ShardNumber { path: path.to_owned(), shard, n_shards });
    }
    let mut paths = Vec::new();
    for shard in 1..=n_shards {
        let path = path.with_file_name(format!("{prefix}-{shard:05}-of-{n_shards:05}{SUFFIX}"));
        match path.try_exists() {
            Ok(true) => paths.push(path),
            Ok(false) => {
                let n_shards = usize::try_from(n_shards).unwrap_or(0);
                return Err(OpenError::MissingShard { path, n_shards });
            }
            Err(source) => return Err(OpenError::Io { doing: "find", path, source }),
        }
    }
    Ok(Located { paths, split: true })
}

/// Checks that each header says what its file's name says.
pub(super) fn check(located: &Located, idx: usize, metadata: &Metadata) -> Result<(), OpenError> {
    let (path, n_shards) = (&located.paths[idx], located.paths.len() as u64);
    if !located.split {
        return match (number(metadata, KEY_NO), number(metadata, KEY_COUNT)) {
            (no, Some(count)) if count > 1 => {
                let shard = no.unwrap_or(0).saturating_add(1);
                Err(OpenError::ShardName { path: path.clone(), shard, n_shards: count })
            }
            _ => Ok(()),
        };
    }
    if n_shards == 1 && metadata.value(KEY_COUNT).is_none() {
        return Ok(());
    }
    expect(path, metadata, KEY_COUNT, n_shards)?;
    expect(path, metadata, KEY_NO, idx as u64)
}

/// Checks the number of tensors of the whole set, where a header gives it.
pub(super) fn check_total(path: &Path, metadata: &Metadata, n_tensors: u64) -> Result<(), OpenError> {
    match metadata.value(KEY_TENSORS) {
        Some(_) => expect(path, metadata, KEY_TENSORS, n_tensors),
        None => Ok(()),
    }
}

fn expect(path: &Path, metadata: &Metadata, key: &'static str, expected: u64) -> Result<(), OpenError> {
    if number(metadata, key) == Some(expected) {
        return Ok(());
    }
    let found = metadata.value(key).map_or_else(|| "absent".to_owned(), ToString::to_string);
    Err(OpenError::ShardKey { path: path.to_owned(), key, found, expected })
}

fn number(metadata: &Metadata, key: &str) -> Option<u64> {
    u64::try_from(metadata.value(key)?.integer()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_shard_a_file_is() {
        let name = ShardName::parse("a-of-b-00002-of-00003.gguf").unwrap();
        assert_eq!(name, ShardName { prefix: "a-of-b", n_shards: 3, shard: 2 });
        for other in ["a.gguf", "a-00002-of-00003.bin", "a-2-of-3.gguf", "a-+0002-of-00003.gguf", ".gguf"] {
            assert_eq!(ShardName::parse(other), None, "{other}");
        }
    }
}
