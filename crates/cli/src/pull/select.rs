//! Which files of a repository make the model that was asked for.

use std::collections::BTreeMap;

use indicatif::BinaryBytes;

use super::error::PullError;
use super::listing::RemoteFile;
use super::wish::Wish;

/// Most files that an error lists.
const LISTED_MAX: usize = 40;

/// Files that make one model, or one other file that was named.
#[derive(Debug)]
struct Model<'a> {
    /// The path without `.gguf` and without a shard's number.
    stem: &'a str,
    /// `None` if it is no shard set.
    n_shards: Option<u32>,
    /// By shard, counted from 1.
    files: BTreeMap<u32, &'a RemoteFile>,
}

/// The files of the model that `wish` names, the first shard first.
///
/// # Errors
/// [`PullError::NoModel`], [`PullError::SeveralModels`], [`PullError::NoMatch`], [`PullError::MissingShard`].
pub(crate) fn select(files: &[RemoteFile], wish: &Wish) -> Result<Vec<RemoteFile>, PullError> {
    let models = models(files);
    let repo = || wish.repo.clone();
    let found = match &wish.file {
        None => models.iter().filter(|model| !model.is_beside()).collect(),
        Some(name) => match named(files, name) {
            Some(file) => {
                match models.iter().find(|model| model.files.values().any(|other| *other == file)) {
                    Some(model) => vec![model],
                    None => return Ok(vec![file.clone()]),
                }
            }
            None => {
                models.iter().filter(|model| !model.is_beside() && model.is_quant(name)).collect::<Vec<_>>()
            }
        },
    };
    match (found.as_slice(), &wish.file) {
        ([model], _) => model.complete(wish),
        ([], None) => Err(PullError::NoModel { repo: repo(), files: names(files) }),
        ([], Some(name)) if models.is_empty() => {
            Err(PullError::NoMatch { repo: repo(), wish: name.clone(), models: names(files) })
        }
        ([], Some(name)) => {
            Err(PullError::NoMatch { repo: repo(), wish: name.clone(), models: table(models.iter()) })
        }
        ([first, ..], _) => Err(PullError::SeveralModels {
            repo: repo(),
            example: first.first_name().to_owned(),
            models: table(found.iter().copied()),
        }),
    }
}

/// A file by its path or, if only one has it, by the last part of its path.
fn named<'a>(files: &'a [RemoteFile], name: &str) -> Option<&'a RemoteFile> {
    if let Some(file) = files.iter().find(|file| file.name == name) {
        return Some(file);
    }
    let mut found = files.iter().filter(|file| file.name.rsplit('/').next() == Some(name));
    found.next().filter(|_| found.next().is_none())
}

fn models(files: &[RemoteFile]) -> Vec<Model<'_>> {
    let mut models: BTreeMap<(&str, Option<u32>), Model<'_>> = BTreeMap::new();
    for file in files {
        let Some(stem) = strip_suffix_ignore_case(&file.name, ".gguf") else {
            continue;
        };
        let (stem, shard, n_shards) = match shard(stem) {
            Some((stem, shard, n_shards)) => (stem, shard, Some(n_shards)),
            None => (stem, 1, None),
        };
        let new = || Model { stem, n_shards, files: BTreeMap::new() };
        models.entry((stem, n_shards)).or_insert_with(new).files.insert(shard, file);
    }
    models.into_values().collect()
}

/// `NAME-00002-of-00003` in its parts.
fn shard(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, n_shards) = stem.rsplit_once("-of-")?;
    let (name, shard) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (shard, n_shards) = (number(shard)?, number(n_shards)?);
    (1..=n_shards).contains(&shard).then_some((name, shard, n_shards))
}

impl Model<'_> {
    /// Whether it goes with a model and is none: a projector for images, or statistics for quantising.
    fn is_beside(&self) -> bool {
        let name = self.stem.rsplit('/').next().unwrap_or(self.stem).to_ascii_lowercase();
        name.contains("mmproj") || name.starts_with("imatrix") || name.ends_with("imatrix")
    }

    /// Whether `quant` stands in the path as a word: `Q4_K` isn't in `Q4_K_M`, and `Q4_XS` isn't in `IQ4_XS`.
    fn is_quant(&self, quant: &str) -> bool {
        let (stem, quant) = (self.stem.to_ascii_lowercase(), quant.to_ascii_lowercase());
        stem.match_indices(&quant).any(|(start, _)| {
            let before = stem[..start].chars().next_back();
            let after = stem[start + quant.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric)
                && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    }

    fn first_name(&self) -> &str {
        self.files.values().next().map_or("", |file| &file.name)
    }

    fn complete(&self, wish: &Wish) -> Result<Vec<RemoteFile>, PullError> {
        let n_shards = self.n_shards.unwrap_or(1);
        if let Some(missing) = (1..=n_shards).find(|shard| !self.files.contains_key(shard)) {
            let (repo, model, n) = (wish.repo.clone(), self.stem.to_owned(), self.files.len());
            return Err(PullError::MissingShard { repo, model, n, n_shards, missing });
        }
        Ok(self.files.values().copied().cloned().collect())
    }
}

fn strip_suffix_ignore_case<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let (rest, end) = text.split_at_checked(text.len().checked_sub(suffix.len())?)?;
    end.eq_ignore_ascii_case(suffix).then_some(rest)
}

