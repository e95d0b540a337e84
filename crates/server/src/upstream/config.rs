//! Where requests beyond this machine go, and which are beyond it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderValue, Uri};

use crate::error::ServerError;

/// A cluster that answers what this machine had better not, and when it is asked.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Where its OpenAI-shaped endpoints are.
    pub url: UpstreamUrl,
    /// A request is forwarded when one of these holds; there must be one.
    pub rules: Vec<UpstreamRule>,
    /// The key that it wants; clients' own keys are never sent.
    pub key: Option<UpstreamKey>,
    /// The model's name there; `None`: the only one that it lists, or else what the request says.
    pub model: Option<String>,
    /// Certificates in PEM form that it must descend from; `None`: those of the public web.
    pub roots_pem: Option<Vec<u8>>,
    /// How long it is waited for.
    pub patience: Patience,
}

/// How long an upstream is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a connection, with its encryption.
    pub connect: Duration,
    /// For the first byte of a stream.
    pub stream: Duration,
    /// For an answer in one piece to begin, which is when it has been made.
    pub whole: Duration,
    /// For the next bytes, once some came.
    pub idle: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stream: Duration::from_secs(120),
            whole: Duration::from_secs(600),
            idle: Duration::from_secs(60),
        }
    }
}

/// The base of an upstream's endpoints: `http://host:8000/v1`. Without a path, `/v1` is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    /// Whether the connection is encrypted.
    pub(super) is_tls: bool,
    /// A name or an IP address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// `host`, or `host:port`, as it was given.
    authority: String,
    /// Begins with `/` and ends without.
    path: String,
}

impl UpstreamUrl {
    /// `host`, or `host:port`, as it was given.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Whether what is sent there can be read on the way.
    pub fn is_plain(&self) -> bool {
        !self.is_tls
    }

    /// The path of an endpoint such as `chat/completions`.
    pub(super) fn path_of(&self, endpoint: &str) -> String {
        format!("{}/{endpoint}", self.path)
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl FromStr for UpstreamUrl {
    type Err = ServerError;

    /// # Errors
    /// [`ServerError::UpstreamUrl`], which doesn't repeat a password.
    fn from_str(text: &str) -> Result<Self, ServerError> {
        let wrong = |reason| {
            let url = match text.rsplit_once('@') {
                Some((_, rest)) => format!("…@{rest}"),
                None => text.to_owned(),
            };
            ServerError::UpstreamUrl { url, reason }
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("has no scheme"))?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(wrong("is neither http nor https")),
        };
        if rest.is_empty() || rest.starts_with(['/', ':', '?', '#']) {
            return Err(wrong("names no host"));
        }
        if rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) {
            return Err(wrong("has a user's name in it; the key goes into --upstream-key"));
        }
        if rest.contains(['?', '#']) {
            return Err(wrong("has more than a path"));
        }
        let uri: Uri = text.parse().map_err(|_| wrong("has characters that no URL has"))?;
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match authority.port() {
            Some(port) => port.as_str().parse().ok().filter(|port| *port > 0),
            None if authority.as_str().ends_with(']') || !authority.as_str().contains(':') => {
                Some(if is_tls { 443 } else { 80 })
            }
            None => None,
        };
        let port = port.ok_or_else(|| wrong("has a port that is none of 1 to 65535"))?;
        let path = match uri.path().trim_end_matches('/') {
            "" => "/v1".to_owned(),
            path => path.to_owned(),
        };
        Ok(Self { is_tls, host, port, authority: authority.to_string(), path })
    }
}

/// When a request is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamRule {
    /// More than so many answers wait when it comes: `queue>4`.
    Queue(usize),
    /// Its prompt has more than so many tokens: `ctx>8192`.
    Context(usize),
}

impl UpstreamRule {
    /// Whether it holds while so many answers wait, for a prompt of so many tokens.
    pub(super) fn holds(self, load: Load) -> bool {
        match self {
            Self::Queue(n) => load.n_waiting > n,
            Self::Context(n) => load.prompt_tokens > n,
        }
    }
}

/// What rules look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Answers that wait, and don't get a seat at once.
    pub(super) n_waiting: usize,
    /// Tokens of the request's longest prompt.
    pub(super) prompt_tokens: usize,
}

impl fmt::Display for UpstreamRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(n) => write!(f, "queue>{n}"),
            Self::Context(n) => write!(f, "ctx>{n}"),
        }
    }
}

