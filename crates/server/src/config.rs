//! How a server listens, whom it serves, and what bounds a request.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::ServerError;
use crate::upstream::UpstreamConfig;

/// How a server listens and whom it serves.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// A name or an IP address to listen on.
    pub host: String,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// Who may ask; without keys, everybody in reach.
    pub keys: Keys,
    /// Whether other machines may ask without a key.
    pub is_insecure: bool,
    /// Origins of web pages that may ask, or `*`.
    pub cors: Vec<String>,
    /// Names by which clients may call this machine, besides `localhost` and IP addresses.
    pub host_names: Vec<String>,
    /// Whether a request must name this model.
    pub is_strict: bool,
    /// What bounds a request.
    pub limits: Limits,
    /// How long answers may go on when the server is to stop.
    pub grace: Duration,
    /// Who answers what is beyond this machine; `None`: nobody.
    pub upstream: Option<UpstreamConfig>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            keys: Keys::default(),
            is_insecure: false,
            cors: Vec::new(),
            host_names: Vec::new(),
            is_strict: false,
            limits: Limits::default(),
            grace: Duration::from_secs(10),
            upstream: None,
        }
    }
}

/// What bounds a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of a request's body.
    pub body_bytes_max: usize,
    /// Time for a request's head to arrive, also the time that a connection may lie idle.
    pub head_timeout: Duration,
    /// Time for a request's body to arrive.
    pub body_timeout: Duration,
    /// Time in which a client must take some of an answer.
    pub write_timeout: Duration,
    /// Silence after which a stream says that it is alive.
    pub keep_alive: Duration,
    /// Most connections at once; others wait to be accepted.
    pub connections_max: usize,
    /// Most requests of a key, or of an address without keys, in a minute; `None`: any number.
    pub per_minute: Option<NonZeroU32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 16 << 20,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            connections_max: 256,
            per_minute: None,
        }
    }
}

/// Bytes of a connection: what was read of a head, what waits to be written, and what is known of it.
const CONNECTION_BYTES: usize = 2 * Limits::BUFFER_BYTES_MAX + (8 << 10);
/// Bytes of the threads that talk and prepare, as far as their stacks are touched, and of the page, routes and tables.
const TALKING_BYTES: usize = 2 << 20;

impl Limits {
    /// Most bytes of a head, and of an answer that waits to be written, of each connection.
    pub(crate) const BUFFER_BYTES_MAX: usize = 16 << 10;

    /// Most bytes that the bodies of all requests take until they are answered, or their answers begin to stream: one of the
    /// largest, as it came, as text of values, and with the values themselves.
    pub fn bodies_bytes_max(&self) -> usize {
        self.body_bytes_max.saturating_mul(3).min(u32::MAX as usize)
    }

    /// Most bytes of memory that a server takes beside its engine, for the memory plan.
    pub fn memory_bytes(&self) -> u64 {
        let connections = self.connections_max.saturating_mul(CONNECTION_BYTES);
        self.bodies_bytes_max().saturating_add(connections).saturating_add(TALKING_BYTES) as u64
    }
}

/// Keys of those who may ask; only their hashes are kept.
#[derive(Clone, Default)]
pub struct Keys(Vec<[u8; 32]>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// The keys of a list.
    ///
    /// # Errors
    /// [`ServerError::Key`] for one that is empty or that no header can carry.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, ServerError> {
        let check = |(index, key): (usize, &str)| {
            let reason = match key {
                "" => "is empty",
                key if !key.bytes().all(|byte| byte.is_ascii_graphic()) => {
                    "has characters that no header carries; use visible ASCII without spaces"
                }
                _ => return Ok(digest(key)),
            };
            Err(ServerError::Key { index: index + 1, reason })
        };
        keys.into_iter().enumerate().map(check).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hash of `key`, if it is one of these. Takes the same time for every wrong key.
    pub(crate) fn find(&self, key: &str) -> Option<[u8; 32]> {
        let digest = digest(key);
        let equal = self.0.iter().map(|known| known.ct_eq(&digest));
        let any = equal.fold(subtle::Choice::from(0), |any, is_equal| any | is_equal);
        bool::from(any).then_some(digest)
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_not_shown() {
        let keys = Keys::new(["alpha", "beta"]).unwrap();
        assert!(keys.find("beta").is_some() && keys.find("alpha").is_some());
        assert!(keys.find("").is_none() && keys.find("alph").is_none() && keys.find("alphabeta").is_none());
        assert_eq!(format!("{keys:?}"), "Keys(2)");
    }

    #[test]
    fn keys_that_no_request_can_carry_are_refused() {
        for wrong in ["", "a b", "schlüssel", "a\n"] {
            let error = Keys::new(["right", wrong]).unwrap_err();
            assert!(matches!(error, ServerError::Key { index: 2, .. }), "{wrong:?}");
        }
    }
}