/// A line a model: its first file, its shards, its size.
fn table<'a>(models: impl Iterator<Item = &'a Model<'a>>) -> String {
    let lines: Vec<_> = models
        .map(|model| {
            let shards = model.n_shards.map_or(String::new(), |n| format!(", {n} shards"));
            let mut sizes = model.files.values().map(|file| file.size);
            let size = sizes.try_fold(0_u64, |sum, size| Some(sum.saturating_add(size?)));
            let size = size.map_or(String::new(), |size| format!(", {}", BinaryBytes(size)));
            format!("  {}{size}{shards}", model.first_name().escape_debug())
        })
        .collect();
    cut(&lines, "\n")
}

fn names(files: &[RemoteFile]) -> String {
    let names: Vec<_> = files.iter().map(|file| file.name.escape_debug().to_string()).collect();
    if names.is_empty() { "none".into() } else { cut(&names, ", ") }
}

fn cut(items: &[String], between: &str) -> String {
    let mut text = items[..items.len().min(LISTED_MAX)].join(between);
    if items.len() > LISTED_MAX {
        text.push_str(&format!("{between}and {} more", items.len() - LISTED_MAX));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names with spaces between, a wish (empty for none), and the names that are chosen, or a part of the error.
    #[track_caller]
    fn check(files: &str, wish: &str, expect: &str) {
        let file = |name: &str| RemoteFile { name: name.into(), size: Some(3 << 20), oid: None };
        let files: Vec<_> = files.split_whitespace().map(file).collect();
        let wish = Wish { repo: "o/n".into(), file: (!wish.is_empty()).then(|| wish.to_owned()) };
        match select(&files, &wish) {
            Ok(files) => {
                assert_eq!(files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>().join(" "), expect);
            }
            Err(error) => assert!(error.to_string().contains(expect), "{error}\nshould hold {expect:?}"),
        }
    }

    const QUANTS: &str = "README.md m-Q4_K_M.gguf m-Q4_K_S.gguf m-Q4_K.gguf m-IQ4_XS.gguf mmproj-Q4_K_M.gguf \
        Q8_0/m-Q8_0-00002-of-00002.gguf Q8_0/m-Q8_0-00001-of-00002.gguf";
    const Q8_0: &str = "Q8_0/m-Q8_0-00001-of-00002.gguf Q8_0/m-Q8_0-00002-of-00002.gguf";

    #[test]
    fn the_only_model_needs_no_name() {
        check("README.md m.gguf mmproj-F16.gguf m-imatrix.gguf", "", "m.gguf");
        check("a/M-00001-of-00001.GGUF", "", "a/M-00001-of-00001.GGUF");
    }

    #[test]
    fn several_models_are_listed_with_their_sizes() {
        check(QUANTS, "", "o/n has several models: name one, as in `o/n:Q8_0/m-Q8_0-00001-of-00002.gguf`");
        check(
            QUANTS,
            "",
            "\n  Q8_0/m-Q8_0-00001-of-00002.gguf, 6.00 MiB, 2 shards\n  m-IQ4_XS.gguf, 3.00 MiB\n",
        );
        check("README.md x.bin", "", "no GGUF model; its files: README.md, x.bin");
        check("", "", "its files: none");
    }

    #[test]
    fn a_quantisation_is_found_as_a_word_in_any_case() {
        check(QUANTS, "q4_k_m", "m-Q4_K_M.gguf");
        check(QUANTS, "Q4_K", "m-Q4_K.gguf");
        check(QUANTS, "IQ4_XS", "m-IQ4_XS.gguf");
        check(QUANTS, "Q8_0", Q8_0);
        check(QUANTS, "Q4_XS", "nothing that `Q4_XS` names; it has\n");
        check("a-Q4_0.gguf b-Q4_0.gguf", "q4_0", "several models");
    }

    #[test]
    fn a_file_is_found_by_its_path_or_its_last_part() {
        check(QUANTS, "m-Q4_K_S.gguf", "m-Q4_K_S.gguf");
        check(QUANTS, "mmproj-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf");
        check(QUANTS, "README.md", "README.md");
        check(QUANTS, "Q8_0/m-Q8_0-00002-of-00002.gguf", Q8_0);
        check(QUANTS, "m-Q8_0-00002-of-00002.gguf", Q8_0);
        check("a/m.gguf b/m.gguf", "m.gguf", "nothing that `m.gguf` names");
        check("a.bin", "Q4_0", "it has\na.bin");
    }

    #[test]
    fn a_set_must_be_whole() {
        let words = "has 2 of the 3 shards of `m`; the first that is missing is 2";
        check("m-00001-of-00003.gguf m-00003-of-00003.gguf", "", words);
        check("m-00001-of-99999.gguf", "m-00001-of-99999.gguf", "1 of the 99999 shards");
        check("m-00004-of-00003.gguf", "", "m-00004-of-00003.gguf");
    }
}