impl FromStr for UpstreamRule {
    type Err = ServerError;

    /// # Errors
    /// [`ServerError::UpstreamRule`].
    fn from_str(text: &str) -> Result<Self, ServerError> {
        let wrong = || ServerError::UpstreamRule { rule: text.to_owned() };
        let (what, n) = text.split_once('>').ok_or_else(wrong)?;
        let n: u32 = n.trim().parse().map_err(|_| wrong())?;
        let n = usize::try_from(n).map_err(|_| wrong())?;
        match what.trim() {
            "queue" => Ok(Self::Queue(n)),
            "ctx" => Ok(Self::Context(n)),
            _ => Err(wrong()),
        }
    }
}

/// The key that an upstream wants; it isn't shown.
#[derive(Clone)]
pub struct UpstreamKey(HeaderValue);

impl UpstreamKey {
    /// The header that carries it.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl fmt::Debug for UpstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamKey")
    }
}

impl FromStr for UpstreamKey {
    type Err = ServerError;

    /// # Errors
    /// [`ServerError::UpstreamKey`] for one that is empty or that no header can carry.
    fn from_str(key: &str) -> Result<Self, ServerError> {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ServerError::UpstreamKey);
        }
        let mut header =
            HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ServerError::UpstreamKey)?;
        header.set_sensitive(true);
        Ok(Self(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a URL leads, or what is wrong with it.
    #[track_caller]
    fn check(text: &str, expect: &str) {
        let found = match text.parse::<UpstreamUrl>() {
            Ok(url) => {
                assert_eq!(url.to_string().parse::<UpstreamUrl>().unwrap(), url, "{text}");
                format!("{}:{} {}", url.host, url.port, url.path_of("models"))
            }
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "{text}: {found}");
        assert!(!found.contains("secret"), "{text}: {found}");
    }

    #[test]
    fn urls_are_hosts_with_paths() {
        check("http://host:8000/v1", "host:8000 /v1/models");
        check("https://host", "host:443 /v1/models");
        check("HTTP://host/", "host:80 /v1/models");
        check("http://[::1]:9/api/v1/", "::1:9 /api/v1/models");
        check("http://[::1]", "::1:80 /v1/models");
        check("host:8000", "`host:8000` has no scheme");
        check("ftp://host", "`ftp://host` is neither http nor https");
        check("http:///v1", "names no host");
        check("http://:80/v1", "names no host");
        check("http://me:secret@host/v1", "has a user's name in it");
        check("http://host/v1?key=1", "has more than a path");
        check("http://host/v1#a", "has more than a path");
        check("http://host:99999/v1", "port");
        check("http://host:0", "port");
        check("http://host:/v1", "port");
        check("http://ho st", "characters");
        check("", "has no scheme");
    }

    #[test]
    fn rules_compare_with_a_number() {
        let rule = |text: &str| text.parse::<UpstreamRule>();
        assert_eq!(rule("queue>4").unwrap(), UpstreamRule::Queue(4));
        assert_eq!(rule(" ctx > 8192 ").unwrap(), UpstreamRule::Context(8192));
        assert_eq!(rule("queue>0").unwrap().to_string(), "queue>0");
        for wrong in ["queue", "queue>", "queue>-1", "ctx>=4", "ctx<4", "load>1", "ctx>1.5", ""] {
            let words = rule(wrong).unwrap_err().to_string();
            assert!(words.contains(&format!("`{wrong}`")) && words.contains("queue>4"), "{words}");
        }
    }

    #[test]
    fn a_rule_holds_above_its_number_only() {
        let load = |n_waiting, prompt_tokens| Load { n_waiting, prompt_tokens };
        assert!(!UpstreamRule::Queue(2).holds(load(2, 99)) && UpstreamRule::Queue(2).holds(load(3, 0)));
        assert!(!UpstreamRule::Context(8).holds(load(9, 8)) && UpstreamRule::Context(8).holds(load(0, 9)));
    }

    #[test]
    fn keys_are_not_shown() {
        let key: UpstreamKey = "secret".parse().unwrap();
        assert_eq!(key.header(), "Bearer secret");
        assert!(!format!("{key:?} {:?}", key.header()).contains("secret"));
        for wrong in ["", "a b", "schlüssel", "a\n"] {
            assert!(matches!(wrong.parse::<UpstreamKey>(), Err(ServerError::UpstreamKey)), "{wrong:?}");
        }
    }
}
