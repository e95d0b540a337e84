//! What the user asked for: `REPO[:FILE]`, and a revision.

use std::str::FromStr;

/// Longest name of a repository or revision.
const NAME_BYTES_MAX: usize = 200;

/// A repository, and perhaps what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// `owner/name`, or `name` for the few that have no owner.
    pub(crate) repo: String,
    /// A file, any shard of a set, or a quantisation such as `Q4_K_M`.
    pub(crate) file: Option<String>,
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return Err("it must look like owner/name; the server is named by HF_ENDPOINT".into());
        }
        let (repo, file) = text.split_once(':').map_or((text, None), |(repo, file)| (repo, Some(file)));
        let parts: Vec<_> = repo.split('/').collect();
        if parts.len() > 2 || repo.contains("--") || !parts.iter().all(|part| is_name(part)) {
            return Err(format!("{repo:?} is no repository; it must look like owner/name"));
        }
        if file.is_some_and(|file| file.is_empty() || file.contains(char::is_control)) {
            return Err("after `:` must come a file, or a quantisation such as Q4_K_M".into());
        }
        Ok(Self { repo: repo.into(), file: file.map(str::to_owned) })
    }
}

/// A branch, tag or commit. It becomes a part of URLs and of a path.
pub(crate) fn revision(text: &str) -> Result<String, String> {
    if text.split('/').all(is_name) {
        Ok(text.into())
    } else {
        Err("it must be a branch, a tag or a commit: letters, digits and . _ - /".into())
    }
}

fn is_name(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !part.is_empty()
        && part.len() <= NAME_BYTES_MAX
        && !part.contains("..")
        && part != "."
        && part.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, repo: &str, file: Option<&str>) {
        let wish = Wish { repo: repo.into(), file: file.map(str::to_owned) };
        assert_eq!(text.parse(), Ok(wish));
    }

    #[test]
    fn a_wish_is_a_repository_and_perhaps_a_file() {
        check("o/n", "o/n", None);
        check("gpt2", "gpt2", None);
        check("o/n-1.5_x:Q4_K_M", "o/n-1.5_x", Some("Q4_K_M"));
        check("o/n:sub/m.gguf", "o/n", Some("sub/m.gguf"));
    }

    #[test]
    fn paths_and_urls_are_no_repositories() {
        for text in [
            "",
            "/",
            "o/",
            "/n",
            "a/b/c",
            "../n",
            "o/..",
            "o/.",
            "https://h/o/n",
            "o/n:",
            "o/n?x",
            "o--x/n",
            "ö/n",
        ] {
            assert!(text.parse::<Wish>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_revision_stays_inside_its_folder() {
        for text in ["main", "refs/pr/1", "v1.0", "0123abcd"] {
            assert_eq!(revision(text).as_deref(), Ok(text));
        }
        for text in ["", "/main", "a//b", "../x", "a/../b", "a b", "a%2Fb"] {
            assert!(revision(text).is_err(), "{text:?}");
        }
    }
}
