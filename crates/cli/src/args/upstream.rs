//! Arguments of `serve` for requests beyond this machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use forerun_server::{Patience, ServerError, UpstreamConfig, UpstreamKey, UpstreamRule, UpstreamUrl};

/// Where requests beyond this machine go.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct UpstreamArgs {
    /// OpenAI-shaped cluster that answers chats and completions beyond this machine, such as http://host:8000/v1; prompts
    /// leave this machine then
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<UpstreamUrl>,

    /// When the upstream answers: queue>4, more than 4 wait; ctx>8192, the prompt has more tokens; several may be given, and
    /// any is enough
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    pub(crate) upstream_when: Vec<UpstreamRule>,

    /// Key for the upstream; those of clients are never sent there
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(crate) upstream_key: Option<String>,

    /// File of that key
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream_key_file: Option<PathBuf>,

    /// The model's name at the upstream; default: the only one it lists, or else what a request says
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) upstream_model: Option<String>,

    /// Certificates (PEM) that an https upstream's must descend from; default: those of the public web
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream_ca: Option<PathBuf>,
}

/// Flags that don't go together, or name what can't be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("--{flag} says how to ask an upstream, but there is none; write --upstream URL")]
    NoUpstream { flag: &'static str },
    #[error(
        "--upstream-when {rule} never holds, since at most {queue} requests wait; raise --queue, or lower the number"
    )]
    NeverHolds { rule: UpstreamRule, queue: u16 },
    #[error("--upstream-key and --upstream-key-file both say the upstream's key; write one of them")]
    TwoKeys,
    #[error("{} must hold one key for the upstream, but has {found}", path.display())]
    Keys { path: PathBuf, found: usize },
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl UpstreamArgs {
    /// The upstream, if there is one; `queue` requests may wait here, and silence lasts no longer than `timeout`.
    ///
    /// # Errors
    /// [`UpstreamError`].
    pub(crate) fn config(
        &self,
        queue: u16,
        timeout: Duration,
    ) -> Result<Option<UpstreamConfig>, UpstreamError> {
        let Some(url) = &self.upstream else { return self.check_absent().map(|()| None) };
        let never = |rule: &&UpstreamRule| matches!(rule, UpstreamRule::Queue(n) if *n >= queue.into());
        if let Some(rule) = self.upstream_when.iter().find(never) {
            return Err(UpstreamError::NeverHolds { rule: *rule, queue });
        }
        let roots = |path: &PathBuf| {
            fs::read(path).map_err(|source| UpstreamError::Read { path: path.clone(), source })
        };
        Ok(Some(UpstreamConfig {
            url: url.clone(),
            rules: self.upstream_when.clone(),
            key: self.key()?,
            model: self.upstream_model.clone(),
            roots_pem: self.upstream_ca.as_ref().map(roots).transpose()?,
            patience: Patience { idle: timeout, ..Patience::default() },
        }))
    }

    /// Refuses flags that mean nothing without an upstream.
    fn check_absent(&self) -> Result<(), UpstreamError> {
        let given = [
            ("upstream-when", !self.upstream_when.is_empty()),
            ("upstream-key", self.upstream_key.is_some()),
            ("upstream-key-file", self.upstream_key_file.is_some()),
            ("upstream-model", self.upstream_model.is_some()),
            ("upstream-ca", self.upstream_ca.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(UpstreamError::NoUpstream { flag }),
            None => Ok(()),
        }
    }

    /// The key of the arguments or of the file; empty lines of that, and those that begin with `#`, are none.
    fn key(&self) -> Result<Option<UpstreamKey>, UpstreamError> {
        let text = match (&self.upstream_key, &self.upstream_key_file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err(UpstreamError::TwoKeys),
            (Some(key), None) => key.clone(),
            (None, Some(path)) => {
                let text = fs::read_to_string(path);
                let text = text.map_err(|source| UpstreamError::Read { path: path.clone(), source })?;
                let keys = text.lines().map(str::trim);
                let keys: Vec<_> = keys.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
                let [key] = keys[..] else {
                    return Err(UpstreamError::Keys { path: path.clone(), found: keys.len() });
                };
                key.to_owned()
            }
        };
        Ok(Some(text.parse()?))
    }
}
