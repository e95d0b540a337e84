//! One request: redirects, the token, and what a status means.
//!
//! Redirects are followed here and not in the client, for two reasons: the token may go to the endpoint's own scheme,
//! host and port only, and `X-Linked-Etag`, which names the content, stands in the answer *before* the redirect.

use std::time::Duration;

use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, LOCATION, RANGE};
use ureq::http::{StatusCode, Uri};
use ureq::{Agent, Body};

use super::error::{PullError, Subject};

const REDIRECTS_MAX: usize = 10;
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// Longest silence of a server that has not ended its answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Speaks to one endpoint, and to the hosts it redirects to.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Option<Origin>,
    token: Option<String>,
}

/// What to ask for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) subject: Subject,
    pub(crate) url: String,
    /// Only the bytes from here on.
    pub(crate) from: Option<u64>,
}

/// What the server said before the bytes.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Without quotes: the content's name, from whichever host knows it best.
    pub(crate) etag: Option<String>,
    pub(crate) len: Option<u64>,
    pub(crate) range: Option<ContentRange>,
}

/// `bytes FIRST-LAST/TOTAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentRange {
    pub(crate) first: u64,
    pub(crate) total: Option<u64>,
}

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Client {
    /// A client that shows `token` to `endpoint` alone.
    pub(crate) fn new(endpoint: &str, token: Option<String>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(SILENCE_MAX))
            .timeout_per_read(Some(SILENCE_MAX))
            .user_agent(concat!("forerun/", env!("CARGO_PKG_VERSION")))
            .build();
        let endpoint = endpoint.parse().ok().and_then(|uri| Origin::of(&uri));
        Self { agent: config.into(), endpoint, token }
    }

    /// Sends a request and follows redirects. Blocks until the server has answered.
    ///
    /// # Errors
    /// [`PullError`] for every answer but 200, 206 and 416.
    pub(crate) fn get(&self, request: &Request) -> Result<(Head, Body), PullError> {
        let subject = &request.subject;
        let refuse = |to: &str, why| PullError::Redirect { subject: subject.clone(), to: to.into(), why };
        let (mut url, mut linked_etag) = (request.url.clone(), None);
        for _ in 0..=REDIRECTS_MAX {
            let uri: Uri = url.parse().map_err(|_| refuse(&url, "which is no URL"))?;
            let origin = Origin::of(&uri).ok_or_else(|| refuse(&url, "which is neither http nor https"))?;
            let is_endpoint = self.endpoint.as_ref() == Some(&origin);
            if !is_endpoint && origin.scheme == "http" && self.is_secure() {
                return Err(refuse(&url, "which gives up https"));
            }
            let mut get = self.agent.get(&uri).header(ACCEPT_ENCODING, "identity");
            if let Some(token) = self.token.as_ref().filter(|_| is_endpoint) {
                get = get.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(from) = request.from {
                get = get.header(RANGE, format!("bytes={from}-"));
            }
            let connection =
                |error| PullError::Connection { subject: subject.clone(), source: Box::new(error) };
            let answer = get.call().map_err(connection)?;
            let headers = answer.headers();
            linked_etag = linked_etag.or_else(|| etag(headers, "x-linked-etag"));
            if is_redirect(answer.status()) {
                let to = headers.get(LOCATION).and_then(|to| to.to_str().ok());
                let to = to.ok_or_else(|| refuse("", "for it has no readable Location"))?;
                url = join(&origin, to).ok_or_else(|| refuse(to, "which is no whole path"))?;
                continue;
            }
            self.check_status(answer.status().as_u16(), headers, subject)?;
            let head = Head {
                status: answer.status().as_u16(),
                etag: linked_etag.or_else(|| etag(headers, "etag")),
                len: answer.body().content_length(),
                range: text(headers, "content-range").and_then(ContentRange::parse),
            };
            return Ok((head, answer.into_body()));
        }
        Err(PullError::RedirectLoop { subject: subject.clone(), most: REDIRECTS_MAX })
    }

    fn is_secure(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme == "https")
    }

    fn check_status(&self, status: u16, headers: &HeaderMap, subject: &Subject) -> Result<(), PullError> {
        let (subject, has_token) = (subject.clone(), self.token.is_some());
        Err(match status {
            200 | 206 | 416 => return Ok(()),
            401 => PullError::Unauthorized { subject, has_token },
            403 => PullError::Forbidden { subject },
            404 => PullError::NotFound { subject },
            429 | 503 => {
                let seconds = text(headers, "retry-after").and_then(|text| text.trim().parse().ok());
                PullError::Busy { subject, status, retry_after: seconds.map(Duration::from_secs), has_token }
            }
            _ => PullError::Status { subject, status },
        })
    }
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let port = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        Some(Self { scheme, host, port: uri.port_u16().unwrap_or(port) })
    }
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, _last) = range.split_once('-')?;
        let total = if total == "*" { None } else { Some(total.parse().ok()?) };
        Some(Self { first: first.parse().ok()?, total })
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// A redirect's target: a URL, or a path on the same host.
fn join(origin: &Origin, to: &str) -> Option<String> {
    let Origin { scheme, host, port } = origin;
    match to {
        _ if to.starts_with("//") => Some(format!("{scheme}:{to}")),
        _ if to.starts_with('/') => Some(format!("{scheme}://{host}:{port}{to}")),
        _ => to.contains("://").then(|| to.to_owned()),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn etag(headers: &HeaderMap, name: &str) -> Option<String> {
    let etag = text(headers, name)?.trim();
    let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    (!etag.is_empty()).then(|| etag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Option<Origin> {
        Origin::of(&url.parse().unwrap())
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.test/a"), origin("https://hub.test:443"));
        for other in
            ["http://hub.test", "https://hub.test:444", "https://hub.test.evil", "https://x@evil/hub.test"]
        {
            assert_ne!(origin(other), origin("https://hub.test"), "{other}");
        }
        assert_eq!(origin("ftp://hub.test"), None);
    }

    #[test]
    fn a_redirect_names_a_url_or_a_whole_path() {
        let join = |to| join(&origin("http://h:8/a/b").unwrap(), to);
        assert_eq!(join("https://o/x").unwrap(), "https://o/x");
        assert_eq!(join("/x?y").unwrap(), "http://h:8/x?y");
        assert_eq!(join("//o/x").unwrap(), "http://o/x");
        assert_eq!(join("x"), None);
    }

    #[test]
    fn a_range_says_where_it_begins() {
        assert_eq!(ContentRange::parse("bytes 3-9/10"), Some(ContentRange { first: 3, total: Some(10) }));
        assert_eq!(ContentRange::parse("bytes 3-9/*"), Some(ContentRange { first: 3, total: None }));
        for text in ["", "bytes", "bytes */10", "bytes x-9/10", "bytes 3-9/-1", "items 3-9/10"] {
            assert_eq!(ContentRange::parse(text), None, "{text}");
        }
    }
}
