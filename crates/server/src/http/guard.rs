//! Keeps web pages out that have no business here.
//!
//! A page may make a browser ask this server, and by DNS rebinding it may do so under a name of its own, so that the browser
//! takes the answers for the page's. Such requests carry the foreign name in `Host`, and other pages' requests carry their
//! `Origin`. A server that asks for a key and can be reached from other machines takes any `Host`: a page doesn't know the key.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;

use super::{App, error};
use crate::config::ServerConfig;
use crate::refusal::{Kind, Refusal};

/// Which names and origins are ours.
#[derive(Debug)]
pub(crate) struct Guard {
    /// `None`: any.
    host_names: Option<Vec<String>>,
    origins: Vec<String>,
}

impl Guard {
    pub(crate) fn new(config: &ServerConfig, is_loopback: bool) -> Self {
        let is_any = !is_loopback && !config.keys.is_empty();
        let names = config.host_names.iter().map(|name| name.to_ascii_lowercase());
        Self { host_names: (!is_any).then(|| names.collect()), origins: config.cors.clone() }
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = headers.get(header::HOST);
        let host = host.map(|host| host.to_str().unwrap_or("")).unwrap_or_default();
        if headers.contains_key(header::HOST) && !self.knows(host) {
            let words = format!(
                "this server is not called `{}`; it answers to localhost, IP addresses, and the names of --allow-host",
                shown(host)
            );
            return Err(Refusal::new(Kind::Forbidden, words).with_code("host_not_allowed"));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or("");
        let is_ours = origin_host(origin).is_some_and(|from| from.eq_ignore_ascii_case(host));
        if is_ours || self.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
            return Ok(());
        }
        let words = format!("pages of `{}` may not ask this server; --cors lets them", shown(origin));
        Err(Refusal::new(Kind::Forbidden, words).with_code("origin_not_allowed"))
    }

    /// Whether a `Host` is one of ours.
    fn knows(&self, host: &str) -> bool {
        let Some(names) = &self.host_names else { return true };
        let Some(name) = without_port(host) else { return false };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        name == "localhost"
            || name.ends_with(".localhost")
            || bare.parse::<IpAddr>().is_ok()
            || names.contains(&name)
    }
}

/// `host:port` of an origin, or `host`; `None` if it is none.
pub(crate) fn origin_host(origin: &str) -> Option<&str> {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))?;
    (!host.is_empty() && !host.contains(['/', '@', '?', '#', ' '])).then_some(host)
}

fn without_port(host: &str) -> Option<&str> {
    if host.starts_with('[') {
        let end = host.find(']')? + 1;
        let rest = &host[end..];
        return (rest.is_empty() || is_port(rest)).then_some(&host[..end]);
    }
    match host.find(':') {
        Some(at) => is_port(&host[at..]).then_some(&host[..at]),
        None => Some(host),
    }
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Refuses what a foreign page asks for.
pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.guard.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => error::response(&refusal, request.uri().path()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::config::Keys;

    /// `ok`, or the code of the refusal.
    #[track_caller]
    fn check(host: &str, origin: &str, expect: &str) {
        let config = ServerConfig {
            host_names: vec!["Box.lan".into()],
            cors: vec!["http://localhost:3000".into()],
            ..ServerConfig::default()
        };
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if !value.is_empty() {
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
        }
        let found = Guard::new(&config, true).check(&headers);
        let found = found.map_or_else(|refusal| refusal.code.unwrap(), |()| "ok");
        assert_eq!(found, expect, "Host {host:?}, Origin {origin:?}");
    }

    #[test]
    fn foreign_names_are_refused() {
        for ours in [
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "192.168.1.7",
            "box.lan:80",
            "a.localhost",
            "",
        ] {
            check(ours, "", "ok");
        }
        for foreign in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::1",
            "localhost:x",
            "127.0.0.1:8080:1",
        ] {
            check(foreign, "", "host_not_allowed");
        }
    }

    #[test]
    fn foreign_pages_are_refused() {
        check("localhost:8080", "http://localhost:8080", "ok");
        check("localhost:8080", "http://localhost:3000", "ok");
        for foreign in
            ["http://evil.example", "null", "http://localhost:9", "https://localhost:3000", "file://"]
        {
            check("localhost:8080", foreign, "origin_not_allowed");
        }
    }

    #[test]
    fn with_a_key_and_an_open_address_every_name_passes() {
        let config = ServerConfig { keys: Keys::new(["k"]).unwrap(), ..ServerConfig::default() };
        assert!(Guard::new(&config, false).knows("any.example"));
        assert!(!Guard::new(&config, true).knows("any.example"));
    }
}
