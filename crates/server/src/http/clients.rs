//! Who may ask, and how often.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::{App, Peer, error};
use crate::config::Keys;
use crate::page;
use crate::refusal::{Kind, Refusal};

/// What anybody may have, beside the page: it says nothing of anybody's conversation.
const PUBLIC: &[&str] = &["/health", "/v1/health", "/openapi.json"];
/// After so many requests, clients that were long gone are forgotten.
const SWEEP_EVERY: u32 = 1024;

/// One that asks, for the count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Key([u8; 32]),
    Address(IpAddr),
}

/// Who may ask, and how often.
pub(crate) struct Clients {
    keys: Keys,
    limiter: Option<DefaultKeyedRateLimiter<Client>>,
    per_minute: u32,
    n_seen: AtomicU32,
}

impl Clients {
    pub(crate) fn new(keys: Keys, per_minute: Option<NonZeroU32>) -> Self {
        let limiter = per_minute.map(|n| RateLimiter::dashmap(Quota::per_minute(n)));
        Self { keys, limiter, per_minute: per_minute.map_or(0, NonZeroU32::get), n_seen: AtomicU32::new(0) }
    }

    fn check(&self, headers: &HeaderMap, peer: IpAddr) -> Result<(), Refusal> {
        let client = if self.keys.is_empty() {
            Client::Address(network(peer))
        } else {
            Client::Key(self.identify(headers)?)
        };
        let Some(limiter) = &self.limiter else { return Ok(()) };
        if self.n_seen.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            limiter.retain_recent();
        }
        limiter.check_key(&client).map_err(|until| {
            let wait = until.wait_time_from(DefaultClock::default().now());
            let words = format!("more than {} requests a minute; try again later", self.per_minute);
            Refusal {
                retry_after_s: Some(wait.as_secs() + 1),
                ..Refusal::new(Kind::RateLimited, words).with_code("rate_limit_exceeded")
            }
        })
    }

    /// The key of a request.
    fn identify(&self, headers: &HeaderMap) -> Result<[u8; 32], Refusal> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        let own = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        let Some(key) = bearer.or(own) else {
            let words = "an API key is needed: `Authorization: Bearer KEY`, or `x-api-key: KEY`";
            return Err(Refusal::new(Kind::Unauthorized, words).with_code("missing_api_key"));
        };
        let wrong = || Refusal::new(Kind::Unauthorized, "the API key is wrong").with_code("invalid_api_key");
        self.keys.find(key).ok_or_else(wrong)
    }
}

/// Who has one IPv6 address has a whole network of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (!0 << 64))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Refuses those who may not ask, or not now.
pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if PUBLIC.contains(&path) || page::has(path) {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<Peer>().map_or(Ipv6Addr::UNSPECIFIED.into(), |peer| peer.0);
    match app.clients.check(request.headers(), peer) {
        Ok(()) => next.run(request).await,
        Err(refusal) => error::response(&refusal, path),
    }
}
