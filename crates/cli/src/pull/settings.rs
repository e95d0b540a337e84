//! Endpoint, token and cache, from the environment variables that the Hub's other tools read too.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use super::error::PullError;

const ENDPOINT: &str = "https://huggingface.co";

/// What the environment says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `http://` or `https://`, host, perhaps a path; no slash at the end.
    pub(crate) endpoint: String,
    pub(crate) token: Option<String>,
    /// Where the Hub's tools keep files; `None` where no home folder is known.
    pub(crate) cache: Option<PathBuf>,
}

impl Settings {
    /// Reads the process's environment, and the token's file.
    pub(crate) fn from_env() -> Result<Self, PullError> {
        Self::read(|name| std::env::var_os(name))
    }

    fn read(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, PullError> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let text = |name: &'static str| match var(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value.trim().to_owned())),
            Some(Err(value)) => {
                let value = value.to_string_lossy().into_owned();
                Err(PullError::Setting { name, value, expected: "UTF-8" })
            }
        };
        let home = match (var("HF_HOME"), var("XDG_CACHE_HOME")) {
            (Some(home), _) => Some(PathBuf::from(home)),
            (None, Some(cache)) => Some(PathBuf::from(cache).join("huggingface")),
            (None, None) => std::env::home_dir().map(|home| home.join(".cache/huggingface")),
        };
        let token_path =
            var("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("token")));
        let token = match text("HF_TOKEN")? {
            Some(token) => Some(token),
            None => {
                token_path.and_then(|path| fs::read_to_string(path).ok()).map(|token| token.trim().to_owned())
            }
        };
        let cache = var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.into());
        Ok(Self {
            endpoint: endpoint_of(endpoint)?,
            token: token.filter(|token| !token.is_empty()).map(token_of).transpose()?,
            cache: cache.or_else(|| Some(home?.join("hub"))),
        })
    }
}

fn endpoint_of(value: String) -> Result<String, PullError> {
    let rest = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.starts_with('/') && !rest.contains(['?', '#', '@']) && !rest.is_empty() => {
            Ok(value.trim_end_matches('/').to_owned())
        }
        _ => Err(PullError::Setting {
            name: "HF_ENDPOINT",
            value,
            expected: "a URL such as https://huggingface.co",
        }),
    }
}

/// A token must fit into a header. The value is a secret, so the error leaves it out.
fn token_of(token: String) -> Result<String, PullError> {
    if token.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(token);
    }
    Err(PullError::Setting {
        name: "HF_TOKEN",
        value: "…".into(),
        expected: "one word of ASCII, such as hf_abc",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Settings, String> {
        let get = |name: &str| vars.iter().find(|var| var.0 == name).map(|var| OsString::from(var.1));
        Settings::read(get).map_err(|e| e.to_string())
    }

    #[test]
    fn the_nearest_variable_decides_about_the_cache() {
        let cache = |vars: &[(&str, &str)]| read(vars).unwrap().cache.unwrap();
        let mut vars = vec![("XDG_CACHE_HOME", "x")];
        assert_eq!(cache(&vars), PathBuf::from("x/huggingface/hub"));
        vars.push(("HF_HOME", "h"));
        assert_eq!(cache(&vars), PathBuf::from("h/hub"));
        vars.push(("HF_HUB_CACHE", "c"));
        assert_eq!(cache(&vars), PathBuf::from("c"));
    }

    #[test]
    fn a_token_comes_from_its_variable_or_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(read(&[("HF_HOME", home)]).unwrap().token, None);
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(read(&[("HF_HOME", home)]).unwrap().token.unwrap(), "hf_file");
        assert_eq!(read(&[("HF_HOME", home), ("HF_TOKEN", " hf_var ")]).unwrap().token.unwrap(), "hf_var");
        let words = read(&[("HF_HOME", home), ("HF_TOKEN", "hf_se\ncret")]).unwrap_err();
        assert!(words.contains("HF_TOKEN") && !words.contains("cret"), "{words}");
    }

    #[test]
    fn an_endpoint_is_a_url_without_a_slash_at_its_end() {
        let endpoint =
            |url| read(&[("HF_HOME", "h"), ("HF_ENDPOINT", url)]).map(|settings| settings.endpoint);
        assert_eq!(endpoint("http://localhost:1/hub/").unwrap(), "http://localhost:1/hub");
        assert_eq!(endpoint("").unwrap(), ENDPOINT);
        for url in ["localhost", "ftp://x", "https://", "https:///x", "https://u@h", "https://h?x"] {
            assert!(endpoint(url).unwrap_err().contains("HF_ENDPOINT"), "{url}");
        }
    }
}
